"""Models of transformers with the head of a task: loading, saving, attention, packed batches, FLOPs."""
