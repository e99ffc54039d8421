"""Scores of predictions, and the rates of a run."""
