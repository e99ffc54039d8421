"""Watched runs on a terminal, from 60 columns on: every line is cut or broken where an item ends."""

import time
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import counted, format_bytes, format_duration, format_number, format_share
from paratune.watch.board import BoardView
from paratune.watch.state import RUNNING, CellView, RankView, RunView, SweepView

BAR_WIDTH = 32
CURVE_WIDTH = 24
MAX_CELLS = 30
"""Runs of a matrix that are listed; of more, those that wait or finished are counted."""
MAX_NAME = 48
"""Cells of a terminal that a name may take."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = "   "
_STYLES = {
    "training": "green",
    "evaluating": "green",
    "saving": "green",
    "starting": "cyan",
    "tokenizing": "cyan",
    "running": "green",
    "finished": "dim",
    "stalled": "bold yellow",
    "stopped": "yellow",
    "failed": "bold red",
    "killed": "bold red",
    "gone": "yellow",
    "waiting": "dim",
    "skipped": "dim",
}
_IN_WORDS = {"get_batch": "get batch"}
_FIRST = ("stalled", "failed", "killed", "gone", "stopped", "waiting", "skipped", "finished")
"""In which order the cells of a matrix stand below those at work."""


class Screen:
    """A view that fits into the terminal that it is printed on, when `height` says how many lines there are."""

    def __init__(self, view: BoardView, *, height: int | None = None, footer: str | None = None) -> None:
        self._view, self._height, self._footer = view, height, footer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(20, options.max_width)
        lines = _lines(self._view, width, options.ascii_only, self._height, self._footer)
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            yield line


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as a row of blocks, from the lowest of them to the highest; each block is the mean of its part."""
    if len(values) < 2:
        return ""
    width = min(width, len(values))
    edges = [round(number * len(values) / width) for number in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def _lines(view: BoardView, width: int, ascii_only: bool, height: int | None, footer: str | None) -> list[Text]:
    blocks = [(_run(run, view.time, width, ascii_only), _short(run)) for run in _ordered(view.runs)]
    blocks += [(_sweep(sweep, view.time, width, ascii_only), _sweep_head(sweep, width)[0]) for sweep in view.sweeps]
    head = [*_head(view, width), Text()]
    foot = [Text(footer, style="dim")] if footer else []
    shown = [block for block, _ in blocks] if height is None else _fitted(blocks, height - len(head) - len(foot))
    body = [line for block in shown for line in block]
    return [*head, *body, *foot]


def _ordered(runs: Sequence[RunView]) -> list[RunView]:
    return sorted(runs, key=lambda run: (not run.is_running, run.folder))


def _fitted(blocks: Sequence[tuple[list[Text], Text]], room: int) -> list[list[Text]]:
    """Return as many blocks whole as there is room for, the others as one line each, and a count of what is left."""
    shown = [full for full, _ in blocks]
    for number in reversed(range(len(blocks))):
        if sum(map(len, shown)) <= room:
            break
        shown[number] = [blocks[number][1]]
    if sum(map(len, shown)) <= room:
        return shown
    if len(blocks) == 1:
        return [blocks[0][0][: max(0, room)]]
    kept = shown[: max(0, room - 1)]
    return [*kept, [Text(f"... and {len(shown) - len(kept)} more", style="dim")]]


def _head(view: BoardView, width: int) -> list[Text]:
    """Return what there is in all, in words."""
    counts: dict[str, int] = {}
    at_work = sum(cell.run is not None for sweep in view.sweeps for cell in sweep.cells)
    running = [("running", at_work)] if at_work else []
    for state, count in [*((_word(run), 1) for run in view.runs), *running, *view.others.items()]:
        counts[state] = counts.get(state, 0) + count
    items = [Text("paratune watch", style="bold"), Text(time.strftime("%H:%M:%S", time.localtime(view.time)))]
    items += [_count(state, count) for state, count in counts.items()]
    if view.num_other_sweeps:
        items.append(Text(counted(view.num_other_sweeps, "matrix", "matrices") + " at rest", style="dim"))
    lines = _flow(items, width, "")
    if not view.runs and not view.sweeps:
        lines.append(Text(f"nothing is running below {', '.join(map(plain, view.folders))}"))
    return lines


def _word(run: RunView) -> str:
    return "running" if run.is_running else run.state


def _count(state: str, count: int) -> Text:
    return Text(f"{count} {state}", style=_STYLES.get(state, ""))


def _flow(items: Sequence[Text | str], width: int, indent: str = "  ") -> list[Text]:
    """Return items side by side, on as many lines as they need; none is broken."""
    lines: list[Text] = []
    for item in items:
        text = item if isinstance(item, Text) else Text(item)
        if lines and lines[-1].cell_len + len(_GAP) + text.cell_len <= width:
            lines[-1] = lines[-1] + _GAP + text
        else:
            lines.append(Text(indent) + text)
    return lines


def _name(text: str, room: int = MAX_NAME) -> Text:
    name = Text(plain(text), style="bold")
    name.truncate(max(8, room), overflow="ellipsis")
    return name


def _state(state: str) -> Text:
    return Text(state, style=_STYLES[state])


def _progress(run: RunView) -> list[str]:
    """Return how far a run is, in words."""
    items = []
    if run.step is not None and run.num_steps:
        share = format_share(run.step / run.num_steps)
        items.append(f"step {run.step:,} of {run.num_steps:,} ({share})")
    elif run.step:
        items.append(f"step {run.step:,}")
    if run.left_s:
        items.append(f"about {format_duration(run.left_s)} left")
    if run.total_s is not None:
        items.append(f"took {format_duration(run.total_s)}")
    return items


def _short(run: RunView) -> Text:
    items: list[Text | str] = [_name(run.name), _state(run.state), *_progress(run)]
    if run.loss is not None:
        items.append(f"loss {format_number(run.loss)}")
    return Text(_GAP).join([item if isinstance(item, Text) else Text(item) for item in items])


def _run(run: RunView, now: float, width: int, ascii_only: bool) -> list[Text]:
    """Return all that is known of a run, and an empty line."""
    where = [run.strategy, f"{run.world_size} ranks" if (run.world_size or 1) > 1 else None, run.device, run.host]
    head: list[Text | str] = [_name(run.name, width - 14), _state(run.state)]
    head += [Text(plain(each), style="dim") for each in where if each]
    lines = _flow(head, width, "")
    if run.reason:
        lines.append(Text(f"  {plain(_first_line(run.reason))}"))
    if run.state in ("stalled", "killed") and run.since is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.since))
        lines.append(
            Text(f"  last sign of progress at {since}, {format_duration(now - run.since)} ago", style="yellow")
        )
    lines += _bar(run, width, ascii_only)
    lines += _flow(_figures(run, ascii_only), width)
    lines += _flow([f"{_IN_WORDS.get(key, key)} {format_share(share)}" for key, share in run.phases.items()], width)
    lines += _ranks(run.ranks, width)
    lines += _score_lines(run, width)
    if run.num_damaged_lines:
        damaged = counted(run.num_damaged_lines, "damaged line")
        lines.append(Text(f"  {damaged} of its event log passed over", style="yellow"))
    return [*lines, Text()]


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]


