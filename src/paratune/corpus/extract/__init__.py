"""Texts out of documents: HTML, plain text, PDF, RTF, Word and OpenDocument, each in a process that may die of it."""
