"""Reports of a corpus."""
