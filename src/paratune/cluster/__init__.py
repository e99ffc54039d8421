"""Runs on a Slurm cluster: site files, batch scripts, jobs, and a toy cluster for tests. No torch."""
