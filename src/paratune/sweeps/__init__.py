"""Reads, plans and runs matrices of runs. Imports the two lowest layers and no torch."""
