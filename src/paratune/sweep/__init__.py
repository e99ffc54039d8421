"""Matrices of runs: read, planned, and run one after the other. Floors 0-1: no torch."""
