"""Packs all files of a run into one bundle, for machines without a network; see docs/howto/offline.md."""
