"""The fourth stage: what of the documents is kept, and with what changed in them. A chain of steps."""
