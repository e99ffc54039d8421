"""Shows watched runs on a terminal of at least 60 columns; lines break only between items."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import counted, format_bytes, format_duration, format_number, format_share
from paratune.records.evaluations import ordered_scores
from paratune.watch.board import BoardView
from paratune.watch.run import RunView
from paratune.watch.sweep import SweepView

BAR_WIDTH = 32
CURVE_WIDTH = 24
MAX_RUNS = 30
"""Maximum number of listed runs of a matrix; the others are counted."""
MAX_NAME = 48
"""Maximum width of a name on a terminal."""
MAX_BEST = 4
"""Selections of a matrix whose best configuration is shown."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(f"━─…{_BLOCKS}", "#-~.,:-=+*#")
_GAP = "   "
_STYLES = {
    "stalled": "bold yellow",
    "failed": "bold red",
    "killed": "bold red",
    "gone": "yellow",
    "stopped": "yellow",
    "waiting": "dim",
    "skipped": "dim",
    "finished": "dim",
}
"""Of the states of runs that do not run normally, in the order of the lines of a matrix."""
Block = Callable[[int], list[Text]]
"""Returns a run or a matrix in at most this many lines."""


class Screen:
    """A view that fits the width of the terminal, and its height if `height` is set."""

    def __init__(self, view: BoardView, *, height: int | None = None, footer: str | None = None) -> None:
        self._view, self._height, self._footer = view, height, footer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(20, options.max_width)
        for line in self._lines(width):
            line.truncate(width, overflow="ellipsis")
            if options.ascii_only:  # the terminal can encode nothing else
                line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
            yield line

    def _lines(self, width: int) -> list[Text]:
        view = self._view
        runs = sorted(view.runs, key=lambda run: (not run.is_running, run.folder))
        blocks: list[Block] = [partial(_run_block, run, view.time, width) for run in runs]
        blocks += [partial(_sweep_block, sweep, view.time, width) for sweep in view.sweeps]
        head = [*_head(view, width), Text()]
        foot = [Text(self._footer, style="dim")] if self._footer else []
        room = 1_000_000 if self._height is None else self._height - len(head) - len(foot)
        return [*head, *_fitted(blocks, len(runs), room), *foot]


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


def _fitted(blocks: Sequence[Block], num_runs: int, room: int) -> list[Text]:
    """Return a line of each block or of the first ones; further lines go to the first runs, and equally to matrices."""
    shown = blocks if len(blocks) <= room else blocks[: max(0, room - 1)]
    more = [] if len(shown) == len(blocks) else [Text(f"... and {len(blocks) - len(shown)} more", style="dim")]
    free, lines = room - len(shown) - len(more), list[Text]()
    for place, block in enumerate(shown):
        some = block(1 + (free if place < num_runs else free // (len(shown) - place)))
        free -= len(some) - 1
        lines += some
    return [*lines, *more]


def _head(view: BoardView, width: int) -> list[Text]:
    """Return the number of runs in each state."""
    states = Counter("running" if run.is_running else run.state for run in view.runs)
    states["running"] += sum(sweep.counts.get("running", 0) for sweep in view.sweeps)
    items = [Text("paratune watch", style="bold"), Text(time.strftime("%H:%M:%S", time.localtime(view.time)))]
    items += [_styled(state, f"{count} ") for state, count in (states + Counter(view.others)).items()]
    if view.num_other_sweeps:
        items.append(Text(counted(view.num_other_sweeps, "matrix", "matrices") + " not running", style="dim"))
    lines = _flow(items, width, "")
    if not view.runs and not view.sweeps:
        lines.append(Text(f"nothing is running below {', '.join(map(plain, view.folders))}"))
    return lines


def _styled(state: str, before: str = "") -> Text:
    return Text(before + state, style=_STYLES.get(state, "green"))


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


def _progress(run: RunView) -> list[Text | str]:
    """Return step, remaining time and total time of a run in words."""
    items: list[Text | str] = []
    if run.step is not None and run.num_steps:
        items.append(f"step {run.step:,} of {run.num_steps:,} ({format_share(run.step / run.num_steps)})")
    elif run.step:
        items.append(f"step {run.step:,}")
    if run.left_s:
        items.append(f"about {format_duration(run.left_s)} left")
    if run.total_s is not None:
        items.append(f"took {format_duration(run.total_s)}")
    return items


def _short(run: RunView, name_width: int = MAX_NAME, *, pad: bool = False) -> Text:
    name = _name(run.name)
    name.truncate(name_width, overflow="ellipsis", pad=pad)
    figures: list[Text | str] = [] if run.state in ("waiting", "skipped") else _progress(run)
    figures = figures[-1:] if run.state == "finished" else figures  # it took its time for all its steps
    if run.scores:
        metric, score = next(iter(ordered_scores(run.scores, run.metric).items()))
        figures.append(f"{plain(metric)} {format_number(score)}")
    elif run.loss is not None:
        figures.append(f"loss {format_number(run.loss)}")
    reason = [_first_line(run.reason)] if run.reason else []
    return _flow([name, _styled(run.state), *figures, *reason], 1_000_000, "")[0]


def _run_block(run: RunView, now: float, width: int, room: int) -> list[Text]:
    lines = [*_run(run, now, width), Text()]
    return lines if len(lines) <= room else [_short(run)]


def _run(run: RunView, now: float, width: int) -> list[Text]:
    """Return all known values of a run."""
    where = [run.strategy, f"{run.world_size} ranks" if (run.world_size or 1) > 1 else None, run.device, run.host]
    head: list[Text | str] = [_name(run.name, width - 14), _styled(run.state)]
    lines = _flow([*head, *(Text(plain(place), style="dim") for place in where if place)], width, "")
    if run.reason:
        lines.append(Text(f"  {_first_line(run.reason)}"))
    if run.state in ("stalled", "killed") and run.since is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.since))
        ago = f"  last sign of progress at {since}, {format_duration(now - run.since)} ago"
        lines.append(Text(ago, style="yellow"))
    lines += _flow([*_bar(run, width), *_progress(run)], width)
    lines += _flow(_figures(run), width)
    lines += _flow([f"{key.replace('_', ' ')} {format_share(share)}" for key, share in run.phases.items()], width)
    lines += _ranks(run)
    lines += _flow(_scores(run), width)
    if run.num_damaged_lines:
        damaged = counted(run.num_damaged_lines, "damaged line")
        lines.append(Text(f"  {damaged} of its event log skipped", style="yellow"))
    return lines


