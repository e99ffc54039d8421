"""Runs on a cluster under Slurm: the site, the batch script, jobs, and a toy cluster. Floors 0-1: no torch."""
