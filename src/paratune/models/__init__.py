"""Models of transformers with the head of a task: loading, saving, losses, attention, packed batches, FLOPs."""