def _first_line(text: str) -> str:
    return plain(text.strip().split("\n", 1)[0])


def _bar(run: RunView, width: int) -> list[Text]:
    if run.step is None or not run.num_steps or not run.is_running:
        return []
    size = max(8, min(BAR_WIDTH, width - 30))
    done = min(size, int(size * run.step / run.num_steps))
    return [Text("━" * done, style="green") + Text("─" * (size - done), style="dim")]


def _figures(run: RunView) -> list[Text | str]:
    items: list[Text | str] = []
    if run.epoch is not None and run.num_epochs is not None and run.is_running:
        items.append(f"epoch {run.epoch:.2f} of {run.num_epochs:.4g}")
    if run.loss is not None:
        curve = sparkline(run.losses, CURVE_WIDTH)
        # The scores of a finished run are those of the kept step, which may be an earlier one.
        label = "training loss at the last step" if run.state == "finished" else "loss"
        items.append(f"{label} {format_number(run.loss)} {curve}".rstrip())
    if run.learning_rate is not None:
        items.append(f"learning rate {run.learning_rate:.3g}")
    speeds = ((run.tokens_per_s, "tokens/s"), (run.samples_per_s, "samples/s"))
    return items + [f"{format_number(speed)} {unit}" for speed, unit in speeds if speed is not None]


def _ranks(run: RunView) -> list[Text]:
    """Return the smallest and the largest memory of a rank, and the stragglers."""
    known = [memory for memory in run.memory_bytes if memory is not None]
    least, most = (format_bytes(end(known)) if known else "" for end in (min, max))
    words = f"{least} to {most} per rank" if least != most else f"{most} per rank" if len(known) > 1 else most
    lines = [Text(f"  memory {words}")] if known else []
    for rank, share in run.stragglers.items():
        slower = f"a straggler: its own work takes {format_share(share)} longer than the others'"
        lines.append(Text(f"  rank {rank} is {slower}", style="yellow"))
    return lines


def _scores(run: RunView) -> list[Text | str]:
    if not run.scores:
        return []
    is_finished = run.state == "finished"
    at = "" if run.scored_at is None else f" at {'kept ' if is_finished else ''}step {run.scored_at:,}"
    scores = ordered_scores(run.scores, run.metric).items()
    best = f"best {plain(run.metric or '')} so far {format_number(run.best)} at step {run.best_step or 0:,}"
    is_known = run.metric is not None and run.best_step is not None and not is_finished
    shown = [f"{plain(name)} {format_number(score)}" for name, score in scores] + [best] * is_known
    return [f"{plain(run.scored_on or 'scores')}{at}:", *shown]


def _sweep_block(sweep: SweepView, now: float, width: int, room: int) -> list[Text]:
    """Return a matrix: state, best so far, then running runs, in full if they fit, then the others by state."""
    words = "matrix running" if sweep.is_running else "matrix not running"
    state = Text("waiting for listed runs" if sweep.is_awaited and not sweep.is_running else words)
    left = [] if sweep.left_s is None else [f"about {format_duration(sweep.left_s)} left"]
    counts = [_styled(state, f"{count} ") for state, count in sweep.counts.items()]
    lines = [*_flow([_name(sweep.name, width - 18), state, *counts, *left], width, ""), *_best(sweep, width)]
    if sweep.problem is not None:
        lines.append(Text(f"  {_first_line(sweep.problem)}", style="bold red"))
    running = [run for run in sweep.runs if run.is_running]
    order = list(_STYLES)
    rest = sorted((run for run in sweep.runs if not run.is_running), key=lambda run: order.index(run.state))
    whole = [line for run in running for line in _run(run, now, width - 2)]
    is_whole = len(lines) + len(whole) + min(2, len(rest)) < room
    lines += [Text("  ") + line for line in (whole if is_whole else map(_short, running))]
    num_shown = min(len(rest), MAX_RUNS if len(rest) <= room - len(lines) - 1 else room - len(lines) - 2)
    name_width = min(max([cell_len(plain(run.name)) for run in rest], default=0), max(12, width - 26), MAX_NAME)
    lines += [Text("  ") + _short(run, name_width, pad=True) for run in rest[: max(0, num_shown)]]
    if num_shown < len(rest):
        lines.append(Text(f"  ... and {len(rest) - max(0, num_shown)} more", style="dim"))
    return lines[:room] if len(lines) >= room else [*lines, Text()]


def _best(sweep: SweepView, width: int) -> list[Text]:
    """Return the best configuration so far of each selection, with the number of its finished runs."""
    lines = []
    for best in sweep.best[:MAX_BEST]:
        runs = f"mean of {best.num_runs} of {best.num_planned} runs"
        items = [f"best {plain(best.metric)} so far {format_number(best.score)}", plain(best.name), runs]
        lines += _flow(items, width)
    if len(sweep.best) > MAX_BEST:
        lines.append(Text(f"  ... and {len(sweep.best) - MAX_BEST} more selections", style="dim"))
    return lines
