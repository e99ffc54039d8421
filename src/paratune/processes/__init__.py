"""The processes of a run: ranks from the environment, launchers and their errors, and restarts by torchrun."""
