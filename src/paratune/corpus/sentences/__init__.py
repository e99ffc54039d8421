"""The stage `sentences`: different sentences of documents, with perplexities from a language model."""
