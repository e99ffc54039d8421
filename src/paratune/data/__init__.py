"""Data, from files to batches: reading, columns, splits, tokens, order of samples, collators, loader workers.

Only `loader`, `collators` and `workers` import torch.
"""
