"""The finished corpus: tables of documents and sentences, a database, and texts to train on."""
