"""The stage `store`: tables of documents and sentences, a database, and exported texts for training."""
