"""Comparison of configurations with a baseline: `paratune compare`."""

from paratune.reports.comparison.make import Comparison, make_comparison
from paratune.reports.comparison.terminal import terminal_comparison

__all__ = ["Comparison", "make_comparison", "terminal_comparison"]
