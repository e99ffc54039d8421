"""The tables of systems, of model and batch, and of software, with a column for each kind."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE
from paratune.records.finished import RunRecord, gpus_of
from paratune.reports.runs.machine import fact_text, software_facts, value_text
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Table, TableCell, facts_table

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


def machine_tables(systems: Systems) -> Iterator[Table]:
    """Yield the tables of hardware, of model and batch, and of software."""
    runs = systems.runs
    if not runs:
        return
    machines = zip(machine_names(systems), systems.machines.values(), strict=True)
    sessions = {run.name: run.sessions for run in runs}
    kinds = [
        (name, group, hardware_facts([own for run in group for own in sessions[run.name]])) for name, group in machines
    ]
    yield _table("systems", "Systems", kinds)
    model = {}
    for label, source in _MODEL:
        texts: list[str | None] = []
        for value in (run.get(source) for run in runs):
            if source == "run.model.size_bytes" and isinstance(value, int):
                texts.append(f"{value / 1e6:,.1f}")
            elif type(value) is float:  # learning rates too: six digits are more than anyone sets
                texts.append(f"{value:.6g}")
            else:
                texts.append(f"{value:,}" if type(value) is int else None if value is None else value_text(value))
        model[label] = _each([{source: text} for text in texts], source)
    yield _table("models", "Model and batch", [("", runs, model)])
    software = grouped((tuple(software_facts(run).items()), run) for run in runs)
    sets = [(f"Set {number}", group, dict(facts)) for number, (facts, group) in enumerate(software.items(), start=1)]
    yield _table("software", "Software", sets)


def machine_names(systems: Systems) -> list[str]:
    """Return a name for each kind of machine: its matrix, or its GPUs or CPU, if that is unique; else a letter."""
    matrices = {run.folder: systems.matrix_of(member) for member in systems.measured for run in member.runs}
    by_matrix, models = [], []
    for runs in systems.machines.values():
        nodes = [node for run in runs for node in run.run.hardware]
        gpus = [gpu.get("name") for node in nodes for gpu in gpus_of(node)]
        by_matrix.append([matrices[run.folder] for run in runs])
        models.append(gpus if any(gpus) else [node.get("cpu_model") for node in nodes])
    for kinds in (by_matrix, models):
        known = [[str(value) for value in dict.fromkeys(values) if value] for values in kinds]
        names = [", ".join(texts) if len(texts) <= _MAX_NAMES else "" for texts in known]
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"System {chr(ord('A') + at) if at < 26 else at + 1}" for at in range(len(models))]


def _table(key: str, title: str, kinds: Sequence[tuple[str, Sequence[RunRecord], Mapping[str, str]]]) -> Table:
    """Return a table with a line for each fact, and a column for each kind: its name, its runs and its facts."""
    kinds, more = kinds[:_MAX_KINDS], len(kinds) - _MAX_KINDS
    notes = (f"{more} others are not shown; run.json of each run has them.",) if more > 0 else ()
    named = {name if len(kinds) > 1 else "All runs": (group, facts) for name, group, facts in kinds}
    runs = {head: tuple(run.name for run in group) for head, (group, _) in named.items()}
    table = facts_table(key, title, {head: facts for head, (_, facts) in named.items()}, runs)
    counts = (TableCell("Runs"), *(TableCell(f"{len(names):,}", len(names), names) for names in runs.values()))
    return replace(table, lines=(*table.lines, counts), notes=notes)


def hardware_facts(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return GPUs, link, processor, memory, storage and other facts of the nodes, each value once."""
    nodes = [node for run in runs for node in run.run.hardware]
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    told = [node for node in nodes if "gpus" in node]
    cores = (f"{_each(nodes, f'num_{kind}_cores')} {kind}" for kind in ("physical", "logical", "usable"))

    def counts(numbers: Iterable[int]) -> str:
        return ", ".join(map(str, sorted(set(numbers)))) or NOT_AVAILABLE

    return {
        "GPU model": _each(gpus, "name") if gpus or not told else "none",
        "GPUs per node": counts(len(gpus_of(node)) for node in told),
        "GPU memory": _each(gpus, "memory_bytes"),
        "Link of GPUs": _each(gpus, "link"),
        "Storage of the run": _each(nodes, "storage"),
        "Storage of the tokens": _each(nodes, "data_storage"),
        "Virtualisation": _each(nodes, "virtualisation"),
        "GPU driver": _each(nodes, "gpu_driver"),
        "CPU": _each(nodes, "cpu_model"),
        "CPU cores": ", ".join(text for text in cores if NOT_AVAILABLE not in text) or NOT_AVAILABLE,
        "RAM": _each(nodes, "ram_bytes"),
        "Nodes": counts(len(run.run.hardware) for run in runs if run.run.hardware),
        "Hosts": _each(nodes, "hostname"),
    }


def _each(parts: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return the different values of a fact."""
    texts = list(dict.fromkeys(fact_text(key, value) for part in parts if (value := part.get(key)) is not None))
    more = f" and {len(texts) - _MAX_VALUES} others" if len(texts) > _MAX_VALUES else ""
    return ("; ".join(texts[:_MAX_VALUES]) + more) or NOT_AVAILABLE
