"""Writes submissions to GLUE, a zip with tables of predictions for the hidden tests. No torch."""
