"""A comparison in a terminal: the verdicts first, then the figures."""

from collections.abc import Iterator
from dataclasses import replace

from rich.padding import Padding
from rich.text import Text

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.reports.comparison.figures import OTHER_MEMORY
from paratune.reports.comparison.make import Compared, Comparison
from paratune.reports.comparison.tables import figures_table, overview_table
from paratune.reports.tables.table import Table
from paratune.reports.tables.terminal import TerminalParts
from paratune.reports.text import shorten
from paratune.verdicts import Verdict
from paratune.verdicts.words import effect_words, head_of, parts_of

_NAME_WIDTH = 22
_MOST_IN_FULL = 4
"""Configurations up to which all figures are printed; of more only the main changes."""
_STYLES = {True: "bold green", False: "bold red", None: "bold yellow"}


def terminal_comparison(comparison: Comparison) -> TerminalParts:
    """Return a comparison as an object that `rich.console.Console.print` prints."""
    families = (part for compared in comparison.families for part in _family(compared))
    return TerminalParts([*families, *_remarks(comparison)])


def _family(compared: Compared) -> Iterator[Table | Text | Padding]:
    if compared.family.title:
        yield Text(plain(compared.family.title), style="bold")
    is_long = len(compared.verdicts) > _MOST_IN_FULL
    if is_long:
        yield Text(f"Against {plain(compared.family.baseline)}:", style="bold")
    for verdict in compared.verdicts:
        yield from _sentence(verdict, is_alone=not is_long)
    yield from _effects(compared)
    yield Text()
    yield _with_short_names(overview_table(compared)) if is_long else figures_table(compared)


def _with_short_names(table: Table) -> Table:
    lines = ((replace(name, text=shorten(name.text, _NAME_WIDTH)), *cells) for name, *cells in table.lines)
    return replace(table, lines=tuple(lines))


def _sentence(verdict: Verdict, *, is_alone: bool) -> Iterator[Text | Padding]:
    """Yield the first part after the names, and the other parts below it."""
    (first, is_good), *others = parts_of(verdict)
    head = head_of(verdict) if is_alone else plain(verdict.label)
    yield Text(f"{head}: ", style="bold").append(first, style=_STYLES[is_good])
    for text, good in others:
        yield Padding(Text(text, style=_STYLES[good]), (0, 0, 0, 2), expand=False)


def _effects(compared: Compared) -> Iterator[Text | Padding]:
    """Yield the main effects of the axes of a matrix, one on each line."""
    if not compared.effects:
        return
    task = compared.verdicts[0].task
    yield Text()
    yield Text("On average over the other axes:", style="bold")
    for effect in compared.effects:
        names = f"{plain(effect.axis)} {plain(effect.level)} against {plain(effect.baseline)}"
        yield Padding(Text(f"{names}: {effect_words(effect, task)}"), (0, 0, 0, 2), expand=False)


def _remarks(comparison: Comparison) -> Iterator[Text]:
    verdicts = [verdict for compared in comparison.families for verdict in compared.verdicts]
    findings = [finding for compared in comparison.families for row in compared.rows for finding in row.findings]
    reasons = grouped(
        [
            *((finding.reason, finding.measure)
              for verdict in verdicts if not verdict.differs.refused
              for finding in (verdict.speed, *verdict.quality)
              if finding.reason is not None and finding.outcome != "cannot tell"),
            *((finding.reason, "memory") for finding in findings
              if finding.code == OTHER_MEMORY and finding.reason is not None),
        ]
    )  # fmt: skip
    for certificate in comparison.certificates:
        style = "green" if certificate.verdict == "holds" else "bold yellow"
        text = f"Certificate ({', '.join(certificate.runs[:4])}): {certificate.sentence} {certificate.path}"
        yield Text(plain(text), style=style)
    for run in comparison.unfinished:
        yield Text(f"Not compared: {plain(run.name)} ({plain(run.folder)}): {plain(run.reason)}", style="yellow")
    for note in comparison.notes:
        yield Text(plain(note), style="dim")
    for reason, measures in reasons.items():
        yield Text(plain(f"{', '.join(dict.fromkeys(measures))}: {reason}."), style="dim")
