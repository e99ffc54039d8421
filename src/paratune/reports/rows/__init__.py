"""Rows of the comparison table of runs, a module for each group of figures."""
