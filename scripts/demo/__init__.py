"""weft's demo model: dialogues, tokenizer, training, evaluation and export. `scripts/train_demo` runs the phases."""
