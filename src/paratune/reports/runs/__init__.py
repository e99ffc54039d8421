"""Run records: how they are read, compared and described."""
