"""The recipe of the demo checkpoint: its tasks, its text, its tokenizer, its stages."""
