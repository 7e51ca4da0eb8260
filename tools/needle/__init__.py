"""The demo model: text generator, tokenizer, training, evaluation and the index study."""
