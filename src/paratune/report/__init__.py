"""Finished runs beside each other, from their records: tables, figures and one page. Nothing is measured here."""

from paratune.report.make import make
from paratune.report.model import Report
from paratune.report.terminal import terminal_table
from paratune.report.write import holds_report

__all__ = ["Report", "holds_report", "make", "terminal_table"]
