"""Figures: how they are drawn, and the figures that several reports share."""
