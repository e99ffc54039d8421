"""The stage `index`: lists of captures from indexes, archive files and servers, filtered, without repeated digests."""
