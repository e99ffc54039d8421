"""The tables of a matrix that are chosen by what its axes are of."""

from collections.abc import Iterator, Mapping, Sequence

from paratune.report.systems import measures as of
from paratune.report.systems import subjects
from paratune.report.systems.building import Figured, Labels, build, column_of, memory_notes, names
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.efficiency import (
    EFFICIENCY,
    GOODPUT,
    NOISE_SCALE,
    efficiency,
    goodput,
    noise_of,
    reference_words,
)
from paratune.report.systems.measures import Amount, ReportMeasure
from paratune.report.systems.model import Systems
from paratune.report.systems.subjects import Scaling, SubjectFamily
from paratune.report.tabular import Table

SPEED_UP = ReportMeasure("speed_up", "Speed-up", "rate", 1, "samples/s over those of the first line", lambda run: None)
SCALING = ReportMeasure(
    "scaling_efficiency", "Efficiency", "share", 1, "speed-up over the number of devices, against the first line",
    lambda run: None,
)  # fmt: skip
_TIMES = (of.TRAIN_S, of.EPOCH_S)
_OF_SUBJECTS = (
    ("precision", "Precision", subjects.is_precision),
    ("workers", "Loader workers", subjects.is_workers),
    ("environment", "Environment variables", subjects.is_environment),
)


def scaling_tables(systems: Systems) -> Iterator[Table]:
    """Yield time and memory against the number of devices, at a constant total batch and at one per device."""
    found = subjects.scalings(systems.measured)
    for rule, title in (("strong", "Constant total batch"), ("weak", "Constant batch per device")):
        of_rule = [each for each in found if each.rule == rule]
        if of_rule:
            yield scaling_table(systems, of_rule, f"scaling-{rule}", title)


def subject_tables(systems: Systems) -> Iterator[Table]:
    """Yield a table of strategies, of precisions, of loader workers, of variables and of offload, where these vary."""
    strategies = subjects.strategy_families(systems.measured)
    if strategies:
        yield family_table(systems, strategies, "strategy", "Strategy")
    for key, title, is_of in _OF_SUBJECTS:
        found = subjects.families(systems.measured, is_of)
        if found:
            yield family_table(systems, found, key, title)
    found = subjects.offload_families(systems.measured)
    if found:
        yield family_table(systems, found, "offload", "Offload")


def efficiency_tables(systems: Systems) -> Iterator[Table]:
    """Yield the table of changes against the baseline, where there is something beside it."""
    if len(systems.measured) > 1:
        yield chasing_efficiency(systems)


def all_configurations(systems: Systems) -> Table:
    """Return time, memory and quality of every configuration."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [one.label for one in members]), *_sizes(members)]
    figures = [*_time(systems, members), *_memory(systems), *quality_columns(systems, members)]
    title = "Time and memory of all configurations"
    return build(systems, "configurations", title, labels, members, figures, memory_notes(members))


def scaling_table(systems: Systems, found: Sequence[Scaling], key: str, title: str) -> Table:
    """Return time and memory against the number of devices, under one rule for the batch.

    Args:
        systems: The matrix.
        found: The families of devices under that rule.
        key: Of the table.
        title: Of the table.
    """
    families = [each.family for each in found]
    members = [one for family in families for one in family.members]
    first_of = _first_of(families)
    labels = [*_where(families), *_sizes(members)]

    def share(one: Configuration) -> Amount:
        first = first_of[one.label]
        return _over_first(systems, first, one, SCALING, one.world_size / first.world_size)

    figures = [
        *_time(systems, members),
        _speed_up(systems, first_of),
        Figured(SCALING, share, is_kept=True),
        *_memory(systems),
        *quality_columns(systems, members),
    ]
    base = (
        "Speed-up and efficiency are by samples/s, against the smallest number of devices of the same kind. A strategy "
        "without a run on one device is compared with the run of the strategy single."
    )
    return build(systems, key, title, labels, members, figures, [base, *memory_notes(members)], first_of=first_of)


def _first_of(families: Sequence[SubjectFamily]) -> dict[str, Configuration]:
    """Return the first member of each configuration's family, by its name."""
    return {one.label: family.members[0] for family in families for one in family.members}


