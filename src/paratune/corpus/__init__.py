"""Builds a corpus of texts from a web archive, in stages that turn tables of rows into tables of rows."""
