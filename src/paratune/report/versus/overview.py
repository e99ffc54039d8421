"""Many configurations against a baseline, a line each."""

from rich.table import Table
from rich.text import Text

from paratune.base.units import NOT_AVAILABLE
from paratune.report.text import shorten
from paratune.report.versus.figures import FigureRow
from paratune.report.versus.make import Compared
from paratune.verdicts import MeasureComparison
from paratune.verdicts.words import change_words, is_in_points, label_of, signed_interval_words

_NAME_WIDTH = 22
_GAP = 2
_MEMORY = "peak_memory_largest_bytes"


def overview(each: Compared) -> Table:
    """Return speed, memory and the first score of each configuration as changes; all figures are in JSON."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    measures = [verdict.speed.measure for verdict in each.verdicts]
    score = next((found.measure for verdict in each.verdicts for found in verdict.quality), None)
    unit = "\n(points)" if score is not None and is_in_points(score) else ""
    table.add_column("", no_wrap=True, min_width=min(_NAME_WIDTH, max(len(one.label) for one in each.verdicts)))
    headers = ["runs", " or ".join(dict.fromkeys(measures)), "memory", *([label_of(score) + unit] if score else [])]
    for header in headers:
        table.add_column(Text(header), justify="right", overflow="fold")
    memory = next((row for row in each.rows if row.key == _MEMORY), None)
    for place, verdict in enumerate(each.verdicts):
        cells = [str(len(verdict.runs)), _cell(verdict.speed), _memory(memory, place)]
        if score:
            found = next((one for one in verdict.quality if one.measure == score), None)
            cells.append(NOT_AVAILABLE if found is None else _cell(found, verdict.task))
        table.add_row(Text(shorten(verdict.label, _NAME_WIDTH)), *map(Text, cells))
    return table


def _memory(row: FigureRow | None, place: int) -> str:
    found = None if row is None else row.findings[place]
    return NOT_AVAILABLE if found is None or found.change is None else change_words(found)


def _cell(found: MeasureComparison, task: str = "") -> str:
    if found.change is None:
        return NOT_AVAILABLE
    change = change_words(found, task).removesuffix(" points").removesuffix(" point")
    interval = signed_interval_words(found, task)
    return change if interval == NOT_AVAILABLE else f"{change} {interval}"
