"""Curves of a run over its steps, drawn with Braille dots for a terminal."""

import math
from collections.abc import Sequence

from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import format_number
from paratune.records.scores import ordered_scores
from paratune.watch.run import RunView

MIN_LINES, MAX_LINES = 8, 30
_MARGIN = 8
"""Columns left of a chart, for the numbers of its axis."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot in a Braille character: column, then row from the top (Unicode 15, U+2800)."""
Points = Sequence[tuple[int, float]]


def curves(run: RunView, width: int, height: int) -> list[Text]:
    """Return the loss, and the score that selects the model, next to each other; nothing without room or steps."""
    if height < MIN_LINES or len(run.losses) < 2:
        return []
    scored = [(step, scores) for step, scores in run.evaluations if scores]
    name = (
        next((name for name in ordered_scores(dict(scored[-1][1]), run.metric) if name != "loss"), "") if scored else ""
    )
    split = plain(run.scored_on or "validation")

    def points(name: str) -> Points:
        return [(step, value) for step, scores in scored if (value := scores.get(name)) is not None]

    found = [(f"training loss ⠒   {split} loss ●" if points("loss") else "training loss", run.losses, points("loss"))]
    found += [(f"{split} {plain(name)} ●", points(name), points(name))] if len(points(name)) > 1 else []
    share = (width - 2 * (len(found) - 1)) // len(found)
    last = max(step for _, line, marks in found for step, _ in (*line, *marks))
    panels = [_panel(*parts, last, share, min(height, MAX_LINES)) for parts in found]
    return [Text("  ").join(parts) for parts in zip(*panels, strict=True)]


def _panel(title: str, line: Points, marks: Points, last: int, width: int, height: int) -> list[Text]:
    """Return a chart of `height` lines, each of `width` columns: a title, the plot, and the steps."""
    columns, rows = width - _MARGIN - 1, height - 2
    values = [value for _, value in (*line, *marks)]
    low, high = min(values), max(values)
    # Of many steps, a column of dots has the mean.
    means: dict[int, list[float]] = {}
    for step, value in line:
        means.setdefault(round(step / last * (2 * columns - 1)), []).append(value)

    def dot(value: float) -> int:
        return round((high - value) / ((high - low) or 1.0) * (4 * rows - 1))

    cells = [[0] * columns for _ in range(rows)]
    at, down = min(means), dot(math.fsum(means[min(means)]) / len(means[min(means)]))
    for column, members in sorted(means.items()):
        end, steps = dot(math.fsum(members) / len(members)), max(1, column - at)
        for x in range(at, column + 1):
            y = round(down + (end - down) * (x - at) / steps)
            before = round(down + (end - down) * max(0, x - 1 - at) / steps)
            for row in range(min(before, y), max(before, y) + 1):
                cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
        at, down = column, end
    shown = [[(chr(0x2800 + cell) if cell else " ", "cyan") for cell in row] for row in cells]
    for step, value in marks:
        shown[dot(value) // 4][round(step / last * (2 * columns - 1)) // 2] = ("●", "yellow")
    labels = {0: format_number(high), rows - 1: format_number(low)} if high > low else {0: format_number(high)}
    lines = [Text(f"{'':{_MARGIN}} {title}", "bold")]
    for number, drawn in enumerate(shown):
        lines.append(Text.assemble((f"{labels.get(number, ''):>{_MARGIN - 1}} │", "dim"), *drawn))
    lines.append(Text(f"{'0':>{_MARGIN + 1}}{f'step {last:,}':>{columns - 1}}", "dim"))
    for text in lines:
        text.truncate(width, pad=True)
    return lines
