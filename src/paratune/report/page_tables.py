"""The tables and texts of the page."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from paratune.certificate import COLUMNS
from paratune.report.baseline import Against, Change
from paratune.report.canvas import css_colour
from paratune.report.figures import run_style
from paratune.report.machine import hardware_facts, setting_text, software_facts, written
from paratune.report.model import Report, SeedGroup
from paratune.report.read import RunRecord
from paratune.report.rows import Cell, byte_unit, decimals, numbers
from paratune.report.text import Html, join, tag
from paratune.units import NOT_AVAILABLE

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


def comparison(report: Report) -> Html:
    """Return the table of all figures."""
    bodies = []
    for group, rows in groupby(report.shown_rows, key=lambda row: row.group):
        lines = [tag("tr", tag("th", group, colspan=len(report.runs) + 1, scope="rowgroup"), class_="group")]
        lines += [tag("tr", tag("th", row.label, scope="row"), *(_cell(cell) for cell in row.cells)) for row in rows]
        bodies.append(tag("tbody", join(lines)))
    names = (tag("th", run_key(report, run), run.name, scope="col", data_run=run.name) for run in report.runs)
    head = tag("thead", tag("tr", tag("th", tag("span", "", aria_hidden="true"), scope="col"), *names))
    caption = (
        "Warm-up steps are left out of rates, phases and medians. Rates are totals over totals and count real tokens, "
        "without padding. A phase is the mean over ranks of its total, over the number of measured steps; the five sum "
        "to the mean step. Point at a cell to see the run and the record that it came from."
    )
    return join(
        [
            scroll(tag("table", head, join(bodies), class_="figures"), "Comparison of runs"),
            *(tag("p", footnote, class_="caption") for footnote in report.footnotes),
            tag("p", caption, class_="caption"),
        ]
    )


def certificates(report: Report) -> Html:
    """Return what `paratune certify` found of strategies beside one process, a table a certificate."""
    text = "Beside one process: same samples, order and initial weights, and the largest relative differences."
    parts: list[Html] = []
    for one in report.certificates:
        rows = (tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in one.rows)
        head = head_row([name.capitalize() for name in COLUMNS])
        parts += [
            tag("h3", f"{one.whose(len(report.runs))}: {one.verdict}"),
            scroll(tag("table", head, tag("tbody", *rows), class_="figures"), "Certificate"),
            *(tag("p", reason, class_="caption") for reason in one.reasons),
            tag("p", f"{one.how}. {text} ", tag("code", one.path), class_="caption"),
        ]
    return join(parts)


def changes(found: Against) -> Html:
    """Return the table of changes against the baseline run."""
    runs = [one.run for one in found.rows[0].changes] if found.rows else []
    if not runs:
        return tag("p", f"There is no run beside the baseline, {found.baseline}, or no figure that both have.")
    bodies = []
    for group, rows in groupby(found.rows, key=lambda row: row.group):
        lines = [tag("tr", tag("th", group, colspan=2 * len(runs) + 2, scope="rowgroup"), class_="group")]
        for row in rows:
            cells = [cell for one in row.changes for cell in _change_cells(one, found.baseline)]
            lines.append(tag("tr", tag("th", row.label, scope="row"), tag("td", row.figure), *cells))
        bodies.append(tag("tbody", join(lines)))
    head = head_row(["", f"{found.baseline} (baseline)", *(name for run in runs for name in (run, "Change"))])
    text = (
        "A change is in per cent of the baseline's figure; none is given where that is 0 or below. Better and worse "
        "are by the metric's own direction; times and memory are better when less, rates when more; what rounds to "
        "0.0% is the same."
    )
    table = tag("table", head, join(bodies), class_="figures")
    return join([scroll(table, "Changes against the baseline"), tag("p", text, class_="caption")])


def _change_cells(one: Change, baseline: str) -> tuple[Html, Html]:
    side = None if one.better is None else "better" if one.better else "worse"
    title = f"{one.run} against {baseline}"
    return (
        tag("td", one.figure, data_run=one.run),
        tag("td", one.text, class_=side, title=title, data_run=one.run),
    )


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


def seeds(report: Report) -> Html:
    """Return mean and spread of runs that are equal but for their seed."""
    return join(_seed_table(report, group) for group in report.seed_groups)


def settings(report: Report) -> Html:
    """Return the configuration keys whose values differ, with where each value came from."""
    if not report.differences:
        return tag("p", "The resolved configurations are the same but for the names of the runs.")
    head = head_row(["Setting", *(run.name for run in report.runs)])
    rows = [
        tag(
            "tr",
            tag("th", tag("code", one.key), scope="row"),
            *(
                _text_cell(setting_text(one, run.name), run.name, f"from {one.origins[run.name] or 'unknown'}")
                for run in report.runs
            ),
        )
        for one in report.differences
    ]
    text = "Point at a value to see the line or the option that it came from."
    return join(
        [
            scroll(tag("table", head, tag("tbody", join(rows)), class_="text"), "Settings that differ"),
            tag("p", text, class_="caption"),
        ]
    )


def machine(report: Report) -> Html:
    """Return hardware, versions and commands; what is the same in all runs is said once."""
    parts: list[tuple[str, Callable[[RunRecord], Mapping[str, str]]]] = [
        ("Hardware", hardware_facts),
        ("Software", software_facts),
    ]
    tables = [tag("section", tag("h3", title), _facts(report, read)) for title, read in parts]
    commands = (tag("li", tag("strong", run.name), ": ", _commands(run)) for run in report.runs)
    return join([tag("div", *tables, class_="beside"), tag("h3", "Commands"), tag("ul", *commands, class_="plain")])


def notes(report: Report) -> Html:
    """Return the notes."""
    return tag("ul", *(tag("li", note) for note in report.notes), class_="plain")


def phase_contents(contents: Mapping[str, Mapping[str, str]], names: Mapping[str, str]) -> Html:
    """Return the table of what each phase contains under each strategy."""
    rows = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            *(tag("td", texts.get(phase, NOT_AVAILABLE)) for texts in contents.values()),
        )
        for phase, name in names.items()
    ]
    head = head_row(["Phase", *(f"Under {kind} it contains" for kind in contents)])
    return scroll(tag("table", head, tag("tbody", join(rows)), class_="text"), "What each phase contains")


def _seed_table(report: Report, group: SeedGroup) -> Html:
    rows = {row.key: row for row in report.rows}
    lines = []
    for key, one in group.spreads.items():
        figures = (one.mean, one.deviation, one.low, one.high)
        places = 4 if rows[key].group.endswith("scores") else decimals(figures)
        cells = [f"{value:,.{places}f}" for value in figures]
        title = f"computed from {key} of {', '.join(one.runs)}"
        label = f"{rows[key].group}: {rows[key].label}" if rows[key].group.endswith("scores") else rows[key].label
        if key.endswith("_bytes"):
            unit, size = byte_unit(figures)
            label = f"Peak memory, largest rank ({unit})"
            cells = numbers([value / size for value in figures])
        elif key == "train_s":
            label = "Training time (s)"
        data = (tag("td", cell, title=title, data_run=" ".join(one.runs)) for cell in (*cells, str(len(one.runs))))
        lines.append(tag("tr", tag("th", label, scope="row"), *data))
    head = head_row(["Figure", "Mean", "Standard deviation", "Lowest", "Highest", "Runs"])
    return join(
        [
            tag("h3", f"Equal but for the seed: {', '.join(group.runs)}"),
            scroll(tag("table", head, tag("tbody", join(lines)), class_="figures"), "Spread over seeds"),
        ]
    )


def _cell(cell: Cell) -> Html:
    unknown = "na" if cell.text == NOT_AVAILABLE else None
    return tag("td", cell.text, class_=unknown, title=f"{cell.run}: {cell.source}", data_run=cell.run)


def _text_cell(text: str, run: str, where: str) -> Html:
    return tag("td", text, class_="na" if text == NOT_AVAILABLE else None, title=f"{run}: {where}", data_run=run)


def head_row(names: Sequence[str]) -> Html:
    return tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))


def scroll(table: Html, label: str) -> Html:
    """Return a table in a region that scrolls by keyboard where the window is too narrow."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def _facts(report: Report, read: Callable[[RunRecord], Mapping[str, str]]) -> Html:
    """Return a table of facts: one column when they are the same in all runs, else one a run."""
    facts = {run.name: read(run) for run in report.runs}
    keys = list(dict.fromkeys(key for values in facts.values() for key in values))
    if not keys:
        return tag("p", "Not recorded.")
    same = all(values == facts[report.runs[0].name] for values in facts.values())
    shown = [report.runs[0].name] if same else list(facts)
    head = head_row(["", "All runs"] if same and len(report.runs) > 1 else ["", *shown])
    rows = [
        tag(
            "tr",
            tag("th", key, scope="row"),
            *(_text_cell(facts[name].get(key, NOT_AVAILABLE), name, "run.json") for name in shown),
        )
        for key in keys
    ]
    return scroll(tag("table", head, tag("tbody", join(rows)), class_="text"), "Facts")


def _commands(run: RunRecord) -> Html:
    """Return the command of each session in order."""
    parts = [tag("code", _command(command)) for command in run.course("run.command")]
    return Html(", then ".join(parts))


def _command(command: Any) -> str:
    return " ".join(str(word) for word in command) if isinstance(command, list) else written(command)


def _by_value(values: Mapping[str, Any]) -> Html:
    """Return "16 (a, b) against 32 (c)"."""
    runs: dict[str, list[str]] = {}
    for run, value in values.items():
        runs.setdefault(_brief(value), []).append(run)
    groups: Iterable[Html] = (join([tag("code", text), f" ({', '.join(names)})"]) for text, names in runs.items())
    return Html(" against ".join(groups))


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
