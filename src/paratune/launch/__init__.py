"""Starts the processes of runs on this machine. No torch."""
