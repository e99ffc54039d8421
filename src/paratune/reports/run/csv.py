"""report.csv of runs: a line for each run, a column for each figure."""

import csv
import io
from typing import Any

from paratune.reports.run.model import Report
from paratune.reports.text import csv_text


def runs_csv(report: Report) -> str:
    """Return a line for each run and a column for each figure, its unit last in the name; unknown values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    changes = report.against.rows if report.against is not None else ()
    keys = [*(row.key for row in report.rows), *(f"{row.key}_change_percent" for row in changes)]
    writer.writerow(["run", "folder", *map(csv_text, keys)])
    for position, run in enumerate(report.runs):
        values = [row.cells[position].value for row in report.rows]
        for row in changes:
            values.append(next((change.percent for change in row.changes if change.run == run.name), None))
        writer.writerow([csv_text(run.name), csv_text(str(run.folder)), *(_csv_value(value) for value in values)])
    return file.getvalue()


def _csv_value(value: Any) -> Any:
    return "" if value is None else csv_text(value) if isinstance(value, str) else value
