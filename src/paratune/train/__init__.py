"""Training, put together: from a configuration to a finished run folder."""
