"""The output of `paratune plan`: tables of memory and time, impossible options with reasons, and advice."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain, plain_lines
from paratune.base.units import NOT_AVAILABLE, format_bytes, format_duration
from paratune.console.notebook import html_of
from paratune.planning.constants import Bounded
from paratune.planning.enumerate import ALL_STRATEGIES, Impossible
from paratune.planning.predict import Prediction

if TYPE_CHECKING:
    import pandas

SIMILAR_SHARE = 0.1
"""Times that differ by a smaller share count as equal, and the simpler strategy is recommended."""
MAX_COST_RATIO = 2.0
"""Largest ratio of the device-hours of the recommended option to those of the cheapest one."""
SHORT_RUN_S = 120.0
"""A run that takes at most so many seconds on the fewest devices stays there: starting more processes takes as long."""
SMALL_MICRO_BATCH = 4
"""Where fewer samples fit at once, and the global batch needs several micro-batches, remedies are planned too."""
MAX_LINES = 15
"""Of a short plan, with the command that starts the training."""
_NAME_SHARE = 5
"""A strategy's name that is wider than the table's width divided by this number is broken into lines."""
_MAX_NAME = 21
"""Letters of a strategy with its remedy in the short table; the command has its options."""
_LEAST = ("precision", "price", "experiment")
"""Columns that it leaves out first where it is too wide."""
SCHEMA_VERSION = 1
_TEXTS = {"device", "with", "strategy", "precision", "fits", "experiment"}
"""Columns that are aligned to the left."""
_FITS = {"yes": "yes", "tight": "may", "no": "no", "unknown": NOT_AVAILABLE}


def recommended(predictions: Sequence[Prediction]) -> tuple[Prediction | None, str]:
    """Return the prediction of the option to run, and why; None if nothing fits with the upper bound of its memory.

    Options that train another experiment are left out. This is the fastest option that fits and needs at most twice the
    device-hours of the cheapest one. If several options take about the same time, or no time is known, it is the
    simplest one on the fewest devices. A run that takes at most two minutes on the fewest devices stays on these.
    """
    fitting = [
        prediction
        for prediction in predictions
        if prediction.fit in ("yes", "unknown") and not (prediction.option.remedy and prediction.option.remedy.changes)
    ]
    timed = [prediction for prediction in fitting if prediction.time is not None]
    if not timed:
        why = "the simplest on the fewest devices; the time of no option is known"
        return min(fitting, key=_effort, default=None), why
    fewest = min(prediction.option.setup.num_ranks for prediction in timed)
    on_fewest = [prediction for prediction in timed if prediction.option.setup.num_ranks == fewest]
    short = [
        prediction for prediction in on_fewest if (run := prediction.figures["run_s"]) and run.value <= SHORT_RUN_S
    ]
    quick, why = min(_affordable(timed), key=_seconds), "the fastest that fits"
    if quick is not min(timed, key=_seconds):
        why += f" without taking more than {MAX_COST_RATIO:g} times the device-hours of the cheapest"
    affordable = _affordable(short or timed)
    limit = (1 + SIMILAR_SHARE) * min(map(_seconds, affordable))
    similar = [prediction for prediction in affordable if _seconds(prediction) <= limit]
    best = min(similar, key=lambda prediction: (*_effort(prediction), _seconds(prediction)))
    best_run, has_fewer = best.figures["run_s"], best.option.setup.num_ranks < quick.option.setup.num_ranks
    if short and best_run is not None and has_fewer:
        why = f"a run of {format_duration(best_run.value)} gains nothing from starting more processes"
    elif quick is not best:
        gain = "on fewer devices" if has_fewer else "simpler"
        why = f"about as fast as {quick.label}, {why}, and {gain}"
    return best, why


def _affordable(timed: Sequence[Prediction]) -> list[Prediction]:
    """Return the options that need at most twice the device-hours of the cheapest one."""
    costs = [prediction.option.setup.num_ranks * _seconds(prediction) for prediction in timed]
    return [prediction for prediction, cost in zip(timed, costs, strict=True) if cost <= MAX_COST_RATIO * min(costs)]


def _seconds(prediction: Prediction) -> float:
    """Return the seconds of a sample, with which options with different global batches are compared."""
    assert prediction.time is not None
    return prediction.time.total.value / prediction.option.setup.global_batch_size


def _room(prediction: Prediction) -> tuple[bool, int]:
    """Return the order of options of which none is recommended: whether it fits, and its free memory."""
    return prediction.fit == "yes", prediction.room_bytes or 0


def _effort(prediction: Prediction) -> tuple[int, int]:
    """Return the number of devices, and the place of the strategy in the list of all, the simplest first."""
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in ALL_STRATEGIES))
    setup = prediction.option.setup
    place = kinds.index(setup.strategy.kind) if setup.strategy.kind in kinds else len(kinds)
    return setup.num_ranks, 2 * place + (setup.traits.states_on == "cpu")


def needs_remedies(predictions: Sequence[Prediction]) -> bool:
    """Return whether nothing fits, or only a few samples at once."""
    best, _ = recommended(predictions)
    if best is None:
        return bool(predictions) and all(prediction.fits is not None for prediction in predictions)
    setup = best.option.setup
    # A pipeline has small micro-batches for its schedule, where larger ones fit.
    is_largest = setup.grad_accum_steps > 1 and setup.micro_batch_size >= (best.largest_micro_batch or 0)
    return best.option.is_open and setup.micro_batch_size < SMALL_MICRO_BATCH and is_largest


def plan_advice(predictions: Sequence[Prediction], *, all_tried: bool = False) -> Iterator[str]:
    """Yield the advice on all possible options as sentences, the answer first.

    `all_tried` is whether all strategies were planned.
    """
    best, why = recommended(predictions)
    several = len({prediction.machine.name for prediction in predictions}) > 1

    def of_kind(one: Prediction) -> str:
        return f"{one.machine.name}: " if several else ""

    if best is not None:
        run = best.figures["run_s"]
        lasts = "" if run is None else f", {_span_text(run, as_clock=True)} in all"
        yield f"{of_kind(best)}Run {best.label}: {why}; {format_bytes(best.memory.total)}{lasts}."
        if best.may_fit_micro_batch != best.largest_micro_batch:
            yield f"Micro-batches of {best.may_fit_micro_batch} may fit: the upper bound of their memory does not."
    if any(prediction.fits is None for prediction in predictions):
        yield "The memory of the device is unknown, so whether it fits is too: name a device (--device)."
    elif predictions and best is None:
        same = [one for one in predictions if one.option.remedy is None or not one.option.remedy.changes]
        nearest, others = max(same, key=_room), [one for one in predictions if one not in same]
        other = next((one for fit in ("yes", "tight") for one in others if one.fit == fit), None)
        if nearest.fits:
            usable = format_bytes(nearest.memory.total + (nearest.room_bytes or 0))
            yield (
                f"{of_kind(nearest)}{nearest.label} may fit: {format_bytes(nearest.memory.total)} is expected, and "
                f"{format_bytes(nearest.memory.bounds[1])} is possible, of {usable} that programs can use."
            )
        else:
            lacks = f"{format_bytes(-(nearest.room_bytes or 0))} of {format_bytes(nearest.memory.total)}"
            remedies = "more devices, or larger ones" if all_tried or other is not None else "--strategies all"
            yield f"Nothing fits. {of_kind(nearest)}{nearest.label} comes nearest: it lacks {lacks}; try {remedies}."
        if other is not None and other.option.remedy is not None:
            settings = " ".join(f"--set '{setting}'" for setting in other.option.remedy.settings)
            which = f"{'fits' if other.fit == 'yes' else 'may fit'} ({other.option.remedy.changes})"
            yield f"Another experiment {which}: {of_kind(other)}{other.label}: {settings}."


@dataclass(frozen=True)
class Plan:
    """The result of `paratune plan`."""

    heading: tuple[str, ...]
    """Model, data and machine, which all options share."""
    predictions: tuple[Prediction, ...]
    impossible: tuple[Impossible, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Notes on how to read the figures."""
    recommended: Prediction | None = None
    about: dict[str, Any] | None = None
    """The heading as plain data."""
    start: str | None = None
    """The command that trains the recommended option."""
    shows_all: bool = False
    """Whether to print all options, notes and terms of memory; else at most `MAX_LINES` lines in a terminal."""

    @property
    def fits(self) -> bool | None:
        """Whether at least one option without a remedy fits; None if the memory of the machine is unknown."""
        verdicts = {prediction.fits for prediction in self.predictions if prediction.option.remedy is None}
        return True if True in verdicts else None if None in verdicts else False

    def table(self) -> "pandas.DataFrame":
        """Return the fields of `--json` of each possible option, a row for each, in the order of `predictions`."""
        import pandas as pd

        return pd.json_normalize(self.as_dict()["options"])

    def _repr_html_(self) -> str:
        """Return the output of the command, for notebooks."""
        return html_of(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for `--json`; unknown values are None."""
        return {
            "generator": "paratune plan",
            "schema_version": SCHEMA_VERSION,
            **(self.about or {}),
            "options": [prediction.as_dict() for prediction in self.predictions],
            "impossible": [asdict(rejected) for rejected in self.impossible],
            "recommended": None if self.recommended is None else self.predictions.index(self.recommended),
            "advice": list(self.advice),
            "notes": list(self.notes),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._whole(options) if self.shows_all else self._short(console, options)
        if self.start is not None:
            yield Text(plain(f"Start it with: {self.start}"))

    def _short(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the answer, the table of the best options, and as many notes as there is room for."""
        best, first = self._best(), self.heading[: 1 + (len(self.heading) > 1)]
        texts = [Text(plain(line), style="bold" * (not number)) for number, line in enumerate(self.advice[:1])]
        texts += [Text(plain("; ".join(first)), style="dim")] if "machines" not in (self.about or {}) else []
        more = [Text(plain(line)) for line in (*self.advice[1:], *self.notes, *impossible_lines(self.impossible))]
        all_of_them = f"of {len(self.predictions)} options; all, with notes and memory: --all"
        start = [] if self.start is None else [Text(plain(f"Start it with: {self.start}"))]
        hint = Text(f"{len(best)} {all_of_them}", style="dim")
        height = sum(len(text.wrap(console, options.max_width)) for text in (*texts, hint, *start))
        best = best[: max(1, MAX_LINES - height - 1)]
        hint = Text(f"{len(best)} {all_of_them}", style="dim")
        yield from texts
        if best:
            yield self._table(self._columns(best, options.max_width, short=True), best)
        room = MAX_LINES - height - 1 - len(best)
        for text in more:
            room -= len(text.wrap(console, options.max_width))
            if room >= 0:
                yield text
        yield hint

    def _best(self) -> list[Prediction]:
        """Return the best option of each kind of device, else of each remedy, else of each number of devices."""
        machines = {prediction.machine.name for prediction in self.predictions}
        remedies = {prediction.option.remedy for prediction in self.predictions}
        groups: dict[object, list[Prediction]] = {}
        for prediction in self.predictions:
            key: object = prediction.option.setup.num_ranks
            if max(len(machines), len(remedies)) > 1:
                key = prediction.machine.name if len(machines) > 1 else prediction.option.remedy
            groups.setdefault(key, []).append(prediction)
        best = [
            self.recommended if self.recommended in group else recommended(group)[0] or max(group, key=_room)
            for group in groups.values()
        ]
        return sorted(best, key=lambda one: one is not self.recommended)

    def _whole(self, options: ConsoleOptions) -> RenderResult:
        for line in self.heading:
            yield Text(plain(line))
        yield Text()
        columns = self._columns(self.predictions, options.max_width // _NAME_SHARE)
        keys = [name for name in ("device", "with", "strategy", "devices", "precision") if name in columns]
        known = [name for name in ("step", "epoch", "price") if name in columns]
        for names in (("micro-batch", "memory", "fits", "left", "largest", "may fit"), known):
            if columns and names:
                shown = {name: columns[name] for name in (*keys, *names) if name in columns}
                yield self._table(shown, self.predictions)
                yield Text()
        for sentence in impossible_lines(self.impossible):
            yield Text(plain(f"not possible: {sentence}"), style="yellow")
        for line in self.notes:
            yield Text(plain(line), style="dim")
        if self.recommended is not None:
            terms = sorted(self.recommended.memory.terms.items(), key=lambda term: -term[1])
            text = ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in terms if size)
            yield Text(plain(f"The peak memory of {self.recommended.label} is {text}."), style="dim")
        if self.advice:
            yield Text()
        for line in self.advice:
            yield Text(plain(f"- {line}"))

    def _table(self, columns: dict[str, list[str]], predictions: Sequence[Prediction]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name in columns:
            table.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
        for prediction, *texts in zip(predictions, *columns.values(), strict=True):
            style = "dim" if prediction.fits is False else "bold green" if prediction is self.recommended else None
            table.add_row(*(Text(plain_lines(text)) for text in texts), style=style)
        return table

    def _columns(self, predictions: Sequence[Prediction], width: int, *, short: bool = False) -> dict[str, list[str]]:
        """Return the columns of a table by heading, without those that are equal or unknown for all options.

        A strategy wider than `width` has a line for each of its options. A short table has at most that width, and a
        line for each option.
        """
        columns: dict[str, list[str]] = {}
        for prediction in predictions:
            option, figures, room = prediction.option, prediction.figures, prediction.room_bytes
            setup, remedy, price = option.setup, option.remedy, figures["price"]
            kind = option.name if remedy is None else f"{setup.strategy.kind}, {remedy.name}"
            strategy = kind if len(kind) <= _MAX_NAME else f"{kind[: _MAX_NAME - 3]}..."
            name = option.name if len(option.name) <= width else option.name.replace(":", "\n:")
            accumulated = f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
            on_nodes = f"{setup.num_nodes} x {setup.ranks_per_node}"
            texts = {
                "device": prediction.machine.name,
                "with": "-" if remedy is None else remedy.name,
                "strategy": strategy if short else name,
                "devices": on_nodes if setup.num_nodes > 1 else str(setup.num_ranks),
                "precision": setup.precision.name,
                "micro-batch": f"{setup.micro_batch_size}{accumulated}",
                "memory": format_bytes(prediction.memory.total),
                "fits": _FITS[prediction.fit],
                "left": f"-{format_bytes(-room)}" if room is not None and room < 0 else format_bytes(room),
                "largest": str(prediction.largest_micro_batch or NOT_AVAILABLE),
                "may fit": str(prediction.may_fit_micro_batch or NOT_AVAILABLE),
                "step": _span_text(figures["step_s"], is_short=short),
                "epoch": _span_text(figures["epoch_s"], as_clock=True, is_short=short),
                "price": NOT_AVAILABLE if price is None else f"{price.value:.3g}",
                "experiment": "other" if remedy is not None and remedy.changes else "same",
            }
            for column, text in texts.items():
                columns.setdefault(column, []).append(text)
        for name in ("device", "precision", "with", "experiment"):
            if len({*columns.get(name, ())}) == 1:
                del columns[name]
        columns = {name: texts for name, texts in columns.items() if name == "fits" or {*texts} != {NOT_AVAILABLE}}
        for name in ("left", "largest", "may fit", "with") if short else ():
            columns.pop(name, None)
        # What does not fit into a narrow terminal, the least important first; one of the two times stays.
        for name in ("step", *_LEAST) if short and "epoch" in columns else _LEAST if short else ():
            if sum(max(map(len, (column, *texts))) + 2 for column, texts in columns.items()) > width:
                columns.pop(name, None)
        return columns


def impossible_lines(impossible: Sequence[Impossible]) -> list[str]:
    """Return a line for each reason, with all options that are impossible for this reason."""
    by_reason: dict[str, dict[str, list[int]]] = {}
    for rejected in impossible:
        numbers = by_reason.setdefault(rejected.reason, {}).setdefault(rejected.strategy, [])
        if rejected.num_ranks is not None and rejected.num_ranks not in numbers:
            numbers.append(rejected.num_ranks)
    lines = []
    for reason, numbers_of in by_reason.items():
        names_of: dict[tuple[int, ...], list[str]] = {}
        for name, numbers in numbers_of.items():  # strategies with equal numbers are joined
            names_of.setdefault(tuple(sorted(numbers)), []).append(name)
        texts = []
        for equal, names in names_of.items():
            on = f" on {' or '.join(map(str, equal))} device{'s' * (equal != (1,))}" if equal else ""
            texts.append(f"{', '.join(names)}{on}")
        lines.append(f"{'; '.join(texts)}: {reason}")
    return lines


def _span_text(span: Bounded | None, *, as_clock: bool = False, is_short: bool = False) -> str:
    """Return a time with its bounds, such as "12 ms (9.31 to 17.4)"; as a clock "5:02 (4:48 to 5:18)" (h:min:s).

    If it is short, it has no bounds.
    """
    if span is None:
        return NOT_AVAILABLE
    if not as_clock:
        unit, shown = ("ms", span.times(1000)) if span.high < 1 else ("s", span)
        bounds = "" if is_short else f" ({shown.low:.3g} to {shown.high:.3g})"
        return f"{shown.value:.3g} {unit}{bounds}"
    texts = []
    for seconds in (span.value, span.low, span.high):
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        texts.append(f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}")
    return texts[0] if is_short else "{} ({} to {})".format(*texts)
