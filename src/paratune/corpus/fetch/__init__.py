"""The stage `fetch`: content of captures from archive files, byte ranges on a server, or replay."""