def _bar(run: RunView, width: int, ascii_only: bool) -> list[Text]:
    items = _progress(run)
    if not items:
        return []
    if run.epoch is not None and run.num_epochs is not None and run.is_running:
        items.insert(1, f"epoch {run.epoch:.2f} of {run.num_epochs:.4g}")
    if run.step is None or not run.num_steps or not run.is_running:
        return _flow(items, width)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    size = max(8, min(BAR_WIDTH, width - 30))
    done = min(size, int(size * run.step / run.num_steps))
    bar = Text(full * done, style="green") + Text(empty * (size - done), style="dim")
    return _flow([bar, *items], width)


def _figures(run: RunView, ascii_only: bool) -> list[Text | str]:
    items: list[Text | str] = []
    if run.loss is not None:
        curve = "" if ascii_only else sparkline(run.losses, CURVE_WIDTH)
        items.append(f"loss {format_number(run.loss)} {curve}".rstrip())
    if run.learning_rate is not None:
        items.append(f"learning rate {run.learning_rate:.3g}")
    if run.tokens_per_s is not None:
        items.append(f"{format_number(run.tokens_per_s)} tokens/s")
    if run.samples_per_s is not None:
        items.append(f"{format_number(run.samples_per_s)} samples/s")
    return items


def _ranks(ranks: Sequence[RankView], width: int) -> list[Text]:
    """Return the memory of each rank, or of the least and the greatest of many, and which ranks lag."""
    known = [(rank.rank, rank.memory_bytes) for rank in ranks if rank.memory_bytes is not None]
    items: list[Text | str] = []
    if len(known) > 8:
        values = [value for _, value in known]
        items = [f"memory {format_bytes(min(values))} to {format_bytes(max(values))} on {len(known)} ranks"]
    elif known:
        items = [f"memory {format_bytes(known[0][1])}", *(f"rank {rank} {format_bytes(v)}" for rank, v in known[1:])]
    lines = _flow(items, width)
    for rank in ranks:
        if rank.slower is not None:
            text = f"  rank {rank.rank} lags: its own work takes {format_share(rank.slower)} longer than the others'"
            lines.append(Text(text, style="yellow"))
        if rank.behind:
            text = f"  rank {rank.rank} has logged {rank.behind} steps less than the others"
            lines.append(Text(text, style="yellow"))
    return lines


