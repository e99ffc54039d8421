"""Scores of predictions, and the speed, utilisation and stragglers of a run."""
