"""The tables of a matrix, selected by the subjects of its axes, and the main one, which fits on a screen."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, format_as
from paratune.config.metric_names import ScoreTarget, metric_name
from paratune.records.finished import RunRecord, gpus_of
from paratune.records.scores import extreme_slices, notes, shown_metrics, slice_score
from paratune.reports.amounts import amount, scale_of
from paratune.reports.measures import MEASURES, STEP_PARTS, Measure, cost, named, score
from paratune.reports.rows import results_csv, target_measures
from paratune.reports.runs.machine import fact_text, software_facts, value_text
from paratune.reports.runs.sameness import Difference, setting_text
from paratune.reports.systems.building import NAMES, SIZES, Labels, amount_cell, build, findings, memory_notes, scalings
from paratune.reports.systems.model import MATRIX, Configuration, Systems
from paratune.reports.tables.table import Column, Heading, Row, Table, TableCell, make_table
from paratune.reports.text import shorten, shorten_all
from paratune.verdicts import MeasureComparison
from paratune.verdicts.words import change_words, signed_interval_words

MAX_BESIDE = 3  # configurations that are beside each other; more have a line each
MAX_SCORES = 2  # headline scores of a split
_ADJUSTED, _OTHER_SIGN = " *", " †"
_MEMORY = named("peak_memory_largest_bytes", "peak_memory_sum_bytes")
SLICES, SLICES_HEADING, SLICES_CSV = "slices", "Scores by slice", "slices.csv"
_SLICE_WIDTH = 60
Entry = Mapping[str, Any]  # an entry of `summary.slices.SPLIT.COLUMN`
Members = Sequence[tuple[str, Sequence[RunRecord]]]
"""The columns of a table: heading, and one run or the runs of all seeds of a configuration."""
_MAX_NAMES = 3
_MAX_VALUES = 8
_MAX_KINDS = 8
_MODEL = (
    ("Model", "run.model.name"),
    ("Architecture", "run.model.architecture"),
    ("Parameters", "run.model.num_parameters"),
    ("Trained parameters", "run.model.num_trainable"),
    ("Model size (MB)", "run.model.size_bytes"),
    ("Task", "run.task.kind"),
    ("Training data", "run.data.train.source"),
    ("Training rows", "run.data.train.num_rows"),
    ("Longest text (tokens)", "run.config.data.max_length"),
    ("Global batch", "run.batch.global_batch_size"),
    ("Micro-batch", "run.batch.micro_batch_size"),
    ("Optimizer steps", "run.plan.num_steps"),
    ("Batches per epoch and rank", "run.plan.batches_per_epoch"),
    ("Batches of all ranks", "run.plan.num_batches"),
    ("Epochs", "run.plan.num_epochs"),
    ("Learning rate", "run.config.train.learning_rate"),
    ("Schedule", "run.config.train.schedule"),
)


def scaling_tables(systems: Systems) -> Iterator[Table]:
    """Yield time and memory over the number of devices, for a constant total batch and a constant batch per device."""
    titles = {"strong": "Constant total batch", "weak": "Constant batch per device"}
    for rule, lines in grouped((scaling.rule, scaling) for scaling in scalings(systems.measured)).items():
        members = [member for line in lines for member in line.members]
        heads = [line.where for line in lines for _ in line.members]
        where: Labels = {"of": heads} if len(lines) > 1 else {}
        base = (
            "Speed-up and efficiency compare samples/s with those of the smallest number of devices of the same kind. "
            "A strategy without a run on one device is compared with the run of the strategy single."
        )
        yield build(
            systems, f"scaling-{rule}", titles[rule], where | SIZES, members,
            [*_time(members), *named("speed_up", "scaling_efficiency"), *_MEMORY, *quality_measures(members)],
            [base, *memory_notes(members)],
            first_of={member.label: line.members[0] for line in lines for member in line.members},
        )  # fmt: skip


def configurations_table(systems: Systems) -> Table:
    """Return time, memory, quality, efficiency and goodput of each configuration, with the changes in per cent."""
    members = systems.measured
    measures = [
        *_time(members), *_MEMORY, *quality_measures(members), score("validation", "loss"), MEASURES["utilisation"],
        *named("noise_scale", "noise_scale_preconditioned", "statistical_efficiency", "goodput_samples_per_s"),
    ]  # fmt: skip
    bases = list(dict.fromkeys(systems.baseline_of(member).label for member in members))
    against = f"against {bases[0]}" if len(bases) == 1 else "against the baseline of its kind, in bold"
    changes = (
        f"In brackets: the change {against}. Arrows after a value show its direction, arrows in a heading the better "
        "one. Coloured: a change that is shown, for samples/s, goodput and scores by the verdict, else by its 95% "
        "interval. Grey: cannot tell."
    )
    divided = " of gradients divided as AdamW divides them" if systems.noise_kind == "preconditioned" else ""
    notes = [
        *([changes] if len(members) > 1 else []),
        f"Statistical efficiency is (phi + m0) / (phi + m): phi the gradient noise scale{divided}, m the global "
        "batch, m0 measure.reference_batch of the baseline, or else its global batch. Goodput is samples/s times "
        "statistical efficiency.",
        *memory_notes(members),
    ]
    labels = NAMES | SIZES
    # Of masked language models the validation loss is the quality.
    measures = list({measure.key: measure for measure in measures}.values())
    return build(systems, "configurations", "Configurations", labels, members, measures, notes, compares=True)


def phases_table(systems: Systems) -> Table:
    members, measures = systems.measured, [MEASURES["mean_step_ms"], *STEP_PARTS]
    notes = ["Means over measured steps (without warm-up) and all ranks; the five phases sum to the step."]
    return build(systems, "phases", "Time of a step by phase", NAMES | SIZES, members, measures, notes)


def resources_table(systems: Systems) -> Table:
    """Return utilisation, communication, energy, device-hours and cost."""
    members, notes = systems.measured, []
    measures = [*named(
        "utilisation", "mfu", "communication_share", "communication_exposed_share", "wait_share", "get_batch_share",
        "bubble_share", "padding_share", "energy_j", "total_s", "device_hours",
    )]  # fmt: skip
    if known := _costs(systems):
        measures += known
        notes.append("Cost: hours times devices times the price of a device-hour; of an epoch without evaluations.")
    return build(systems, "resources", "Resources", NAMES, members, measures, notes)


def _costs(systems: Systems) -> Sequence[Measure]:
    """Return the costs, each at the price of its own matrix; none if no price is known."""
    prices = {systems.matrix_of(member).price_per_device_hour for member in systems.measured}
    known = [price for price in prices if price is not None]
    return cost(*known) if known else ()


def quality_measures(members: Sequence[Configuration], splits: Sequence[str] = ("test",)) -> list[Measure]:
    """Return the scores of the task on the splits that have any, else on validation."""
    cells = [cell_run.cell for member in members for cell_run in member.cell_runs if cell_run.cell.counts]
    metrics = dict.fromkeys(metric for cell in cells for metric in cell.metrics)
    scored = [run for member in members for run in member.scored]
    known = [split for split in splits if any(run.summary.scores.get(split) for run in scored)]
    return [score(split, metric) for split in known or ["validation"] for metric in metrics] if scored else []


def _time(members: Sequence[Configuration]) -> list[Measure]:
    are_probes = [member.is_probe for member in members]
    full = [] if all(are_probes) else named("train_s", "epoch_s")
    return [*full, MEASURES["samples_per_s"], *([MEASURES["mean_step_ms"]] if any(are_probes) else [])]


def target_tables(systems: Systems, targets: Sequence[ScoreTarget]) -> Iterator[Table]:
    """Yield for each target when the configurations first reached it; reads the events of all runs except probes.

    Raises:
        ConfigError: No run was evaluated by the metric of a target.
    """
    members = [member for member in systems.measured if not member.is_probe]
    note = (
        "From the evaluations during training. Times are means over the runs that reached the score, so they are too "
        "short when some runs did not. The whole run includes start-up, evaluations and checkpoints until then."
    )
    found = target_measures([run for member in members for run in member.runs], targets)
    for number, (target, measures) in enumerate(zip(targets, found, strict=True), start=1):
        title, key = f"Time to {target.text} on validation", f"target-{number}"
        yield build(systems, key, title, NAMES, members, measures, [note], compares=True, shows_all=True)


def main_table(systems: Systems, settings: Sequence[Difference] = ()) -> Table:
    """Return the main measures: of up to `MAX_BESIDE` configurations a column for each, else a line for each.

    Args:
        systems: The configurations, and the verdicts on them; with two, their changes are in a last column.
        settings: Differences between their runs, above the measures of few configurations.
    """
    are_beside, members = len(systems.measured) <= MAX_BESIDE, [*systems.measured]
    if are_beside:
        members.sort(key=lambda member: member is not systems.baseline)
    lines: list[list[TableCell]] = []
    for item in settings if are_beside else ():
        texts = (", ".join(dict.fromkeys(setting_text(item, run.name) for run in one.runs)) for one in members)
        lines.append([TableCell(item.key), *map(TableCell, texts)])
    are_means = any(len(member.runs) > 1 for member in members)
    if are_means or not are_beside:
        counts = (TableCell(f"{len(member.runs)}", len(member.runs)) for member in members)
        lines.append([TableCell("Runs", "runs"), *counts])
    for measure in _main_measures(systems, MAX_SCORES if are_beside else 1):
        amounts = [systems.amount(measure, member) for member in members]
        if all(amount.center is None for amount in amounts) or not (are_beside or measure.better):
            continue
        scale = scale_of(measure.unit, [amount.center for amount in amounts])
        # A constant answer has no spread over seeds.
        amounts = [replace(amount, is_pooled=not (are_beside and measure.better)) for amount in amounts]
        head = TableCell(scale.label(measure.label.removesuffix(" per device")), measure.key)
        lines.append([head, *(amount_cell(found, scale) for found in amounts)])
    if not are_beside:
        columns = [("Configuration", "configuration"), *((line[0].text, str(line[0].value)) for line in lines)]
        rows: list[Row] = [[one.label, *(line[at] for line in lines)] for at, one in enumerate(members, start=1)]
        return make_table("main", "", columns, rows, 1, ["Means over runs."] if are_means else [])
    heads: list[Heading] = [("", "figure"), *(Column(member.label) for member in members)]
    known = findings(systems) if len(members) == 2 else {}
    found = {key: finding for key, by_label in known.items() for finding in by_label.values()}
    found = {f"{finding.split}_{key}" if finding.split else key: finding for key, finding in found.items()}
    task = members[0].runs[0].task
    changes = [_change(found.get(line[0].value), line, task) for line in lines]
    if not any(changes):
        return make_table("main", "", heads, lines)
    notes = ["Scores change in points of a hundred. In brackets: 95% intervals."]
    if any(change.endswith(_ADJUSTED) for change in changes):
        notes.append("* adjusted for the order of the runs")
    if any(change.endswith(_OTHER_SIGN) for change in changes):
        notes.append("† of geometric means, in which all runs count alike")
    changed: list[Row] = [[*line, change] for line, change in zip(lines, changes, strict=True)]
    return make_table("main", "", [*heads, Column("Change")], changed, 1, notes)


def _main_measures(systems: Systems, most: int = MAX_SCORES) -> list[Measure]:
    """Return time, speed, memory, energy, and the headline scores of each split above those of a constant answer."""
    are_full = not any(member.is_probe for member in systems.measured)
    keys = (
        "train_s" if are_full else "mean_step_ms", "latency_p50_ms", "latency_p95_ms", "samples_per_s",
        "peak_memory_largest_bytes", "weights_bytes", "energy_j",
    )  # fmt: skip
    scores = [
        measure
        for split, metric in headline_scores([run for member in systems.measured for run in member.scored], most)
        for measure in (
            score(split, metric),
            replace(score(split, metric, of_constant=True), label="  constant answer"),
        )
    ]
    return [*named(*keys), *_costs(systems), *scores]


def headline_scores(runs: Sequence[RunRecord], most: int = MAX_SCORES) -> list[tuple[str, str]]:
    """Return split and name of the first headline metrics of the tasks, validation and test first."""
    headline = dict.fromkeys(metric for run in runs for metric in run.run.task.metrics)
    scored = [run.summary.scores for run in runs]
    splits = dict.fromkeys(["validation", "test", *(split for scores in scored for split in scores)])
    found = []
    for split in splits:
        known = dict.fromkeys(metric for scores in scored for metric in scores.get(split) or ())
        shown = [metric for metric in (headline or known) if metric in known and metric != "loss"]
        found += [(split, metric) for metric in shown[:most]]
    return found


def _change(finding: MeasureComparison | None, line: Sequence[TableCell], task: str) -> str:
    """Return a known change with its interval, without its unit: "+8% [−39, +89]".

    With a mark if it is adjusted, or if the two values of the line differ in the other direction.
    """
    if finding is None or finding.change is None:
        return ""
    interval = signed_interval_words(finding, task)
    text = change_words(finding, task) + ("" if interval == NOT_AVAILABLE else f" {interval}")
    is_adjusted = finding.order is not None and finding.order.is_adjusted
    before, after = (cell.value for cell in line[1:])
    is_other = finding.is_ratio and None not in (before, after) and finding.change * (after - before) < 0
    return re.sub(" points?", "", text) + (_ADJUSTED if is_adjusted else _OTHER_SIGN if is_other else "")


def slice_tables(members: Members) -> Iterator[Table]:
    """Yield a table for each task, set and column with scores by slice; members of one task are the columns."""
    by_task = grouped(((runs[0].task, tuple(runs[0].labels)), (label, runs)) for label, runs in members if runs)
    number = 0
    for (kind, labels), of_task in by_task.items():
        slices = [run.summary.slices for _, runs in of_task for run in runs]
        names = dict.fromkeys((split, column) for own in slices for split in own for column in own[split])
        for split, column in names:
            number += 1
            title = f"{split.capitalize().replace('_', ' ')} scores by {column}"
            if len(by_task) > 1:
                title += f" ({shorten(': '.join(filter(None, [kind, ', '.join(labels)])), _SLICE_WIDTH)})"
            yield _slices_of(of_task, split, column, f"{SLICES}-{number}", title)


def _slices_of(members: Members, split: str, column: str, key: str, title: str) -> Table:
    by_run: dict[str, dict[str, Entry]] = {}
    for run in (run for _, runs in members for run in runs):
        by_run[run.name] = {entry["value"]: entry for entry in run.summary.slices.get(split, {}).get(column, [])}
    all_entries = [entry for entries in by_run.values() for entry in entries.values()]
    values = list(dict.fromkeys(entry["value"] for entry in all_entries))
    kind = members[0][1][0].task
    lines: list[Row] = []
    groups: list[tuple[int, str]] = []
    for metric in shown_metrics(kind, all_entries):
        groups.append((len(lines), metric_name(metric)))
        of_metric: list[tuple[float | None, int, Row]] = []
        for value, name in zip(values, shorten_all(values, _SLICE_WIDTH), strict=True):
            known = {run: entries[value] for run, entries in by_run.items() if value in entries}
            details = {entry["detail"] for entry in known.values()}  # shown if all runs agree
            head = f"{name}: {details.pop()}" if len(details) == 1 and None not in details else name
            counts = list(dict.fromkeys(entry["num_rows"] for entry in known.values()))
            count_cell = TableCell(", ".join(f"{count:,}" for count in counts), counts[0] if len(counts) == 1 else None)
            measure = replace(score(split, metric), source=f"summary.slices.{split}.{column}: {metric}")
            scores = {run: slice_score(entry, metric) for run, entry in known.items()}
            read: Callable[..., Any] = lambda run, own=scores: own[run.name][0] if run.name in own else None  # noqa: E731
            measure = replace(measure, read=read)
            line: list[str | TableCell] = [head, count_cell]
            for _, runs in members:  # the score of one run with its interval, or the mean of several with its spread
                cell = amount_cell(amount(measure, runs), scale_of(measure.unit, ()))
                if len(runs) == 1 and runs[0].name in known:
                    own = runs[0].name
                    cell = replace(cell, text=scores[own][2], interval=scores[own][1])
                line.append(replace(cell, runs=cell.runs or tuple(run.name for run in runs)))
            first = next((cell.value for cell in line[2:] if isinstance(cell, TableCell) and cell.is_known), None)
            of_metric.append((first, min(counts), line))
        figures, num_rows, rows = zip(*of_metric, strict=True)
        lines += [rows[at] for at in extreme_slices(figures, num_rows)]
    columns: list[Heading] = [(column, "slice"), ("Rows", "num_rows"), *(label for label, _ in members)]
    are_means = {len(runs) > 1 for _, runs in members}
    about = notes(kind, {column: all_entries}, are_single=False in are_means, are_means=True in are_means)
    return make_table(key, title, columns, lines, 1, about, groups=groups)


def length_table(run: RunRecord, suffix: str) -> Iterator[Table]:
    """Yield how the errors of a regression depend on length, on test or else validation; nothing without a record."""
    split = next((split for split in ("test", "validation") if split in run.summary.length_bias), None)
    if split is None or not (quintiles := (found := run.summary.length_bias[split])["quintiles"]):
        return
    forms = {"shortest": ",d", "longest": ",d", "num_rows": ",d", "rmse": ".4f", "bias": "+.4f"}
    rows = [
        [TableCell(format_as(one[key], form), one[key], (run.name,), f"summary.length_bias.{split}: {key}")
         for key, form in forms.items()] for one in quintiles
    ]  # fmt: skip
    note = (
        "Quintiles of the tokens before truncation; bias: mean of predicted minus actual. Correlation of this error "
        f"with the tokens: {format_as(found['pearson'], '+.3f')} (above 0: the scores of long texts are too high)."
    )
    heads = ("Shortest (tokens)", "Longest (tokens)", "Rows", metric_name("rmse"), "bias")
    yield make_table(
        f"length{suffix}", f"Errors by length: {run.name} on {split}", zip(heads, forms, strict=True), rows, 2, (note,)
    )


def raters_table(run: RunRecord, suffix: str) -> Iterator[Table]:
    """Yield how far raters and model agree, on test or else validation; nothing without a record."""
    for split in [split for split in ("test", "validation") if split in run.summary.raters][:1]:
        forms = {"num_rows": ",d", "qwk": ".4f", "pearson": ".4f", "rmse": ".4f", "bias": "+.4f"}
        rows: list[Row] = [
            [line["who"], *(TableCell(format_as(line[key], form), line[key], (run.name,), f"summary.raters.{split}")
                            for key, form in forms.items())] for line in run.summary.raters[split]
        ]  # fmt: skip
        note = (
            "Rows with two ratings or more; of several pairs the mean. The agreement of two raters is the ceiling of a "
            "model and a rater. bias: mean of the first side minus the second."
        )
        heads = [("", "who"), ("Rows", "num_rows"), *((metric_name(key), key) for key in [*forms][1:])]
        yield make_table(f"raters{suffix}", f"Agreement of raters: {run.name} on {split}", heads, rows, 1, (note,))


def slices_csv(runs: Iterable[RunRecord]) -> dict[str, str]:
    """Return slices.csv by its name, with a line for each run, set and slice; nothing where no run has slices."""
    entries = [
        ({"run": run.name, "split": split, "column": column}, entry)
        for run in runs for split, columns in run.summary.slices.items()
        for column, of_column in columns.items() for entry in of_column
    ]  # fmt: skip
    metrics = dict.fromkeys(metric for _, entry in entries for metric in entry["scores"])
    lines = []
    for place, entry in entries:
        line = {**place, "value": entry["value"], "num_rows": entry["num_rows"]}
        for metric in metrics:
            line[metric], interval, _ = slice_score(entry, metric)
            line[f"{metric}_low"], line[f"{metric}_high"] = interval or (None, None)
        lines.append(line)
    return {SLICES_CSV: results_csv(lines)} if lines else {}


def machine_tables(systems: Systems) -> Iterator[Table]:
    """Yield the tables of hardware, of model and batch, and of software."""
    members = {run.folder: member for member in systems.measured for run in member.runs}
    by_matrix, models, runs = [], [], systems.runs
    for group in systems.machines.values():
        nodes = [node for run in group for node in run.run.hardware]
        gpus = [gpu.get("name") for node in nodes for gpu in gpus_of(node)]
        by_matrix.append([members[run.folder].settings.get(MATRIX) for run in group])
        models.append(gpus if any(gpus) else [node.get("cpu_model") for node in nodes])
    # A kind of machine has the name of its system or matrix, else of its GPUs or CPU, if that is unique; else a letter.
    names = [f"System {chr(ord('A') + at) if at < 26 else at + 1}" for at in range(len(models))]
    for values in (models, by_matrix):
        known = [[str(value) for value in dict.fromkeys(own) if value] for own in values]
        own_names = [", ".join(own) if len(own) <= _MAX_NAMES else "" for own in known]
        names = own_names if all(own_names) and len(set(own_names)) == len(names) else names
    kinds = []
    for name, group in zip(names, systems.machines.values(), strict=True):
        facts = hardware_facts([session for run in group for session in run.sessions])
        if _costs(systems):
            prices = [systems.matrix_of(members[run.folder]).price_per_device_hour for run in group]
            costs = [cost(price)[0].of(run) for price, run in zip(prices, group, strict=True) if price is not None]
            paid = [own for own in costs if own is not None]
            total = math.fsum(paid) if len(paid) == len(group) else None
            shown = ", ".join(NOT_AVAILABLE if price is None else f"{price:g}" for price in dict.fromkeys(prices))
            facts |= {"Price of a device-hour": shown, "Cost of the runs": scale_of("price", [total]).text(total)}
        name = ": ".join(filter(None, [systems.record.system, name if len(names) > 1 else ""]))
        kinds.append((name, group, facts))
    yield _kinds_table("systems", "Systems", kinds)
    model = {}
    for label, key in _MODEL:
        texts = []
        for value in (run.get(key) for run in runs):
            if key == "run.model.size_bytes" and isinstance(value, int):
                value = f"{value / 1e6:,.1f}"
            elif type(value) is float:  # learning rates too: six digits are more than anyone sets
                value = f"{value:.6g}"
            texts.append({key: f"{value:,}" if type(value) is int else None if value is None else value_text(value)})
        model[label] = _each(texts, key)
    yield _kinds_table("models", "Model and batch", [("", runs, model)])
    software = grouped((tuple(software_facts(run).items()), run) for run in runs)
    named = len(software) > 1
    sets = [(f"Set {at}" * named, group, dict(facts)) for at, (facts, group) in enumerate(software.items(), start=1)]
    yield _kinds_table("software", "Software", sets)


def _kinds_table(key: str, title: str, kinds: Sequence[tuple[str, Sequence[RunRecord], Mapping[str, str]]]) -> Table:
    kinds, more = kinds[:_MAX_KINDS], len(kinds) - _MAX_KINDS
    notes = (f"{more} others are not shown; run.json of each run has them.",) if more > 0 else ()
    heads = [name or "All runs" for name, *_ in kinds]
    runs = [tuple(run.name for run in group) for _, group, _ in kinds]
    rows: list[Row] = [
        [fact, *(TableCell(facts.get(fact, NOT_AVAILABLE), None, names, "run.json")
                 for names, (*_, facts) in zip(runs, kinds, strict=True))]
        for fact in dict.fromkeys(fact for *_, facts in kinds for fact in facts)
    ]  # fmt: skip
    rows.append(["Runs", *(TableCell(f"{len(names):,}", len(names), names) for names in runs)])
    return make_table(key, title, [("", "fact"), *heads], rows, 1 + len(kinds), notes)


def hardware_facts(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return GPUs, link, processor, memory, storage and other facts of the nodes, each value once."""
    nodes = [node for run in runs for node in run.run.hardware]
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    told = [node for node in nodes if "gpus" in node]
    cores = (f"{_each(nodes, f'num_{kind}_cores')} {kind}" for kind in ("physical", "logical", "usable"))
    per_node = {len(gpus_of(node)) for node in told}
    per_run = {len(run.run.hardware) for run in runs if run.run.hardware}
    return {
        "GPU model": _each(gpus, "name") if gpus or not told else "none",
        "GPUs per node": ", ".join(map(str, sorted(per_node))) or NOT_AVAILABLE,
        "GPU memory": _each(gpus, "memory_bytes"),
        "Link of GPUs": _each(gpus, "link"),
        "Storage of the run": _each(nodes, "storage"),
        "Storage of the tokens": _each(nodes, "data_storage"),
        "Virtualisation": _each(nodes, "virtualisation"),
        "GPU driver": _each(nodes, "gpu_driver"),
        "CPU": _each(nodes, "cpu_model"),
        "CPU cores": ", ".join(text for text in cores if NOT_AVAILABLE not in text) or NOT_AVAILABLE,
        "RAM": _each(nodes, "ram_bytes"),
        "Nodes": ", ".join(map(str, sorted(per_run))) or NOT_AVAILABLE,
        "Hosts": _each(nodes, "hostname"),
    }


def _each(parts: Sequence[Mapping[str, Any]], key: str) -> str:
    texts = list(dict.fromkeys(fact_text(key, value) for part in parts if (value := part.get(key)) is not None))
    more = f" and {len(texts) - _MAX_VALUES} others" if len(texts) > _MAX_VALUES else ""
    return ("; ".join(texts[:_MAX_VALUES]) + more) or NOT_AVAILABLE
