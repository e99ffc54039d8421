"""Tables of a matrix in the layout of published studies, so that they can be placed next to the published ones.

A layout has the orientation, the units and the order of figures of the study's table. docs/howto/studies.md names the
matrix of each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paratune.base.units import NOT_AVAILABLE, format_percent, percent_change
from paratune.errors import ConfigError, did_you_mean
from paratune.reports.systems import measures
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.efficiency import EFFICIENCY, GOODPUT, efficiency, goodput
from paratune.reports.systems.measures import Amount, ReportMeasure
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table

KEY = "layout"
Format = Literal["clock", "seconds", "megabytes", "number", "percent", "ratio"]


@dataclass(frozen=True)
class LayoutFigure:
    """A figure of a published table."""

    label: str
    measure: ReportMeasure
    form: Format
    find: Callable[[Systems, Configuration], Amount] | None = None
    """Computes it; None for a measure of runs."""

    def amount(self, systems: Systems, configuration: Configuration) -> Amount:
        """Return the figure of a configuration."""
        if self.find is not None:
            return self.find(systems, configuration)
        return systems.amount(self.measure, configuration)


@dataclass(frozen=True)
class StudyLayout:
    """The layout of a table of a study."""

    title: str
    figures: tuple[LayoutFigure, ...]
    splits: tuple[str, ...] = ()
    """Splits whose headline scores follow the figures."""
    has_configurations_in_columns: bool = False
    compares: bool = False
    """Whether each figure has its change against the baseline in per cent, with an arrow."""


def _speed_up(systems: Systems, configuration: Configuration) -> Amount:
    """Return the training time of the baseline over that of the configuration."""
    own, base = (
        systems.amount(measures.TRAIN_S, member).center
        for member in (configuration, systems.baseline_of(configuration))
    )
    value = None if own is None or base is None or own <= 0 else base / own
    runs = dict.fromkeys((run.name for run in configuration.runs), value or 0.0)
    return Amount(SPEED_UP, runs if value is not None else {}, value, len(configuration.runs), is_of_all=True)


SPEED_UP = ReportMeasure("speed_up", "Speed-up", "count", 1, "training time of the baseline over its own")
_TIME = LayoutFigure("Time (mm:ss)", measures.TRAIN_S, "clock")
_PHASES = tuple(
    LayoutFigure(label, measure, "seconds")
    for label, measure in zip(
        ("Get train batch (s)", "Forward (s)", "Backward (s)", "Optimizer (s)"), measures.TOTAL_PARTS, strict=False
    )
)
LAYOUTS: Mapping[str, StudyLayout] = {
    "evora": StudyLayout(
        "Évora, tables 1 to 5",
        (
            _TIME,
            LayoutFigure("Peak memory allocated per GPU (MB)", measures.PEAK_BYTES, "megabytes"),
            LayoutFigure("Total memory (MB)", measures.SUM_BYTES, "megabytes"),
        ),
        ("test",),
        has_configurations_in_columns=True,
    ),
    "ielts": StudyLayout(
        "IELTS: scores and time per epoch",
        (LayoutFigure("Time per epoch (mm:ss)", measures.EPOCH_S, "clock"),),
        ("validation", "test"),
        has_configurations_in_columns=True,
        compares=True,
    ),
    "oakridge": StudyLayout("Oak Ridge: seconds of the four operations", _PHASES),
    "imdb": StudyLayout(
        "IMDB: time, speed-up and accuracy", (_TIME, LayoutFigure("Speed-up", SPEED_UP, "ratio", _speed_up)), ("test",)
    ),
    "squad": StudyLayout(
        "Chasing efficiency",
        (
            LayoutFigure("Run time (mm:ss)", measures.TRAIN_S, "clock"),
            LayoutFigure("Throughput (samples/s)", measures.SAMPLES_PER_S, "number"),
            LayoutFigure("Validation loss", measures.score("validation", "loss"), "number"),
            LayoutFigure("GPU utilisation (%)", measures.UTILISATION, "percent"),
            LayoutFigure("Statistical efficiency (%)", EFFICIENCY, "percent", efficiency),
            LayoutFigure("Goodput (samples/s)", GOODPUT, "number", goodput),
        ),
        compares=True,
    ),
}
"""Layouts by the name of the study's folder below configs/studies."""


