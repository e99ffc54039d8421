"""Feedback on essays from a scoring model: intervals of scores, and effects of sentences."""
