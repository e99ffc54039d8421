"""Tables of a matrix in the layout of published studies, so that they can be placed next to the published ones.

A layout is a view: a list of measures with the labels and units of the study, and an orientation.
docs/howto/studies.md names the matrix of each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paratune.base.units import counted
from paratune.errors import ConfigError, did_you_mean
from paratune.reports.amounts import Scale
from paratune.reports.measures import EFFICIENCY, GOODPUT, MEASURES, score
from paratune.reports.systems.building import build, names
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.reports.systems.scaling import SPEED_UP, scalings
from paratune.reports.systems.tables import quality_measures
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table

KEY = "layout"
_SCALES = {
    "mm:ss": (1.0, 0),
    "s": (1.0, 1),
    "MB": (1e6, 0),
    "%": (0.01, 1),
    "samples/s": (1.0, 1),
    "×": (1.0, 2),
    "": (1.0, 4),
}
"""Size of each unit, and decimal places."""


@dataclass(frozen=True)
class StudyLayout:
    """The layout of the tables of a study."""

    title: str
    figures: Mapping[str, tuple[str, str]]
    """Label and unit of the study, by key of the measure."""
    splits: tuple[str, ...] = ()
    """Splits whose headline scores follow the figures; the validation set where runs have no others."""
    has_configurations_in_columns: bool = False
    compares: bool = False
    """Whether each figure has its change against the baseline in per cent, with an arrow."""


_TIME = {"train_s": ("Time", "mm:ss")}
_PHASES = {
    "get_batch_s": "Get train batch",
    "forward_s": "Forward",
    "backward_s": "Backward",
    "optimizer_s": "Optimizer",
}
LAYOUTS: Mapping[str, StudyLayout] = {
    "evora": StudyLayout(
        "Évora, tables 1 to 5",
        {
            **_TIME,
            "peak_memory_largest_bytes": ("Peak memory allocated per GPU", "MB"),
            "peak_memory_sum_bytes": ("Total memory", "MB"),
        },
        ("test",),
        has_configurations_in_columns=True,
    ),
    "ielts": StudyLayout(
        "IELTS: scores and time per epoch", {"epoch_s": ("Time per epoch", "mm:ss")}, ("validation", "test"),
        has_configurations_in_columns=True, compares=True,
    ),
    "oakridge": StudyLayout(
        "Oak Ridge: seconds of the four operations", {key: (label, "s") for key, label in _PHASES.items()}
    ),
    "imdb": StudyLayout("IMDB: time, speed-up and accuracy", {**_TIME, "speed_up": ("Speed-up", "×")}, ("test",)),
    "squad": StudyLayout(
        "Chasing efficiency",
        {
            "train_s": ("Run time", "mm:ss"),
            "samples_per_s": ("Throughput", "samples/s"),
            "validation_loss": ("Validation loss", ""),
            "utilisation": ("GPU utilisation", "%"),
            "statistical_efficiency": ("Statistical efficiency", "%"),
            "goodput_samples_per_s": ("Goodput", "samples/s"),
        },
        compares=True,
    ),
}  # fmt: skip
"""Layouts by the name of the study's folder below configs/studies."""
_MEASURES = {
    measure.key: measure for measure in (*MEASURES.values(), score("validation", "loss"), EFFICIENCY, GOODPUT, SPEED_UP)
}


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


def layout_tables(systems: Systems, name: str) -> Iterator[Table]:
    """Yield the measured configurations, at least one, in a layout of `LAYOUTS`.

    A study with configurations in columns has a table for each line over the number of devices.
    """
    layout = LAYOUTS[name]
    lines = scalings(systems.measured) if layout.has_configurations_in_columns and not layout.compares else ()
    shown = {member.label for line in lines for member in line.members}
    for number, line in enumerate(lines):
        batch = f"{line.batch:g} samples a {'step' if line.rule == 'strong' else 'device'}"
        title = ", ".join(filter(None, [layout.title, line.where, batch]))
        heads = [counted(member.world_size, "device") for member in line.members]
        yield _table(
            systems, layout, f"{KEY}{f'-{number + 1}' * (number > 0)}", title, line.members, heads, is_line=True
        )
    if rest := [member for member in systems.measured if member.label not in shown]:
        key = f"{KEY}-others" if lines else KEY
        yield _table(systems, layout, key, layout.title, rest, [member.label for member in rest])


def _table(
    systems: Systems, layout: StudyLayout, key: str, title: str, members: Sequence[Configuration], heads: Sequence[str],
    *, is_line: bool = False,
) -> Table:  # fmt: skip
    measures = [replace(_MEASURES[key], label=label) for key, (label, _) in layout.figures.items()]
    measures += quality_measures(members, layout.splits) if layout.splits else []
    notes = ["In brackets: the change against the baseline; an arrow shows its direction."] * layout.compares
    labels = [names("Configuration", "configuration", heads)]
    table = build(
        systems, key, title, labels, members, measures, notes, compares=layout.compares, shows_all=True,
        first_of={member.label: members[0] for member in members} if is_line else None,
        scales={key: Scale(unit, *_SCALES[unit]) for key, (_, unit) in layout.figures.items()},
    )  # fmt: skip
    return _transposed(table) if layout.has_configurations_in_columns else table


def _transposed(table: Table) -> Table:
    """Return a table with a column for each line."""
    columns: list[Heading] = [("", "figure"), *(line[0].shown for line in table.lines)]
    rows: list[Row] = [
        [TableCell(column.label), *(line[at] for line in table.lines)]
        for at, column in enumerate(table.columns) if at > 0
    ]  # fmt: skip
    return make_table(table.key, table.title, columns, rows, 1, table.notes)
