"""Training a tokenizer on texts of one's own, and comparing tokenizers on the same texts."""
