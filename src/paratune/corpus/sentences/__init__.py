"""Sentences: split, each kept once, and how well each reads to a language model."""
