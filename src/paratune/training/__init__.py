"""Trains a model from a configuration to a finished run folder."""
