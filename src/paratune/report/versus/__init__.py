"""Configurations against a baseline: `paratune compare`."""

from paratune.report.versus.make import Comparison, make_comparison
from paratune.report.versus.terminal import terminal_comparison

__all__ = ["Comparison", "make_comparison", "terminal_comparison"]
