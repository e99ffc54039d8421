"""Tables of a matrix in the layout of published studies, so that they can be placed next to the published ones.

A layout is a view: a list of measures with the labels and units of the study, and an orientation.
docs/howto/studies.md names the matrix of each.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paratune.base.units import counted
from paratune.reports.amounts import Scale
from paratune.reports.measures import EFFICIENCY, GOODPUT, MEASURES, score
from paratune.reports.systems.building import SPEED_UP, build, names, scalings
from paratune.reports.systems.model import Systems
from paratune.reports.systems.tables import quality_measures
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table

KEY = "layout"
CLOCK, SECONDS, MEGABYTES = Scale("mm:ss", 1.0, 0), Scale("s", 1.0, 1), Scale("MB", 1e6, 0)
PER_CENT, RATE, TIMES, LOSS = Scale("%", 0.01, 1), Scale("samples/s", 1.0, 1), Scale("×", 1.0, 2), Scale("", 1.0, 4)


@dataclass(frozen=True)
class StudyLayout:
    """The layout of the tables of a study."""

    title: str
    figures: Mapping[str, tuple[str, Scale]]  # label and unit of the study, by key of the measure
    splits: tuple[str, ...] = ()
    """Splits whose headline scores follow the figures; the validation set where runs have no others."""
    has_configurations_in_columns: bool = False
    compares: bool = False  # whether each figure has its change against the baseline in per cent, with an arrow


LAYOUTS: Mapping[str, StudyLayout] = {
    "evora": StudyLayout(
        "Évora, tables 1 to 5",
        {
            "train_s": ("Time", CLOCK),
            "peak_memory_largest_bytes": ("Peak memory allocated per GPU", MEGABYTES),
            "peak_memory_sum_bytes": ("Total memory", MEGABYTES),
        },
        ("test",),
        has_configurations_in_columns=True,
    ),
    "ielts": StudyLayout(
        "IELTS: scores and time per epoch",
        {"epoch_s": ("Time per epoch", CLOCK)},
        ("validation", "test"),
        has_configurations_in_columns=True,
        compares=True,
    ),
    "oakridge": StudyLayout(
        "Oak Ridge: seconds of the four operations",
        {
            "get_batch_s": ("Get train batch", SECONDS),
            "forward_s": ("Forward", SECONDS),
            "backward_s": ("Backward", SECONDS),
            "optimizer_s": ("Optimizer", SECONDS),
        },
    ),
    "imdb": StudyLayout(
        "IMDB: time, speed-up and accuracy", {"train_s": ("Time", CLOCK), "speed_up": ("Speed-up", TIMES)}, ("test",)
    ),
    "squad": StudyLayout(
        "Chasing efficiency",
        {
            "train_s": ("Run time", CLOCK),
            "samples_per_s": ("Throughput", RATE),
            "validation_loss": ("Validation loss", LOSS),
            "utilisation": ("GPU utilisation", PER_CENT),
            "statistical_efficiency": ("Statistical efficiency", PER_CENT),
            "goodput_samples_per_s": ("Goodput", RATE),
        },
        compares=True,
    ),
}
"""Layouts by the name of the study's folder below configs/studies."""
_MEASURES = {
    measure.key: measure for measure in (*MEASURES.values(), score("validation", "loss"), EFFICIENCY, GOODPUT, SPEED_UP)
}


def layout_tables(systems: Systems, name: str) -> Iterator[Table]:
    """Yield the measured configurations, at least one, in a layout of `LAYOUTS`.

    A study with configurations in columns has a table for each line over the number of devices.
    """
    layout = LAYOUTS[name]
    lines = scalings(systems.measured) if layout.has_configurations_in_columns and not layout.compares else ()
    shown = {member.label for line in lines for member in line.members}
    rest = [member for member in systems.measured if member.label not in shown]
    for number, members in enumerate([*(line.members for line in lines), *([rest] if rest else [])]):
        line = lines[number] if number < len(lines) else None
        key = f"{KEY}-others" if lines and line is None else f"{KEY}-{number + 1}" if number else KEY
        title, heads = layout.title, [member.label for member in members]
        if line is not None:
            batch = f"{line.batch:g} samples a {'step' if line.rule == 'strong' else 'device'}"
            title = ", ".join(filter(None, [layout.title, line.where, batch]))
            heads = [counted(member.world_size, "device") for member in members]
        measures = [replace(_MEASURES[key], label=label) for key, (label, _) in layout.figures.items()]
        measures += quality_measures(members, layout.splits) if layout.splits else []
        notes = ["In brackets: the change against the baseline; an arrow shows its direction."] * layout.compares
        table = build(
            systems, key, title, [names("Configuration", "configuration", heads)], members, measures, notes,
            compares=layout.compares, shows_all=True,
            first_of=None if line is None else {member.label: members[0] for member in members},
            scales={key: scale for key, (_, scale) in layout.figures.items()},
        )  # fmt: skip
        if layout.has_configurations_in_columns:
            columns: list[Heading] = [("", "figure"), *(cells[0].shown for cells in table.lines)]
            rows: list[Row] = [
                [TableCell(column.label), *(cells[at] for cells in table.lines)]
                for at, column in enumerate(table.columns)
            ]
            table = make_table(key, title, columns, rows[1:], 1, table.notes)
        yield table