def _score_lines(run: RunView, width: int) -> list[Text]:
    if not run.scores:
        return []
    at = f" at step {run.scored_at:,}" if run.scored_at is not None else ""
    names = [name for name in run.scores if not (name == "f1" and "f1_macro" in run.scores)]
    items = [f"{plain(name)} {format_number(run.scores[name])}" for name in names]
    return _flow([f"{plain(run.scored_on or 'scores')}{at}:", *items], width)


def _sweep_head(sweep: SweepView, width: int) -> list[Text]:
    state = Text("waiting for listed runs" if sweep.is_awaited else "matrix at rest")
    state = Text("matrix running", style=_STYLES["running"]) if sweep.is_running else state
    items = [_name(sweep.name, width - 18), state]
    items += [_count(kind, count) for kind, count in sweep.counts().items()]
    if sweep.left_s is not None:
        items.append(Text(f"about {format_duration(sweep.left_s)} left"))
    return _flow(items, width, "")


def _sweep(sweep: SweepView, now: float, width: int, ascii_only: bool) -> list[Text]:
    """Return a matrix: its runs at work in full, the others as a line each or counted."""
    lines = _sweep_head(sweep, width)
    if sweep.problem is not None:
        lines.append(Text(f"  {plain(_first_line(sweep.problem))}", style="bold red"))
    for cell in sweep.cells:
        if cell.run is not None:
            lines += [Text("  ") + line for line in _run(cell.run, now, width - 2, ascii_only)[:-1]]
    others = (cell for cell in sweep.cells if cell.state not in RUNNING)
    rest = sorted(others, key=lambda cell: _FIRST.index(cell.state))
    room = max([cell_len(plain(cell.name)) for cell in rest[:MAX_CELLS]], default=0)
    room = min(room, max(12, width - 26), MAX_NAME)
    lines += [_cell(cell, room) for cell in rest[:MAX_CELLS]]
    if len(rest) > MAX_CELLS:
        lines.append(Text(f"  ... and {len(rest) - MAX_CELLS} more", style="dim"))
    return [*lines, Text()]


def _cell(cell: CellView, room: int) -> Text:
    name = Text(plain(cell.name))
    name.truncate(room, overflow="ellipsis", pad=True)
    text = Text("  ") + name + Text("  ") + Text(f"{cell.state:<9}", style=_STYLES[cell.state])
    if cell.seconds is not None:
        text.append(f"  {format_duration(cell.seconds)}")
    if cell.reason:
        text.append(f"  {plain(_first_line(cell.reason))}")
    return text
