"""The step `variety`: a classifier of European and Brazilian Portuguese, trained on configured texts."""
