"""Feedback on essays from a scoring model: intervals, effects of parts, and essays that a person should read."""
