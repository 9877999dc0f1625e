"""Scripts an operator runs, and the package behind `train_demo`."""
