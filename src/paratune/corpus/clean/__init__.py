"""The stage `clean`: a chain of steps that drop or change documents."""
