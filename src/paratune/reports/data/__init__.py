"""Figures of a data set: `paratune data --figures`."""
