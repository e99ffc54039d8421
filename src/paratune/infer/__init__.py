"""Loads a trained model, applies it to files, and gives pseudo-labels."""
