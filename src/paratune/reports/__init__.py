"""Reports of finished runs from their records: tables, figures, a page and a PDF. Nothing is measured here."""

from paratune.reports.run import Report, make

__all__ = ["Report", "make"]