def _where(families: Sequence[SubjectFamily]) -> list[Labels]:
    """Return the column that tells families apart; none where there is one."""
    if len(families) == 1:
        return []
    return [names("Of", "of", [family.where for family in families for _ in family.members])]


def _speed_up(systems: Systems, first_of: Mapping[str, Configuration]) -> Figured:
    """Return the column of samples/s over those of the first member of a configuration's family."""
    return Figured(SPEED_UP, lambda one: _over_first(systems, first_of[one.label], one, SPEED_UP, 1.0), is_kept=True)


def _over_first(
    systems: Systems, first: Configuration, one: Configuration, measure: ReportMeasure, by: float
) -> Amount:
    """Return the samples/s of a configuration over those of the first one, and over `by`."""
    own, base = (systems.amount(of.SAMPLES_PER_S, each) for each in (one, first))
    if own.center is None or not base.center:
        return Amount(measure, {}, None, own.num_runs)
    ratio = own.center / base.center / by
    runs = dict.fromkeys((*own.values, *base.values), ratio)
    return Amount(measure, runs, ratio, len(runs), is_of_all=True)


def family_table(systems: Systems, families: Sequence[SubjectFamily], key: str, title: str) -> Table:
    """Return time, memory and quality against the values of a subject.

    Args:
        systems: The matrix.
        families: Configurations that differ in the subject alone.
        key: Of the table.
        title: Of the table, which is the subject.
    """
    members = [one for family in families for one in family.members]
    values = [name for family in families for name in family.names]
    labels = [*_where(families), names(title, key, values), *_sizes(members)]
    first_of = _first_of(families)
    more: list[Figured] = []
    if key == "precision":
        more = [_speed_up(systems, first_of)]
    elif key == "workers":
        more = [column_of(systems, of.STEP_PARTS[0]), column_of(systems, of.GET_BATCH_SHARE)]
    elif key == "environment":
        more = [column_of(systems, each) for each in of.STEP_PARTS]
    figures = [*_time(systems, members), *more, *_memory(systems), *quality_columns(systems, members)]
    notes = [*_of_what(systems, families), *memory_notes(members)]
    return build(systems, key, title, labels, members, figures, notes, first_of=first_of)


def _of_what(systems: Systems, families: Sequence[SubjectFamily]) -> list[str]:
    """Return what is to be said where configurations are in no family of the subject."""
    num_left = len(systems.measured) - sum(len(family.members) for family in families)
    who = "1 configuration has" if num_left == 1 else f"{num_left} configurations have"
    return [f"{who} no other beside it that differs in this alone."] if num_left > 0 else []


def chasing_efficiency(systems: Systems) -> Table:
    """Return run time, throughput, loss, utilisation, efficiency and goodput, each with its change in per cent."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [one.label for one in members])]
    figures = [
        *(_full_only(systems, each) for each in _TIMES),
        column_of(systems, of.SAMPLES_PER_S, is_kept=True),
        column_of(systems, of.score("validation", "loss"), is_kept=True),
        column_of(systems, of.UTILISATION, is_kept=True),
        Figured(NOISE_SCALE, lambda one: _noise(systems, one)),
        Figured(EFFICIENCY, lambda one: efficiency(systems, one), is_kept=True),
        Figured(GOODPUT, lambda one: goodput(systems, one), is_kept=True),
    ]
    bases = list(dict.fromkeys(systems.baseline_of(one).label for one in members))
    against = f"against {bases[0]}" if len(bases) == 1 else "against the baseline of its kind, which is set off"
    references = dict.fromkeys(reference_words(systems, one) for one in members)
    notes = [
        f"In brackets: the change {against}; ↑ and ↓ behind a figure say that it rose or fell, in the head of a column "
        "which of them is better.",
        "Statistical efficiency is (phi + m0) / (phi + m): phi the gradient noise scale, m the global batch, m0 "
        f"{' or '.join(references)}. Goodput is samples/s times statistical efficiency.",
        *_utilisation_kind(members),
    ]
    return build(systems, "efficiency", "Chasing efficiency", labels, members, figures, notes, compares=True)


def phases_table(systems: Systems) -> Table:
    """Return the phases of a step and of a run."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [one.label for one in members]), *_sizes(members)]
    steps = [column_of(systems, of.STEP_MS), *(column_of(systems, each) for each in of.STEP_PARTS)]
    notes = ["Means of measured steps (warm-up left out), over all ranks; the five phases sum to the step."]
    return build(systems, "phases", "Where a step's time goes", labels, members, steps, notes)


