"""Trains tokenizers, and compares tokenizers on the same texts."""
