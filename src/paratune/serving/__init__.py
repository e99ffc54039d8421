"""Answers HTTP requests with the predictions of a trained model."""
