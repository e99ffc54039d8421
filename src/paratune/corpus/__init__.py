"""A corpus of texts from a web archive: stages that turn shards of rows into shards of rows."""
