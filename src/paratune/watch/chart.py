"""Curves of a run over its steps, in Braille dots, for a terminal."""

from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from paratune.base.text import plain
from paratune.watch.run import RunView

MIN_LINES, MAX_LINES, MIN_COLUMNS = 8, 30, 40
_MARGIN = 11
"""Columns left of a plot, for the numbers of its axis."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot in a Braille character: column, then row from the top (Unicode, block 2800)."""
Points = Sequence[tuple[int, float]]


def curves(run: RunView, width: int, height: int) -> list[Text]:
    """Return the losses, and the score that selects the model, next to each other; nothing without room or steps."""
    if height < MIN_LINES or width < MIN_COLUMNS or len(run.losses) < 2:
        return []
    names = [run.metric, *(run.evaluations[-1][1] if run.evaluations else ())]
    score = next((name for name in names if name not in (None, "loss")), None)
    marks, scores = (
        [(step, value) for step, values in run.evaluations if (value := values.get(name or "")) is not None]
        for name in ("loss", score)
    )
    shown = [("training loss ⠒" + "   validation loss ●" * bool(marks), run.losses, marks)]
    shown += [(f"validation {score} ●", scores, scores)] * (len(scores) > 1)
    panels = [_panel(*parts, (width - 2) // len(shown), min(height, MAX_LINES)) for parts in shown]
    return [Text("  ").join(parts) for parts in zip(*panels, strict=True)]


def _panel(title: str, line: Points, marks: Points, width: int, height: int) -> list[Text]:
    """Return a chart of `height` lines, each of `width` columns: a title, the plot, and the steps."""
    columns, rows = width - _MARGIN, height - 2
    last, values = max(step for step, _ in (*line, *marks)) or 1, [value for _, value in (*line, *marks)]
    low, high = min(values), max(values)
    # Halves, because the difference of two floats may be infinite.
    dots, *marked = (
        [
            (
                step * (2 * columns - 1) // last,
                round((high / 2 - value / 2) / (high / 2 - low / 2 or 1) * (4 * rows - 1)),
            )
            for step, value in part
        ]
        for part in (line, marks)
    )
    cells = [[0x2800] * columns for _ in range(rows)]
    for (x, y), (end_x, end_y) in pairwise(dots):
        count = max(end_x - x, abs(end_y - y), 1)
        for at in range(count + 1):
            to_x, to_y = x + (end_x - x) * at // count, y + (end_y - y) * at // count
            cells[to_y // 4][to_x // 2] |= _DOTS[to_x % 2][to_y % 4]
    for x, y in marked[0]:
        cells[y // 4][x // 2] = ord("●")
    lines = [Text(f"{'':{_MARGIN}}{plain(title)}", "bold")]
    for row, label in zip(cells, (f"{high:.4g}", *[""] * (rows - 2), f"{low:.4g}"), strict=True):
        plot = Text("".join(map(chr, row)), "cyan")
        plot.highlight_regex("●", "yellow")
        lines.append(Text(f"{label:>{_MARGIN - 2}} │", "dim") + plot)
    lines.append(Text(f"{'0':>{_MARGIN + 1}}{f'step {last:,}':>{columns - 1}}", "dim"))
    for text in lines:
        text.truncate(width, pad=True)
    return lines
