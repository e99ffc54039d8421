"""Reports as PDF, typeset by Typst."""
