"""A matrix of runs in tables: mean and spread over seeds, and which cells are the best by validation."""

from paratune.report.sweep.make import make_sweep
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.sweep.terminal import terminal_sweep

__all__ = ["SweepReport", "make_sweep", "terminal_sweep"]
