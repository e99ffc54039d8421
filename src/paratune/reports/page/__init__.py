"""HTML pages that need no other file and no network."""
