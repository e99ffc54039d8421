"""Starting processes. Floors 0-1: no torch."""
