"""The training loop and its parts: optimizer, clocks, evaluations, checkpoints, events of steps."""
