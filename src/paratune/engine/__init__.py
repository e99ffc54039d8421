"""The training loop and what it calls: optimizer, clocks, evaluations, checkpoints, records of steps."""
