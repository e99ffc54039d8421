"""Feedback on essays from a scoring model: an interval, parts that matter, countable facts, and what a person reads."""