def resources_table(systems: Systems) -> Table:
    """Return what the configurations took: utilisation, communication, energy, device-hours and their price."""
    members = systems.measured
    labels = [names("Configuration", "configuration", [one.label for one in members])]
    figures = [column_of(systems, each) for each in of.RESOURCES]
    price = systems.record.price_per_device_hour
    notes = _utilisation_kind(members)
    if price is not None:
        figures.append(column_of(systems, of.cost(price)))
        notes.append(f"The cost is that of the whole run at {price:g} a device-hour.")
    return build(systems, "resources", "What it took", labels, members, figures, notes)


def quality_columns(systems: Systems, members: Sequence[Configuration]) -> list[Figured]:
    """Return the scores that stand for the task of configurations: on test where there is any, else on validation."""
    cells = [each.cell for one in members for each in one.cell_runs if each.cell.counts]
    metrics = dict.fromkeys(metric for cell in cells for metric in cell.metrics)
    scored = [run for one in members for run in one.scored]
    split = "test" if any(run.get("summary.scores.test") for run in scored) else "validation"
    return [column_of(systems, of.score(split, metric)) for metric in metrics] if scored else []


def _time(systems: Systems, members: Sequence[Configuration]) -> list[Figured]:
    is_any_full = any(not one.is_probe for one in members)
    full = [_full_only(systems, each) for each in _TIMES] if is_any_full else []
    steps = [column_of(systems, of.STEP_MS)] if any(one.is_probe for one in members) else []
    return [*full, column_of(systems, of.SAMPLES_PER_S, is_kept=True), *steps]


def _memory(systems: Systems) -> list[Figured]:
    return [column_of(systems, each, is_kept=True) for each in (of.PEAK_BYTES, of.SUM_BYTES)]


def _full_only(systems: Systems, measure: ReportMeasure) -> Figured:
    """Return the column of a figure that probes, which take a few steps, do not have."""
    return Figured(
        measure,
        lambda one: Amount(measure, {}, None, len(one.runs)) if one.is_probe else systems.amount(measure, one),
        is_kept=True,
    )


def _sizes(members: Sequence[Configuration]) -> list[Labels]:
    """Return the columns that say on how many devices, with what batch, where members differ in them."""
    return [
        names("Devices", "num_devices", [one.world_size for one in members]),
        names("Global batch", "global_batch_size", [one.global_batch_size for one in members]),
    ]


def _noise(systems: Systems, one: Configuration) -> Amount:
    noise = noise_of(systems, one)
    values = {} if noise.value is None else dict.fromkeys(noise.runs, noise.value)
    return Amount(NOISE_SCALE, values, noise.value, len(values) or len(one.runs), is_of_all=True)


def _utilisation_kind(members: Sequence[Configuration]) -> list[str]:
    kinds = sorted({str(kind) for one in members for run in one.runs if (kind := run.get("summary.utilisation.kind"))})
    words = {"nvml": "of the GPUs (NVML: the share of time in which a kernel runs)", "cpu": "of the CPU"}
    return [f"Utilisation is that {', '.join(words.get(kind, kind) for kind in kinds)}."] if kinds else []
