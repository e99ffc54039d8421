"""Helpers with the standard library only: atomic files, signals, text, units, imports."""
