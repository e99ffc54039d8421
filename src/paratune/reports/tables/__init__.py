"""`Table`, the one table value of all reports, and a renderer for each format."""
