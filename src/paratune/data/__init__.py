"""From files to batches: reading, columns, splits, tokens, order, loading.

Floor 3. Reading and splitting (`read`, `columns`, `splits`, `order`) import no torch.
"""
