"""The tables of systems, of model and batch, and of software, with a column for each kind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import NOT_AVAILABLE, format_bytes
from paratune.reports.runs.machine import node_gpus, run_nodes, software_facts, value_text
from paratune.reports.runs.read import RunRecord
from paratune.reports.systems.labels import machine_letter
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Table, TableCell, facts_table, make_table

_STORAGE = ("kind", "filesystem")
_MAX_HOSTS = 6
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


Kind = tuple[Sequence[RunRecord], Mapping[str, str]]
"""Runs with common facts."""


def machine_tables(systems: Systems) -> Iterator[Table]:
    """Yield the tables of hardware, of model and batch, and of software."""
    runs = systems.runs
    if not runs:
        return
    machines = [(group, _hardware(group)) for group in systems.machines.values()]
    yield _table("systems", "Systems", "System", machines)
    yield _models(runs)
    software = grouped((tuple(software_facts(run).items()), run) for run in runs)
    yield _table("software", "Software", "", [(group, dict(facts)) for facts, group in software.items()])


def _table(key: str, title: str, name: str, kinds: Sequence[Kind]) -> Table:
    """Return a table with a line for each fact and a column for each kind."""
    kinds, more = kinds[:_MAX_KINDS], len(kinds) - _MAX_KINDS
    notes = (f"{more} others are not shown; run.json of each run has them.",) if more > 0 else ()
    heads = ["All runs"]
    if len(kinds) > 1:
        heads = [f"{name} {machine_letter(number)}".strip() for number in range(len(kinds))]
    runs = {head: tuple(run.name for run in group) for head, (group, _) in zip(heads, kinds, strict=True)}
    table = facts_table(key, title, {head: facts for head, (_, facts) in zip(heads, kinds, strict=True)}, runs)
    counts = (TableCell("Runs"), *(TableCell(f"{len(names):,}", len(names), names) for names in runs.values()))
    return replace(table, lines=(*table.lines, counts), notes=notes)


def _hardware(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return GPUs, link, processor, memory, storage and other facts of the nodes, each value once."""
    nodes = [node for run in runs for node in run_nodes(run)]
    hosts = dict.fromkeys(value_text(node.get("hostname")) for node in nodes)
    num_nodes = sorted({len(run_nodes(run)) for run in runs})
    num_gpus = sorted({len(node_gpus(node)) for node in nodes})
    more = f" and {len(hosts) - _MAX_HOSTS} more" if len(hosts) > _MAX_HOSTS else ""
    return {
        "GPU model": _each(nodes, lambda node: _gpu_facts(node, "name")),
        "GPUs per node": ", ".join(map(str, num_gpus)) or NOT_AVAILABLE,
        "GPU memory": _each(nodes, lambda node: _gpu_facts(node, "memory_bytes")),
        "Link of GPUs": _each(nodes, lambda node: _gpu_facts(node, "link")),
        "Storage of the run": _each(nodes, lambda node: _storage(node.get("storage"))),
        "Storage of the tokens": _each(nodes, lambda node: _storage(node.get("data_storage"))),
        "Virtualisation": _each(nodes, _virtualisation),
        "GPU driver": _each(nodes, lambda node: value_text(node.get("gpu_driver"))),
        "CPU": _each(nodes, lambda node: value_text(node.get("cpu_model"))),
        "CPU cores": _each(nodes, _cores),
        "RAM": _each(nodes, lambda node: _bytes(node.get("ram_bytes"))),
        "Nodes": ", ".join(str(number) for number in num_nodes if number) or NOT_AVAILABLE,
        "Hosts": (", ".join(list(hosts)[:_MAX_HOSTS]) + more) or NOT_AVAILABLE,
    }


def _each(nodes: Sequence[Mapping[str, Any]], text_of_node: Callable[[Mapping[str, Any]], str]) -> str:
    texts = dict.fromkeys(text_of_node(node) for node in nodes)
    return "; ".join(text for text in texts if text != NOT_AVAILABLE) or NOT_AVAILABLE


def _gpu_facts(node: Mapping[str, Any], key: str) -> str:
    gpus = node_gpus(node)
    values = [value for gpu in gpus if (value := gpu.get(key)) is not None] or [None] * bool(gpus)
    texts = [_bytes(value) if key.endswith("_bytes") else value_text(value) for value in values]
    return ", ".join(dict.fromkeys(texts)) or ("none" if key == "name" else NOT_AVAILABLE)


def _storage(storage: Any) -> str:
    if not isinstance(storage, Mapping):
        return value_text(storage)
    return ", ".join(str(storage[key]) for key in _STORAGE if storage.get(key) is not None) or NOT_AVAILABLE


def _virtualisation(node: Mapping[str, Any]) -> str:
    facts = node.get("virtualisation")
    if not isinstance(facts, Mapping):
        return value_text(facts)
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value is not None) or NOT_AVAILABLE


def _cores(node: Mapping[str, Any]) -> str:
    kinds = ("physical", "logical", "usable")
    known = [(kind, node.get(f"num_{kind}_cores")) for kind in kinds]
    return ", ".join(f"{count:g} {kind}" for kind, count in known if isinstance(count, int | float)) or NOT_AVAILABLE


def _bytes(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return format_bytes(value) if is_number else NOT_AVAILABLE


def _models(runs: Sequence[RunRecord]) -> Table:
    """Return model, data and batch, each fact with all its values."""
    rows, names = [], tuple(run.name for run in runs)
    for name, source in _MODEL:
        values = list(dict.fromkeys(_fact(source, run.get(source)) for run in runs))
        more = f" and {len(values) - _MAX_VALUES} others" if len(values) > _MAX_VALUES else ""
        rows.append((name, TableCell("; ".join(values[:_MAX_VALUES]) + more, runs=names, source=source)))
    return make_table("models", "Model and batch", (("", "fact"), ("All runs", "values")), rows, 2)


def _fact(source: str, value: Any) -> str:
    if source.endswith("_bytes") and isinstance(value, int):
        return f"{value / 1e6:,.1f}"
    if type(value) is float:  # learning rates too: six digits are more than anyone sets
        return f"{value:.6g}"
    return f"{value:,}" if type(value) is int else value_text(value)
