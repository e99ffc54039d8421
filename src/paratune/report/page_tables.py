"""The tables and texts of the page."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from paratune.report.canvas import css_colour
from paratune.report.figures import run_style
from paratune.report.machine import written
from paratune.report.model import Report
from paratune.report.read import RunRecord
from paratune.report.text import Html, escape, join, some_names, tag

_MAX_NOTES = 60
_FINGERPRINT = re.compile(r"(sha256:?)?[0-9a-f]{32,}")


def subject(report: Report) -> str:
    """Return in one line what was trained on what."""
    first = report.runs[0]
    models = _distinct(report, "run.model.name")
    data = _distinct(report, "run.data.train.source")
    rows = first.number("run.data.train.num_rows")
    pseudo = first.number("run.data.train.num_pseudo") or 0
    what = f"{(rows or 0) - pseudo:,.0f} labelled + {pseudo:,.0f} pseudo-labelled" if pseudo else f"{rows or 0:,.0f}"
    size = f" ({what} rows)" if rows is not None and len(data) == 1 else ""
    tasks = _distinct(report, "run.task.kind")
    return f"{', '.join(tasks).capitalize()}: {', '.join(models)} trained on {', '.join(data)}{size}."


def verdict(report: Report) -> Html:
    """Return the box that says whether the runs are the same experiment; nothing for a single run."""
    if len(report.runs) < 2:
        return Html("")
    same = report.sameness
    warns = same.verdict in {"different", "unknown"}
    if same.verdict != "different":
        return tag("div", tag("p", same.sentence), class_=f"verdict{' warn' if warns else ''}", role="note")
    items = (tag("li", one.label[0].upper() + one.label[1:], ": ", _by_value(one.values)) for one in same.differ)
    text = "Scores and times below do not compare like with like. What differs:"
    return tag(
        "div",
        tag("p", tag("strong", "⚠ These runs did not train the same thing. "), text),
        tag("ul", *items),
        class_="verdict warn",
        role="note",
    )


def unfinished(report: Report) -> Html:
    """Return the list of runs that were given but are not finished."""
    if not report.unfinished:
        return Html("")
    items = (
        tag("li", tag("strong", run.name), " (", tag("code", run.folder), "): ", run.reason)
        for run in report.unfinished
    )
    text = "Not finished, and so in no table or figure:"
    return tag("div", tag("p", text), tag("ul", *items), class_="verdict warn", role="note")


def run_key(report: Report, run: RunRecord) -> Html:
    """Return the line in the run's colour and dashes that marks it in the loss figure; nothing for a single run."""
    if len(report.runs) < 2:
        return Html("")
    return line_key(*run_style(report.runs.index(run)))


def line_key(colour: str, dashes: Sequence[float]) -> Html:
    """Return a piece of a line as figures draw it, for a legend; `colour` is one of theirs."""
    line = tag(
        "line", x1="0", y1="5", x2="34", y2="5", stroke=css_colour(colour), stroke_width="3.4",
        stroke_dasharray=",".join(f"{2 * length:g}" for length in dashes) or None,
    )  # fmt: skip
    return tag("svg", line, viewBox="0 0 34 10", class_="key", aria_hidden="true")


def run_keys(report: Report) -> dict[int, Html]:
    """Return what stands before the names of runs in the head of the comparison, by column."""
    return {at: run_key(report, run) for at, run in enumerate(report.runs, start=1)}


def notes(report: Report) -> Html:
    """Return the notes."""
    return tag("ul", *(tag("li", note) for note in shown_notes(report)), class_="plain")


def shown_notes(report: Report) -> list[str]:
    """Return the notes; of many the first, and how many more report.json has."""
    more = len(report.notes) - _MAX_NOTES
    return [*report.notes[:_MAX_NOTES], *([f"{more} more notes stand in report.json."] if more > 0 else [])]


def _by_value(values: Mapping[str, Any]) -> Html:
    """Return "16 (a, b) against 32 (c)"; of many values or runs the first."""
    runs: dict[str, list[str]] = {}
    for run, value in values.items():
        runs.setdefault(_brief(value), []).append(run)
    groups = [join([tag("code", text), f" ({some_names(names, 8)})"]) for text, names in runs.items()]
    more = [escape(f"{len(groups) - 8} more values")] if len(groups) > 8 else []
    return Html(" against ".join([*groups[:8], *more]))


def _brief(value: Any) -> str:
    """Return a value for a sentence: fingerprints by their first characters, mappings as "key value"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_brief(item)}" for key, item in value.items())
    text = written(value)
    if _FINGERPRINT.fullmatch(text):
        return f"{text[:18]}…"
    return text if len(text) <= 90 else f"{text[:88]}…"


def _distinct(report: Report, source: str) -> list[str]:
    return list(dict.fromkeys(written(run.get(source)) for run in report.runs))
