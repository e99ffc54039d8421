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
_NAME_SHARE = 5
"""A strategy's name that is wider than the table's width divided by this number is broken into lines."""
SCHEMA_VERSION = 1
_TEXTS = {"strategy", "precision", "fits"}
"""Columns that are aligned to the left."""


def recommended(predictions: Sequence[Prediction]) -> tuple[Prediction | None, str]:
    """Return the prediction of the option to run, and why; None if nothing fits.

    This is the fastest option that fits and needs at most twice the device-hours of the cheapest one. If several
    options take about the same time, or no time is known, it is the simplest one on the fewest devices. A run that
    takes at most two minutes on the fewest devices stays on these.
    """
    fitting = [prediction for prediction in predictions if prediction.fits is not False]
    fitting = [prediction for prediction in fitting if prediction.fit != "tight"] or fitting
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


def _effort(prediction: Prediction) -> tuple[int, int]:
    """Return the number of devices, and the place of the strategy in the list of all, the simplest first."""
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in ALL_STRATEGIES))
    setup = prediction.option.setup
    place = kinds.index(setup.strategy.kind) if setup.strategy.kind in kinds else len(kinds)
    return setup.num_ranks, 2 * place + (setup.traits.states_on == "cpu")


def plan_advice(predictions: Sequence[Prediction], *, all_tried: bool = False) -> Iterator[str]:
    """Yield the advice on all possible options as sentences, the most useful first.

    `all_tried` is whether all strategies were planned.
    """
    best, why = recommended(predictions)
    if best is not None:
        yield f"Run {best.label}: {why}."
        if best.fit == "tight":
            usable = best.memory.total + (best.room_bytes or 0)
            yield (
                f"Its memory is tight: {format_bytes(best.memory.total)} is expected, and "
                f"{format_bytes(best.memory.bounds[1])} is possible, of {format_bytes(usable)} that programs can use."
            )
    fits = any(prediction.fits for prediction in predictions)
    if any(prediction.fits is None for prediction in predictions):
        yield "The memory of the device is unknown, so whether it fits is too: name a device (--device)."
    elif predictions and not fits:
        nearest = max(predictions, key=lambda prediction: prediction.room_bytes or 0)
        lacks = f"{format_bytes(-(nearest.room_bytes or 0))} of {format_bytes(nearest.memory.total)}"
        remedies = ["more devices, or larger ones" if all_tried else "--strategies all"]
        if nearest.option.setup.micro_batch_size > 1:
            remedies.insert(0, "batch.micro_batch_size: auto")
        if nearest.option.setup.activation_checkpointing is None:
            remedies.insert(0, "train.activation_checkpointing: 1")
        yield f"Nothing fits. {nearest.label} comes nearest: it lacks {lacks}; try {', '.join(remedies)}."


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

    @property
    def fits(self) -> bool | None:
        """Whether at least one option fits; None if the memory of the machine is unknown."""
        verdicts = {prediction.fits for prediction in self.predictions}
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
        for line in self.heading:
            yield Text(plain(line))
        yield Text()
        for columns in self._tables(options.max_width // _NAME_SHARE):
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
            for name in columns:
                table.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
            for prediction, *texts in zip(self.predictions, *columns.values(), strict=True):
                style = "dim" if prediction.fits is False else "bold green" if prediction is self.recommended else None
                table.add_row(*(Text(plain_lines(text)) for text in texts), style=style)
            yield table
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

    def _tables(self, width: int) -> Iterator[dict[str, list[str]]]:
        """Yield the columns of the tables of memory and of times, each after those that distinguish options.

        A strategy wider than `width` has a line for each of its options.
        """
        columns: dict[str, list[str]] = {}
        for prediction in self.predictions:
            name, setup, room = prediction.option.name, prediction.option.setup, prediction.room_bytes
            accumulated = f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
            on_nodes, price = f"{setup.num_nodes} x {setup.ranks_per_node}", prediction.figures["price"]
            texts = {
                "strategy": name if len(name) <= width else name.replace(":", "\n:"),
                "devices": on_nodes if setup.num_nodes > 1 else str(setup.num_ranks),
                "precision": setup.precision.name,
                "micro-batch": f"{setup.micro_batch_size}{accumulated}",
                "memory": format_bytes(prediction.memory.total),
                "fits": NOT_AVAILABLE if prediction.fit == "unknown" else prediction.fit,
                "left": f"-{format_bytes(-room)}" if room is not None and room < 0 else format_bytes(room),
                "largest": str(prediction.largest_micro_batch or NOT_AVAILABLE),
                "step": _span_text(prediction.figures["step_s"]),
                "epoch": _span_text(prediction.figures["epoch_s"], as_clock=True),
                "price": NOT_AVAILABLE if price is None else f"{price.value:.3g}",
            }
            for column, text in texts.items():
                columns.setdefault(column, []).append(text)
        keys = ("strategy", "devices", *(["precision"] if len(set(columns.get("precision", ()))) > 1 else []))
        known = [name for name in ("step", "epoch", "price") if set(columns.get(name, ())) - {NOT_AVAILABLE}]
        for names in (("micro-batch", "memory", "fits", "left", "largest"), known):
            if columns and names:
                yield {name: columns[name] for name in (*keys, *names)}


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


def _span_text(span: Bounded | None, *, as_clock: bool = False) -> str:
    """Return a time with its bounds, such as "12 ms (9.31 to 17.4)"; as a clock "5:02 (4:48 to 5:18)" (h:min:s)."""
    if span is None:
        return NOT_AVAILABLE
    if not as_clock:
        unit, shown = ("ms", span.times(1000)) if span.high < 1 else ("s", span)
        return f"{shown.value:.3g} {unit} ({shown.low:.3g} to {shown.high:.3g})"
    texts = []
    for seconds in (span.value, span.low, span.high):
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        texts.append(f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}")
    return "{} ({} to {})".format(*texts)
