"""The stage `extract`: texts of HTML, plain text, PDF, RTF, Word and OpenDocument, extracted in a child process."""
