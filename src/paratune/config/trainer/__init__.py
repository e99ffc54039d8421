"""Converts the settings of a Hugging Face Trainer to a configuration."""
