"""The report as Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from paratune.certificate import COLUMNS
from paratune.records import finite
from paratune.report.baseline import Against
from paratune.report.machine import hardware_facts, setting_text, software_facts
from paratune.report.model import GENERATOR, MAX_CLASSES, Report, SeedGroup, class_names, confusion_of
from paratune.report.rows import Row
from paratune.report.text import csv_text, markdown
from paratune.units import NOT_AVAILABLE


def to_json(report: Report) -> str:
    """Return the report as JSON text, ASCII only so that no reader's encoding can spoil it."""
    return json.dumps(finite(report.as_dict()), indent=1, allow_nan=False, default=str) + "\n"


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


def to_markdown(report: Report) -> str:
    """Return the report's tables as Markdown (GitHub's flavour)."""
    parts: list[str] = [f"<!-- {GENERATOR} -->", f"# {markdown(report.title)}"]
    if len(report.runs) > 1:
        mark = "**Not the same experiment.** " if report.sameness.verdict == "different" else ""
        parts.append(f"> {mark}{markdown(report.sameness.sentence)}")
    parts.append(_comparison(report))
    parts.extend(markdown(footnote) for footnote in report.footnotes)
    parts.extend(_certificates(report))
    if report.against is not None:
        parts.append(_changes(report.against))
    for group in report.seed_groups:
        parts.append(_seeds(group, report.rows))
    if report.differences:
        header = ["setting", *(run.name for run in report.runs)]
        rows = [[one.key, *(setting_text(one, run.name) for run in report.runs)] for one in report.differences]
        parts.append("## Settings that differ\n\n" + pipe_table(header, rows))
    parts.append(_phase_contents(report))
    parts.extend(_confusions(report))
    parts.append(_machines(report))
    if report.unfinished:
        rows = [[run.name, str(run.folder), run.reason] for run in report.unfinished]
        parts.append("## Not finished\n\n" + pipe_table(["run", "folder", "why"], rows))
    parts.append("## Notes\n\n" + "\n".join(f"- {markdown(note)}" for note in report.notes))
    return "\n\n".join(parts) + "\n"


def _comparison(report: Report) -> str:
    rows = []
    group = ""
    for row in report.shown_rows:
        if row.group != group:
            group = row.group
            rows.append([f"**{markdown(group)}**", *([""] * len(report.runs))])
        rows.append([markdown(row.label), *(markdown(cell.text) for cell in row.cells)])
    header = ["", *(markdown(run.name) for run in report.runs)]
    return _lines(header, rows, right=True)


def _changes(found: Against) -> str:
    runs = [one.run for one in found.rows[0].changes] if found.rows else []
    header = ["", f"{found.baseline} (baseline)", *(name for run in runs for name in (run, "change"))]
    rows = []
    for row in found.rows:
        cells = (text for one in row.changes for text in (one.figure, one.text))
        rows.append([f"{row.group}: {row.label}", row.figure, *cells])
    return "## Against the baseline\n\n" + pipe_table(header, rows)


def _certificates(report: Report) -> Iterator[str]:
    for one in report.certificates:
        yield f"## Certificate of {markdown(one.whose(len(report.runs)))}: {markdown(one.verdict)}"
        yield pipe_table(COLUMNS, one.rows)
        yield "\n".join(f"- {markdown(line)}" for line in (*one.reasons, one.how, one.path))


def _seeds(group: SeedGroup, rows: Sequence[Row]) -> str:
    labels = {row.key: f"{row.label} ({row.group.lower()})" for row in rows}
    table = [
        [
            labels[key],
            f"{one.mean:.5g}",
            f"{one.deviation:.2g}",
            f"{one.low:.5g}",
            f"{one.high:.5g}",
            str(len(one.runs)),
        ]
        for key, one in group.spreads.items()
    ]
    title = f"## Over {len(group.runs)} seeds: {', '.join(markdown(name) for name in group.runs)}"
    return f"{title}\n\n" + pipe_table(["figure", "mean", "standard deviation", "min", "max", "runs"], table)


def _phase_contents(report: Report) -> str:
    rows = [[kind, phase, text] for kind, phases in phase_contents(report).items() for phase, text in phases.items()]
    return "## What each phase contains\n\n" + pipe_table(["strategy", "phase", "contains"], rows)


def _confusions(report: Report) -> Iterator[str]:
    for run in report.runs:
        split, counts = confusion_of(run)
        if counts is None or len(counts) > MAX_CLASSES:
            continue
        names = class_names(run, len(counts))
        rows = [[name, *(f"{count:,}" for count in row)] for name, row in zip(names, counts, strict=True)]
        title = f"## Confusion of {markdown(run.name)} on {split}: true classes down, predicted across"
        yield f"{title}\n\n" + _lines(["", *map(markdown, names)], [[*map(markdown, row)] for row in rows], right=True)


def _machines(report: Report) -> str:
    """Return hardware and software of each run; what is the same in all runs is said once."""
    columns = {run.name: [_facts(hardware_facts(run)), _facts(software_facts(run))] for run in report.runs}
    if len({json.dumps(column) for column in columns.values()}) == 1:
        columns = {"all runs" if len(report.runs) > 1 else report.runs[0].name: next(iter(columns.values()))}
    rows = [
        [label, *(column[row] for column in columns.values())] for row, label in enumerate(("hardware", "software"))
    ]
    return "## Hardware and software\n\n" + pipe_table(["", *columns], rows)


def _facts(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in facts.items()) or NOT_AVAILABLE


def phase_contents(report: Report) -> dict[str, dict[str, str]]:
    """Return for each strategy of the runs what its phases contain, in words, as its traits say."""
    contents: dict[str, dict[str, str]] = {}
    for session in (session for run in report.runs for session in run.sessions):
        phases = session.get("run.strategy.traits.phases")
        texts = phases if isinstance(phases, dict) else {}
        kind = str(session.get("run.strategy.kind") or NOT_AVAILABLE)
        contents.setdefault(kind, {str(phase): str(text) for phase, text in texts.items()})
    for texts in contents.values():
        texts["other"] = "what is left of the step's wall time: logging, bookkeeping, waiting outside the phases"
    return contents


def pipe_table(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of plain texts."""
    return _lines([markdown(cell) for cell in header], [[markdown(cell) for cell in row] for row in rows], right=False)


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool) -> str:
    """Return a table of cells that are Markdown already; `right` aligns all columns but the first to the right."""

    def written() -> Iterator[str]:
        yield "| " + " | ".join(header) + " |"
        yield "|---" + ("|---:" if right else "|---") * (len(header) - 1) + "|"
        for row in rows:
            yield "| " + " | ".join(row) + " |"

    return "\n".join(written())
