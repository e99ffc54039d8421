"""Shows watched runs on a terminal of at least 60 columns; lines break only between items."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import counted, format_bytes, format_duration, format_number, format_share
from paratune.records.evaluations import ordered_scores
from paratune.watch.board import BoardView
from paratune.watch.state import RUNNING, CellView, RankView, RunView, SweepView

BAR_WIDTH = 32
CURVE_WIDTH = 24
MAX_CELLS = 30
"""Maximum number of listed runs of a matrix; the others are counted."""
MAX_NAME = 48
"""Maximum width of a name on a terminal."""
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
_SIGNS = {
    "running": ("▶", ">"),
    "finished": ("■", "#"),
    "waiting": ("·", "."),
    "failed": ("✗", "x"),
    "killed": ("✗", "x"),
    "stopped": ("‖", "="),
    "stalled": ("!", "!"),
    "gone": ("?", "?"),
    "skipped": ("-", "-"),
}
"""Sign of a run of a matrix by its state, on a terminal with and without Unicode."""
MAX_BEST = 4
"""Selections of a matrix whose best configuration is shown."""
_IN_WORDS = {"get_batch": "get batch"}
_FIRST = ("stalled", "failed", "killed", "gone", "stopped", "waiting", "skipped", "finished")
"""Order of the cells of a matrix below the running ones."""


class Screen:
    """A view that fits the width of the terminal, and its height if `height` is set."""

    def __init__(self, view: BoardView, *, height: int | None = None, footer: str | None = None) -> None:
        self._view, self._height, self._footer = view, height, footer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(20, options.max_width)
        lines = _lines(self._view, width, options.ascii_only, self._height, self._footer)
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            yield line


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as a row of blocks, scaled from the lowest to the highest mean; each block is a mean of values."""
    if len(values) < 2:
        return ""
    width = min(width, len(values))
    edges = [round(number * len(values) / width) for number in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def _lines(view: BoardView, width: int, ascii_only: bool, height: int | None, footer: str | None) -> list[Text]:
    runs = sorted(view.runs, key=lambda run: (not run.is_running, run.folder))
    blocks = [_Block(_run(run, view.time, width, ascii_only), _short(run)) for run in runs]
    blocks += [sweep_block(sweep, view.time, width, ascii_only) for sweep in view.sweeps]
    head = [*_head(view, width), Text()]
    foot = [Text(footer, style="dim")] if footer else []
    shown = [block.full for block in blocks] if height is None else _fitted(blocks, height - len(head) - len(foot))
    body = [line for block in shown for line in block]
    return [*head, *body, *foot]


@dataclass(frozen=True)
class _Block:
    """The lines of a run or of a matrix."""

    full: list[Text]
    short: Text
    fitted: Callable[[int], list[Text]] | None = None
    """Returns at most this many lines; None if there is only a full and a short form."""


def _fitted(blocks: Sequence[_Block], room: int) -> list[list[Text]]:
    """Return whole blocks while they fit, then matrices with fewer lines, then a line each, then their number."""
    shown = [block.full for block in blocks]
    for place in reversed(range(len(blocks))):
        if sum(map(len, shown)) <= room:
            break
        shown[place] = [blocks[place].short]
    if sum(map(len, shown)) <= room:
        return _with_more_of_matrices(blocks, shown, room)
    if len(blocks) == 1:
        return [blocks[0].full[: max(0, room)]]
    fitting = shown[: max(0, room - 1)]
    return [*fitting, [Text(f"... and {len(shown) - len(fitting)} more", style="dim")]]


def _with_more_of_matrices(blocks: Sequence[_Block], shown: Sequence[list[Text]], room: int) -> list[list[Text]]:
    """Return the blocks with the free lines given to shortened matrices, an equal part to each."""
    lines = list(shown)
    cut = [place for place, block in enumerate(blocks) if block.fitted is not None and lines[place] is not block.full]
    for number, place in enumerate(cut):
        fitted = blocks[place].fitted
        assert fitted is not None
        free = (room - sum(map(len, lines))) // (len(cut) - number)
        lines[place] = fitted(free + 1)
    return lines


def _head(view: BoardView, width: int) -> list[Text]:
    """Return the number of runs in each state."""
    counts: dict[str, int] = {}
    num_running = sum(cell.run is not None for sweep in view.sweeps for cell in sweep.cells)
    running = [("running", num_running)] if num_running else []
    for state, count in [
        *(("running" if run.is_running else run.state, 1) for run in view.runs),
        *running,
        *view.others.items(),
    ]:
        counts[state] = counts.get(state, 0) + count
    items = [Text("paratune watch", style="bold"), Text(time.strftime("%H:%M:%S", time.localtime(view.time)))]
    items += [_count(state, count) for state, count in counts.items()]
    if view.num_other_sweeps:
        items.append(Text(counted(view.num_other_sweeps, "matrix", "matrices") + " not running", style="dim"))
    lines = _flow(items, width, "")
    if not view.runs and not view.sweeps:
        lines.append(Text(f"nothing is running below {', '.join(map(plain, view.folders))}"))
    return lines


def _count(state: str, count: int) -> Text:
    return Text(f"{count} {state}", style=_STYLES.get(state, ""))


def _flow(items: Sequence[Text | str], width: int, indent: str = "  ") -> list[Text]:
    """Return items next to each other on as many lines as needed, without breaking an item."""
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
    """Return step, remaining time and total time of a run in words."""
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
    """Return all known values of a run, and an empty line."""
    where = [run.strategy, f"{run.world_size} ranks" if (run.world_size or 1) > 1 else None, run.device, run.host]
    head: list[Text | str] = [_name(run.name, width - 14), _state(run.state)]
    head += [Text(plain(place), style="dim") for place in where if place]
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
        lines.append(Text(f"  {damaged} of its event log skipped", style="yellow"))
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
        # The scores of a finished run are those of the kept step, which may be an earlier one.
        label = "training loss at the last step" if run.state == "finished" else "loss"
        items.append(f"{label} {format_number(run.loss)} {curve}".rstrip())
    if run.learning_rate is not None:
        items.append(f"learning rate {run.learning_rate:.3g}")
    if run.tokens_per_s is not None:
        items.append(f"{format_number(run.tokens_per_s)} tokens/s")
    if run.samples_per_s is not None:
        items.append(f"{format_number(run.samples_per_s)} samples/s")
    return items


def _ranks(ranks: Sequence[RankView], width: int) -> list[Text]:
    """Return the memory of each rank, or the smallest and largest of many, and the stragglers."""
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
            share = format_share(rank.slower)
            text = f"  rank {rank.rank} is a straggler: its own work takes {share} longer than the others'"
            lines.append(Text(text, style="yellow"))
        if rank.behind:
            text = f"  rank {rank.rank} is {rank.behind} logged steps behind the others"
            lines.append(Text(text, style="yellow"))
    return lines


def _score_lines(run: RunView, width: int) -> list[Text]:
    if not run.scores:
        return []
    is_finished = run.state == "finished"
    at = "" if run.scored_at is None else f" at {'kept ' if is_finished else ''}step {run.scored_at:,}"
    items = [f"{plain(name)} {format_number(score)}" for name, score in ordered_scores(run.scores, run.metric).items()]
    if run.metric is not None and run.best_step is not None and not is_finished:
        items.append(f"best {plain(run.metric)} so far {format_number(run.best)} at step {run.best_step:,}")
    return _flow([f"{plain(run.scored_on or 'scores')}{at}:", *items], width)


def _sweep_head(sweep: SweepView, width: int) -> list[Text]:
    state = Text("waiting for listed runs" if sweep.is_awaited else "matrix not running")
    state = Text("matrix running", style=_STYLES["running"]) if sweep.is_running else state
    items = [_name(sweep.name, width - 18), state]
    items += [_count(kind, count) for kind, count in sweep.counts().items()]
    if sweep.left_s is not None:
        items.append(Text(f"about {format_duration(sweep.left_s)} left"))
    return _flow(items, width, "")


def sweep_block(sweep: SweepView, now: float, width: int, ascii_only: bool) -> _Block:
    """Return a matrix: state, best so far, a sign for each run, then running runs, then the others by state."""
    head = [*_sweep_head(sweep, width), *_best(sweep, width)]
    if sweep.problem is not None:
        head.append(Text(f"  {plain(_first_line(sweep.problem))}", style="bold red"))
    running = [cell.run for cell in sweep.cells if cell.run is not None]
    details = [[Text("  ") + line for line in _run(run, now, width - 2, ascii_only)[:-1]] for run in running]
    others = (cell for cell in sweep.cells if cell.state not in RUNNING)
    rest = sorted(others, key=lambda cell: _FIRST.index(cell.state))

    def fitted(room: int) -> list[Text]:
        lines = [*head, *_signs(sweep, width, ascii_only)]
        whole = sum(map(len, details)) <= room - len(lines) - min(2, len(rest))
        shown = [line for lines_of_run in details for line in lines_of_run]
        shown = shown if whole else [Text("  ") + _short(run) for run in running]
        lines += shown[: max(0, room - len(lines))]
        return [*lines, *_cells(rest, room - len(lines), width)][: max(1, room)]

    full = [*head, *(line for lines_of_run in details for line in lines_of_run), *_cells(rest, MAX_CELLS + 1, width)]
    return _Block([*full, Text()], _sweep_head(sweep, width)[0], fitted)


def _best(sweep: SweepView, width: int) -> list[Text]:
    """Return the best configuration so far of each selection, with the number of its finished runs."""
    lines = []
    for best in sweep.best[:MAX_BEST]:
        runs = f"mean of {best.num_runs} of {best.num_planned} runs" if best.num_planned > 1 else ""
        items = [f"best {plain(best.metric)} so far {format_number(best.score)}", plain(best.name), runs]
        within = [f"{plain(best.within)}:"] if best.within else []
        lines += _flow([item for item in (*within, *items) if item], width)
    if len(sweep.best) > MAX_BEST:
        lines.append(Text(f"  ... and {len(sweep.best) - MAX_BEST} more selections", style="dim"))
    return lines


def _signs(sweep: SweepView, width: int, ascii_only: bool) -> list[Text]:
    """Return a sign for each run in the order of the matrix, and what the signs mean."""
    states = ["running" if cell.state in RUNNING and cell.state != "stalled" else cell.state for cell in sweep.cells]
    signs = [Text(_SIGNS[state][ascii_only], style=_STYLES[state]) for state in states]
    size = max(1, width - 4)
    lines = [Text("  ").append_text(Text().join(signs[start : start + size])) for start in range(0, len(signs), size)]
    meaning = [Text(f"{_SIGNS[state][ascii_only]} {state}", style=_STYLES[state]) for state in dict.fromkeys(states)]
    return [*lines, *_flow(meaning, width)]


def _cells(cells: Sequence[CellView], room: int, width: int) -> list[Text]:
    """Return a line for each cell, and the number of those that do not fit into `room` lines."""
    if room <= 0 or not cells:
        return []
    shown = list(cells) if len(cells) <= room else list(cells[: room - 1])
    name_width = max([cell_len(plain(cell.name)) for cell in shown], default=0)
    name_width = min(name_width, max(12, width - 26), MAX_NAME)
    lines = [_cell(cell, name_width) for cell in shown]
    if len(shown) < len(cells):
        lines.append(Text(f"  ... and {len(cells) - len(shown)} more", style="dim"))
    return lines


def _cell(cell: CellView, room: int) -> Text:
    name = Text(plain(cell.name))
    name.truncate(room, overflow="ellipsis", pad=True)
    text = Text("  ") + name + Text("  ") + Text(f"{cell.state:<9}", style=_STYLES[cell.state])
    if cell.seconds is not None:
        text.append(f"  {format_duration(cell.seconds)}")
    if cell.score is not None:
        text.append(f"  {format_number(cell.score)}")
    if cell.reason:
        text.append(f"  {plain(_first_line(cell.reason))}")
    return text
