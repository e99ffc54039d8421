"""Data, from files to batches: reading, columns, splits, tokens, order of samples, collators, loader workers.

Only `loader`, `masking`, `window_batches` and `workers` import torch.
"""
