"""Reports of finished runs from their records: tables, figures, a page and a PDF. Nothing is measured here."""

from paratune.reports.run.make import make
from paratune.reports.run.model import Report

__all__ = ["Report", "make"]
