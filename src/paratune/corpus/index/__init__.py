"""Which captures an archive holds: indexes and archive files are read, filtered, and each digest kept once."""
