"""Predicts the memory and the time of a run before a device is allocated."""
