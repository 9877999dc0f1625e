"""weft's demo model: its dialogues, tokenizer, training, evaluation and export. `scripts/train_demo` runs the phases."""
