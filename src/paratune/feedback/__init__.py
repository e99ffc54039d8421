"""Feedback on essays from a scoring model: intervals, effects of parts, countable facts, and essays to read."""
