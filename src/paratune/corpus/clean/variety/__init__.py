"""European or Brazilian Portuguese: a classifier that is trained on texts which the settings name."""
