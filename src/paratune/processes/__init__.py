"""The processes of a run: which of them this is, what started it, and what a restart by torchrun resumes."""
