"""Uses a trained model: evaluates and predicts files, fills in masks, and gives pseudo-labels."""
