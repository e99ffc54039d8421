"""Shows watched runs on a terminal of at least 60 columns; lines break only between items."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
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
        """Return the runs, in full if they fit, otherwise in a line each, and the matrices in equal shares of the rest.

        What does not fit is counted.
        """
        view = self._view
        runs = sorted(view.runs, key=lambda run: (not run.is_running, run.folder))
        head = [*_head(view, width), Text()]
        foot = [Text(self._footer, style="dim")] if self._footer else []
        room = sys.maxsize if self._height is None else self._height - len(head) - len(foot)
        whole = [[*_run(run, view.time, width), Text()] for run in runs]
        if sum(map(len, whole)) + len(view.sweeps) > room:
            whole = [[_short(run)] for run in runs]
        lines = [line for block in whole for line in block]
        for place, sweep in enumerate(view.sweeps):
            lines += _sweep(sweep, view.time, width, max(1, (room - len(lines)) // (len(view.sweeps) - place)))
        if len(lines) > room:  # each of the last lines is a run or a matrix
            lines[room - 1 :] = [_more(len(lines) - room + 1)] if room > 0 else []
        return [*head, *lines, *foot]


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


def _more(number: int, what: str = "") -> Text:
    return Text(f"... and {number} more{what}", style="dim")


def _styled(state: str, before: str = "") -> Text:
    return Text(before + state, style=_STYLES.get(state, "green"))


def _name(text: str, room: int = MAX_NAME, *, pad: bool = False) -> Text:
    name = Text(plain(text), style="bold")
    name.truncate(room, overflow="ellipsis", pad=pad)
    return name


def _first_line(text: str | None) -> str:
    return plain((text or "").strip().split("\n", 1)[0])


def _flow(items: Iterable[Text | str], width: int, indent: str = "  ") -> list[Text]:
    """Return the items that are not empty next to each other on as many lines as needed, without breaking an item."""
    lines: list[Text] = []
    for item in items:
        text = item if isinstance(item, Text) else Text(item)
        if not text:
            continue
        if lines and lines[-1].cell_len + len(_GAP) + text.cell_len <= width:
            lines[-1] = lines[-1] + _GAP + text
        else:
            lines.append(Text(indent) + text)
    return lines


def _head(view: BoardView, width: int) -> list[Text]:
    states = Counter("running" if run.is_running else run.state for run in view.runs)
    states["running"] += sum(sweep.counts.get("running", 0) for sweep in view.sweeps)
    items = [Text("paratune watch", style="bold"), Text(time.strftime("%H:%M:%S", time.localtime(view.time)))]
    items += [_styled(state, f"{count} ") for state, count in (states + Counter(view.others)).items()]
    if view.num_other_sweeps:
        items.append(Text(counted(view.num_other_sweeps, "matrix", "matrices") + " not running", style="dim"))
    idle = [] if view.runs or view.sweeps else [Text(f"nothing is running below {', '.join(map(plain, view.folders))}")]
    return [*_flow(items, width, ""), *idle]


def _progress(run: RunView) -> list[str]:
    share = ""
    if run.step is not None and run.num_steps:
        share = f" of {run.num_steps:,} ({format_share(run.step / run.num_steps)})"
    return [
        f"step {run.step:,}{share}" if run.step or share else "",
        f"about {format_duration(run.left_s)} left" if run.left_s else "",
        "" if run.total_s is None else f"took {format_duration(run.total_s)}",
    ]


def _short(run: RunView, name: Text | None = None) -> Text:
    figures = [] if run.state in ("waiting", "skipped") else _progress(run)
    figures = figures[-1:] if run.state == "finished" else figures  # it took its time for all its steps
    for metric, score in list(ordered_scores(run.scores, run.metric).items())[:1]:
        figures.append(f"{plain(metric)} {format_number(score)}")
    if not run.scores and run.loss is not None:
        figures.append(f"loss {format_number(run.loss)}")
    return _flow([name or _name(run.name), _styled(run.state), *figures, _first_line(run.reason)], sys.maxsize, "")[0]


def _run(run: RunView, now: float, width: int) -> list[Text]:
    is_finished = run.state == "finished"
    places = (run.strategy, f"{run.world_size} ranks" if (run.world_size or 1) > 1 else "", run.device, run.host)
    where = (Text(plain(str(place)), style="dim") for place in places if place)
    lines = _flow([_name(run.name, max(8, width - 14)), _styled(run.state), *where], width, "")
    lines += _flow([_first_line(run.reason)], width)
    if run.state in ("stalled", "killed") and run.since is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.since))
        ago = f"  last sign of progress at {since}, {format_duration(now - run.since)} ago"
        lines.append(Text(ago, style="yellow"))
    bar = Text()
    if run.step is not None and run.num_steps and run.is_running:
        size = max(8, min(BAR_WIDTH, width - 30))
        done = int(size * min(1.0, max(0.0, run.step / run.num_steps)))
        bar = Text("━" * done, style="green") + Text("─" * (size - done), style="dim")
    lines += _flow([bar, *_progress(run)], width)
    epochs = f"epoch {run.epoch:.2f} of {run.num_epochs:.4g}" if run.epoch is not None and run.num_epochs else ""
    # The scores of a finished run are those of the kept step, which may be an earlier one.
    label = "training loss at the last step" if is_finished else "loss"
    figures = [
        epochs if run.is_running else "",
        "" if run.loss is None else f"{label} {format_number(run.loss)} {sparkline(run.losses, CURVE_WIDTH)}".rstrip(),
        "" if run.learning_rate is None else f"learning rate {run.learning_rate:.3g}",
        "" if run.tokens_per_s is None else f"{format_number(run.tokens_per_s)} tokens/s",
        "" if run.samples_per_s is None else f"{format_number(run.samples_per_s)} samples/s",
    ]
    lines += _flow(figures, width)
    lines += _flow((f"{key.replace('_', ' ')} {format_share(share)}" for key, share in run.phases.items()), width)
    if known := [memory for memory in run.memory_bytes if memory is not None]:
        least, most = format_bytes(min(known)), format_bytes(max(known))
        lines.append(Text(f"  memory {'' if least == most else f'{least} to '}{most}{' per rank' * (len(known) > 1)}"))
    for rank, share in run.stragglers.items():
        slower = f"its own work takes {format_share(share)} longer than the others'"
        lines.append(Text(f"  rank {rank} is a straggler: {slower}", style="yellow"))
    if run.scores:
        at = "" if run.scored_at is None else f" at {'kept ' * is_finished}step {run.scored_at:,}"
        scores = [
            f"{plain(name)} {format_number(score)}" for name, score in ordered_scores(run.scores, run.metric).items()
        ]
        if run.metric is not None and run.best_step is not None and not is_finished:
            scores.append(f"best {plain(run.metric)} so far {format_number(run.best)} at step {run.best_step:,}")
        lines += _flow([f"{plain(run.scored_on or 'scores')}{at}:", *scores], width)
    if run.num_damaged_lines:
        damaged = counted(run.num_damaged_lines, "damaged line")
        lines.append(Text(f"  {damaged} of its event log skipped", style="yellow"))
    return lines


def _sweep(sweep: SweepView, now: float, width: int, room: int) -> list[Text]:
    """Return a matrix: state, best so far, then running runs, in full if they fit, then the others by state."""
    words = "running" if sweep.is_running else "not running"
    state = "waiting for listed runs" if sweep.is_awaited and not sweep.is_running else f"matrix {words}"
    left = "" if sweep.left_s is None else f"about {format_duration(sweep.left_s)} left"
    counts = (_styled(state, f"{count} ") for state, count in sweep.counts.items())
    lines = _flow([_name(sweep.name, max(8, width - 18)), state, *counts, left], width, "")
    for best in sweep.best[:MAX_BEST]:
        score = f"best {plain(best.metric)} so far {format_number(best.score)}"
        lines += _flow([score, plain(best.name), f"mean of {best.num_runs} of {best.num_planned} runs"], width)
    if len(sweep.best) > MAX_BEST:
        lines.append(Text("  ") + _more(len(sweep.best) - MAX_BEST, " selections"))
    if sweep.problem is not None:
        lines.append(Text(f"  {_first_line(sweep.problem)}", style="bold red"))
    running = [run for run in sweep.runs if run.is_running]
    rest = sorted((run for run in sweep.runs if not run.is_running), key=lambda run: list(_STYLES).index(run.state))
    whole = [line for run in running for line in _run(run, now, width - 2)]
    is_whole = len(lines) + len(whole) + min(2, len(rest)) < room
    lines += [Text("  ") + line for line in (whole if is_whole else map(_short, running))]
    free = room - len(lines) - 1
    num_shown = max(0, min(len(rest), MAX_RUNS if len(rest) <= free else free - 1))
    name_width = min(max([cell_len(plain(run.name)) for run in rest], default=0), max(12, width - 26), MAX_NAME)
    lines += [Text("  ") + _short(run, _name(run.name, name_width, pad=True)) for run in rest[:num_shown]]
    if num_shown < len(rest):
        lines.append(Text("  ") + _more(len(rest) - num_shown))
    return lines[:room] if len(lines) >= room else [*lines, Text()]
