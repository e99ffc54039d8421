"""The report as Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from paratune.records import finite
from paratune.report.model import GENERATOR, Report
from paratune.report.page_tables import shown_notes
from paratune.report.table_files import markdown_table
from paratune.report.tabular import Table
from paratune.report.text import csv_text, markdown


def to_json(report: Report) -> str:
    """Return the report as JSON text, ASCII only so that no reader's encoding can spoil it."""
    return json_text(report.as_dict())


def json_text(parts: Mapping[str, Any]) -> str:
    """Return JSON text with a line for each thing in a list: indented it takes several times as long."""

    def text(value: Any) -> str:
        try:
            return json.dumps(value, allow_nan=False, default=str)
        except ValueError:  # a NaN or an infinity; to look through all values for one takes longer than to write them
            return json.dumps(finite(value), allow_nan=False, default=str)

    lines = []
    for key, value in parts.items():
        items = ",\n  ".join(map(text, value)) if isinstance(value, list) else ""
        lines.append(f" {text(key)}: [\n  {items}\n ]" if items else f" {text(key)}: {text(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def to_csv(report: Report) -> str:
    """Return one line a run, one column a figure in the unit that its name ends in; unknown values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    changes = report.against.rows if report.against is not None else ()
    keys = [*(row.key for row in report.rows), *(f"{row.key}_change_percent" for row in changes)]
    writer.writerow(["run", "folder", *map(csv_text, keys)])
    for position, run in enumerate(report.runs):
        values = [row.cells[position].value for row in report.rows]
        for row in changes:
            values += [next((one.percent for one in row.changes if one.run == run.name), None)]
        writer.writerow([csv_text(run.name), csv_text(str(run.folder)), *(_csv_value(value) for value in values)])
    return file.getvalue()


def _csv_value(value: Any) -> Any:
    return "" if value is None else csv_text(value) if isinstance(value, str) else value


def to_markdown(report: Report, tables: Iterable[Table]) -> str:
    """Return the report's tables as Markdown (GitHub's flavour)."""
    parts: list[str] = [f"<!-- {GENERATOR} -->", f"# {markdown(report.title)}"]
    if len(report.runs) > 1:
        mark = "**Not the same experiment.** " if report.sameness.verdict == "different" else ""
        parts.append(f"> {mark}{markdown(report.sameness.sentence)}")
    for table in tables:
        parts += [f"## {markdown(table.title)}", markdown_table(table).rstrip("\n")]
    parts.append("## Notes\n\n" + "\n".join(f"- {markdown(note)}" for note in shown_notes(report)))
    return "\n\n".join(parts) + "\n"