def check_layout(name: str) -> None:
    """Check that a layout exists.

    Raises:
        ConfigError: There is no layout of this name.
    """
    if name not in LAYOUTS:
        raise ConfigError(
            f"--layout {name} is not a layout ({', '.join(LAYOUTS)}){did_you_mean(name, LAYOUTS)}",
            code="cli.unknown_name",
            option="--layout",
        )


def layout_table(systems: Systems, name: str) -> Table:
    """Return the measured configurations, at least one, in a layout of `LAYOUTS`."""
    layout = LAYOUTS[name]
    members = systems.measured
    figures = [*layout.figures, *_scores(systems, layout.splits)]
    cells = [[_cell(systems, member, figure, compares=layout.compares) for member in members] for figure in figures]
    notes = ["Means over the runs of a configuration."]
    if layout.compares:
        bases = dict.fromkeys(systems.baseline_of(member).label for member in members)
        notes.append(f"In brackets: the change against {' or '.join(bases)}; an arrow shows its direction.")
    columns: list[Heading] = [("", "figure"), *(member.label for member in members)]
    rows: list[Row] = [[figure.label, *row] for figure, row in zip(figures, cells, strict=True)]
    if not layout.has_configurations_in_columns:
        columns = [("Configuration", "configuration"), *((figure.label, figure.measure.key) for figure in figures)]
        rows = [[member.label, *(row[at] for row in cells)] for at, member in enumerate(members)]
    return make_table(KEY, layout.title, columns, rows, 1, notes)


def _scores(systems: Systems, splits: Sequence[str]) -> list[LayoutFigure]:
    """Return the headline scores of the task, of the splits that have any."""
    cells = [item.cell for member in systems.measured for item in member.cell_runs if item.cell.counts]
    metrics = dict.fromkeys(metric for cell in cells for metric in cell.metrics)
    runs = [run for member in systems.measured for run in member.scored]
    known = [split for split in splits if any(run.get(("summary", "scores", split)) for run in runs)]
    selected = [
        measures.score(split, metric) for split in known or (["validation"] if splits else []) for metric in metrics
    ]
    return [LayoutFigure(measure.label, measure, "number") for measure in selected]


def _cell(systems: Systems, configuration: Configuration, figure: LayoutFigure, *, compares: bool) -> TableCell:
    amount = figure.amount(systems, configuration)
    text = figure_text(amount.center, figure)
    base = systems.baseline_of(configuration)
    percent = None
    if compares and configuration is not base and not systems.differing[configuration.label].refused:
        percent = percent_change(amount.center, figure.amount(systems, base).center)
    if percent is not None:
        arrow = "" if format_percent(percent) == format_percent(0.0) else " ↑" if percent > 0 else " ↓"
        text = f"{text} ({format_percent(percent)}{arrow})"
    return TableCell(
        text, amount.center, tuple(amount.values), amount.measure.source, deviation=amount.deviation,
        change_percent=percent,
    )  # fmt: skip


def figure_text(value: float | None, figure: LayoutFigure) -> str:
    """Return a value as the study writes it: mm:ss, megabytes of 10^6 bytes, per cent."""
    if value is None:
        return NOT_AVAILABLE
    match figure.form:
        case "clock":
            minutes, seconds = divmod(round(value), 60)
            return f"{minutes:02}:{seconds:02}"
        case "megabytes":
            return f"{value / 1e6:,.0f}"
        case "percent":
            return f"{100 * value:.1f}"
        case "ratio":
            return f"{value:.2f}"
        case "seconds":
            return f"{value:,.1f}"
    return f"{value:.4f}" if figure.measure.is_quality else f"{value:,.1f}"
