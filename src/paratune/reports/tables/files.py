"""The files of tables: Markdown, LaTeX and CSV."""

from collections.abc import Iterable

from paratune.reports.tables.csv import csv_table
from paratune.reports.tables.latex import latex_table
from paratune.reports.tables.markdown import markdown_table
from paratune.reports.tables.table import Table

FOLDER = "tables"


def table_files(tables: Iterable[Table]) -> dict[str, str]:
    """Return the contents of the files of tables, by file name below the folder of the report."""
    renderers = (("md", markdown_table), ("tex", latex_table), ("csv", csv_table))
    return {f"{FOLDER}/{table.key}.{kind}": render(table) for table in tables for kind, render in renderers}
