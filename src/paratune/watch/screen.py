"""Shows watched runs on a terminal; lines break only between items."""

import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paratune.base.text import plain
from paratune.base.units import format_bytes, format_duration, format_number, format_share
from paratune.records.scores import ordered_scores, scores_text
from paratune.watch import chart
from paratune.watch.board import BoardView, SweepView
from paratune.watch.run import RunView

MAX_RUNS = 30
"""Maximum number of listed runs of a matrix; the others are counted."""
_GAP = "   "
_LEAST_NAME = 20
"""Columns of a name that is cut so that the time and the score of the run fit."""
_STYLES = {
    **dict.fromkeys(("failed", "killed", "damaged"), "bold red"),
    **dict.fromkeys(("gone", "stopped"), "yellow"),
    **dict.fromkeys(("waiting", "skipped", "finished"), "dim"),
}
"""Of the states of runs that do not run normally, in the order of the lines of a matrix."""


@dataclass(frozen=True)
class Screen:
    """A view that fits the width of the terminal, and its height if `height` is set."""

    view: BoardView
    height: int | None = None
    footer: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(20, options.max_width)
        # The encoding must have the dots; a view that is printed for a program has no chart.
        most = chart.MAX_LINES if self.height is not None else chart.MAX_LINES // 2 * console.is_terminal
        for line in self._lines(width, most * (not options.ascii_only)):
            line.truncate(width, overflow="ellipsis")
            if options.ascii_only:  # the terminal can encode nothing else
                line.plain = line.plain.replace("…", ".").encode("ascii", "replace").decode()
            yield line

    def _lines(self, width: int, most: int) -> list[Text]:
        """Return the runs, and the matrices in equal shares of the lines that are left; a run alone has its curves."""
        view = self.view
        states = Counter("running" if run.is_running else run.state for run in view.runs)
        states["running"] += sum(sweep.counts.get("running", 0) for sweep in view.sweeps)
        items = [Text("paratune watch", style="bold"), Text(time.strftime("%H:%M:%S", time.localtime(view.time)))]
        items += [_styled(state, f"{count} ") for state, count in (states + Counter(view.others)).items()]
        idle = [] if view.runs or view.sweeps else [f"nothing is running below {', '.join(map(plain, view.folders))}"]
        head = [*_flow(items, width), *_flow(idle, width), Text()]
        foot = [Text(self.footer, style="dim")] if self.footer else []
        room = sys.maxsize if self.height is None else max(0, self.height - len(head) - len(foot))
        runs = sorted(view.runs, key=lambda run: (not run.is_running, run.folder))
        is_full = len(view.sweeps) + bool(runs) > room  # not even a line for each matrix: a line each, and a count
        lines = _listed(runs, (), view.time, width, len(runs) if is_full else room - len(view.sweeps))
        for place, sweep in enumerate(view.sweeps):
            share = max(1, (room - len(lines)) // (len(view.sweeps) - place))
            lines += _sweep(sweep, view.time, width, share)
        if len(runs) == 1 and not view.sweeps:
            drawn = chart.curves(runs[0], width, min(most, room - len(lines) - 1))
            lines += [Text()] * bool(drawn) + drawn
        return [*head, *_counted(lines, room), *foot]


def _styled(state: str, before: str = "") -> Text:
    return Text(before + state, style=_STYLES.get(state, "green"))


def _name(text: str, most: int) -> Text:
    """Return a name of so many columns; a longer one loses its middle: runs often differ at the end."""
    name = plain(text)
    return Text(name if cell_len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}", style="bold")


def _first_line(text: str | None) -> str:
    return plain((text or "").strip().split("\n", 1)[0])


def _flow(items: Iterable[Text | str], width: int) -> list[Text]:
    """Return the items that are not empty next to each other on as many lines as needed.

    Only an item that is longer than a line is broken, between words.
    """
    lines: list[Text] = []
    is_broken = False
    for item in items:
        text = item if isinstance(item, Text) else Text(item)
        if not text:
            continue
        if lines and not is_broken and lines[-1].cell_len + len(_GAP) + text.cell_len <= width:
            lines[-1] = lines[-1] + _GAP + text
        else:
            parts = text.wrap(Console(), width - 2) if text.cell_len > width - 2 else [text]
            is_broken = len(parts) > 1
            for part in parts:
                lines.append(Text("  " if lines else "") + part)
    return lines


def _items(run: RunView, now: float, width: int, *, is_short: bool = False) -> Iterator[Text | str]:
    """Yield the parts of the text on a run, the most important ones first: name, state, reason, then figures.

    Those of a finished run begin with its time and its scores; `is_short`: only the score that selects.
    """
    is_finished = run.state == "finished"
    yield _name(run.name, width - len(_GAP) - len(run.state))
    yield _styled(run.state)
    yield _first_line(run.reason).removeprefix(f"{plain(run.folder)}/")
    if (silent_s := run.silent_s(now)) is not None:
        yield Text(f"last sign of progress {format_duration(silent_s)} ago", style="yellow")
    yield "" if run.total_s is None else f"took {format_duration(run.total_s)}"
    scores, split = "", plain(run.scored_on or "scores")
    if run.scores and is_short:
        name = min(ordered_scores(run.scores, run.metric), key=lambda name: name == "loss")
        scores = f"{split} {plain(name)} {format_number(run.scores[name])}"
    elif run.scores:
        # The scores of a finished run are those of the kept step, which may be an earlier one.
        at = "" if run.scored_at is None else f" at {'kept ' * is_finished}step {run.scored_at:,}"
        scores = f"{split}{at}: {plain(scores_text(run.scores, run.metric))}"
    if is_finished:
        yield scores
    if run.step is not None and run.state not in ("waiting", "skipped"):
        share = f" of {run.num_steps:,} ({format_share(run.step / run.num_steps)})" if run.num_steps else ""
        yield f"step {run.step:,}{share}"
    yield f"about {format_duration(run.left_s)} left" if run.left_s else ""
    if not is_finished:
        yield scores
    if run.loss is not None:
        yield f"{'training loss at the last step' if is_finished else 'loss'} {format_number(run.loss)}"
    yield "" if run.learning_rate is None else f"learning rate {run.learning_rate:.3g}"
    yield "" if run.tokens_per_s is None else f"{format_number(run.tokens_per_s)} tokens/s"
    yield "" if run.samples_per_s is None else f"{format_number(run.samples_per_s)} samples/s"
    yield "" if run.memory_bytes is None else f"memory {format_bytes(run.memory_bytes)}"
    ranks = f"{run.world_size} ranks" if (run.world_size or 1) > 1 else ""
    yield from (Text(plain(str(part)), style="dim") for part in (run.strategy, ranks, run.device, run.host) if part)


def _listed(full: Sequence[RunView], rest: Sequence[RunView], now: float, width: int, room: int) -> list[Text]:
    """Return the runs of `full` on several lines if these fit, otherwise on a line each, and the others on a line each.

    A line has the first items that fit. Reasons, and the time and the score of finished runs, continue below if there
    is room for all of them; otherwise reasons are cut between words, and names in the middle. What does not fit is
    counted.
    """
    lines = [line for run in full for line in _flow(_items(run, now, width), width)]
    if len(lines) + min(2, len(rest)) > room:
        lines, rest = [], [*full, *rest]
    whole = [line for run in rest for line in _short(run, now, width)]
    if len(lines) + len(whole) > room:
        whole = [line for run in rest for line in _short(run, now, width, is_cut=True)]
    return _counted([*lines, *whole], room)


def _short(run: RunView, now: float, width: int, *, is_cut: bool = False) -> list[Text]:
    """Return the line of a run; unless `is_cut`, it continues below with what each run has to show."""
    items = list(_items(run, now, width, is_short=True))
    needed = items[: 5 if run.state == "finished" else 3]
    if is_cut and run.state == "finished":
        left = width - sum(cell_len(str(item)) + len(_GAP) for item in needed[1:] if item)
        items[0] = _name(run.name, max(_LEAST_NAME, left))
        needed = items[:1]
    elif is_cut:
        left = width - cell_len(f"{items[0]}{items[1]}") - 2 * len(_GAP)
        items[2] = needed[2] = textwrap.shorten(str(items[2]), max(1, left), placeholder="…")
    return _flow(items, width)[: len(_flow(needed, width))]


def _counted(lines: list[Text], room: int) -> list[Text]:
    """Return the lines that fit; the last one counts the others."""
    if len(lines) > room:
        lines[max(0, room - 1) :] = [Text(f"... and {len(lines) - room + 1} more", style="dim")]
    return lines[: max(0, room)]


def _sweep(sweep: SweepView, now: float, width: int, room: int) -> list[Text]:
    """Return a matrix: its state, its running runs, then the others by state."""
    state = "waiting for listed runs" if sweep.is_awaited else "matrix not running"
    if sweep.is_running:
        state = "matrix running"
    elif sweep.counts and not sweep.counts.keys() - {"finished", "skipped"}:
        state = "matrix finished"
    left = "" if sweep.left_s is None else f"about {format_duration(sweep.left_s)} left"
    counts = (_styled(state, f"{count} ") for state, count in sweep.counts.items())
    lines = _flow([_name(sweep.name, width - 2), state, *counts, left], width)
    if sweep.problem is not None:
        lines += _flow([Text(_first_line(sweep.problem), style="bold red")], width)
    running = [run for run in sweep.runs if run.is_running]
    rest = sorted((run for run in sweep.runs if not run.is_running), key=lambda run: list(_STYLES).index(run.state))
    shown = _listed(running, rest, now, width - 2, min(MAX_RUNS, room - len(lines)))
    return [*lines, *(Text("  ") + line for line in shown)][:room]
