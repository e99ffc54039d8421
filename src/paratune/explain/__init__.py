"""Explains the output of a trained model: the effect of words and sentences, and how faithful these effects are."""
