"""Comparison of configurations with a baseline: `paratune compare`."""

from paratune.reports.comparison.make import Comparison, make_comparison

__all__ = ["Comparison", "make_comparison"]
