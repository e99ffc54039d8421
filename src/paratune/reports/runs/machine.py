"""Hardware, software and settings of a run as text."""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from paratune.base.units import GIB, NOT_AVAILABLE, format_bytes
from paratune.records.finished import RunRecord, gpus_of
from paratune.reports.measures import ARROW
from paratune.reports.runs.sameness import Difference

NO_SUCH_SETTING = "no such setting"
_NAMES = {
    "hostname": "host",
    "cpu_model": "CPU",
    "cpu_flags": "CPU flags",
    "ram_bytes": "memory",
    "gpus": "GPUs",
    "gpu_driver": "GPU driver",
}
_LIBRARIES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL"}
"""Libraries that are shown for runs on GPUs even when their version is unknown."""
_LEFT_OUT = {"python", "free_bytes"}
"""Facts that are shown with the software, or that change from hour to hour."""
_NODE = ("cpu_model", "num_physical_cores", "num_logical_cores")
_GPU = ("name", "memory_bytes")
"""Fields that identify the kind of a machine, in addition to its memory and the links of its GPUs."""


def hardware_facts(run: RunRecord) -> dict[str, str]:
    """Return the hardware facts of each node; those of each session when a run moved."""
    facts = [(session.run.step, _nodes(session)) for session in run.sessions]
    moves = [pair for number, pair in enumerate(facts) if number == 0 or pair[1] != facts[number - 1][1]]
    if len(moves) == 1:
        return moves[0][1]
    return {f"from step {step}: {name}": text for step, nodes in moves for name, text in nodes.items()}


def machine_kinds(runs: Sequence[RunRecord]) -> list[Hashable]:
    """Return the kind of machine of each run; times and memory are comparable between runs of equal kinds.

    A kind is the CPU, the memory, the GPU model and the link of the GPUs. How many nodes and GPUs a run had does not
    count, nor do host names: a queue that lends one GPU of a node to a run and four to another lends the same machine.

    Args:
        runs: All runs that are compared. A run records the links between its own GPUs, so one with fewer GPUs may miss
            some links of the node, and one with a single GPU has none: it counts as having the links of another run
            with the same nodes that has these and more, when there is just one such set of links.
    """
    nodes = [frozenset(map(_node_kind, run.run.hardware)) for run in runs]
    links: dict[Hashable, set[frozenset[str]]] = {}
    for run, kind in zip(runs, nodes, strict=True):
        links.setdefault(kind, set()).add(_links(run))
    return [(kind, _widest(_links(run), links[kind])) for run, kind in zip(runs, nodes, strict=True)]


def _widest(own: frozenset[str], known: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the only largest set of links that contains `own`; `own` when there are several."""
    wider = [links for links in known if own <= links]
    largest = [links for links in wider if not any(links < other for other in wider)]
    return largest[0] if len(largest) == 1 else own


def on_same_machines(runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> bool:
    """Return whether two groups of runs used the same kinds of machine."""
    kinds = machine_kinds([*runs, *others])
    return set(kinds[: len(runs)]) == set(kinds[len(runs) :])


def _node_kind(node: Mapping[str, Any]) -> tuple[Any, ...]:
    ram = node.get("ram_bytes")
    gpus = frozenset(tuple(str(gpu.get(key)) for key in _GPU) for gpu in gpus_of(node))
    return (*(str(node.get(key)) for key in _NODE), round(ram / GIB) if isinstance(ram, int | float) else None, gpus)


def _links(run: RunRecord) -> frozenset[str]:
    texts = [str(link) for node in run.run.hardware for gpu in gpus_of(node) if (link := gpu.get("link"))]
    return frozenset(kind for text in texts for kind in text.split("+"))


def _nodes(run: RunRecord) -> dict[str, str]:
    nodes = run.run.hardware
    lines: dict[str, str] = {}
    for number, node in enumerate(nodes):
        prefix = f"node {number}: " if len(nodes) > 1 else ""
        for key, value in node.items():
            if key in _LEFT_OUT or (value is None and key.endswith("_limit_bytes")):
                continue
            name = _NAMES.get(key, str(key).replace("num_", "").replace("_bytes", "").replace("_", " "))
            lines[prefix + name] = _gpus(value) if key == "gpus" else fact_text(key, value)
    return lines


def software_facts(run: RunRecord) -> dict[str, str]:
    """Return package versions and the git commit; "old → new" when sessions differ."""
    facts = [_software(session) for session in run.sessions]
    keys = dict.fromkeys(key for session_facts in facts for key in session_facts)
    return {
        key: ARROW.join(dict.fromkeys(session_facts.get(key, NOT_AVAILABLE) for session_facts in facts)) for key in keys
    }


def _software(run: RunRecord) -> dict[str, str]:
    known = run.run.versions.items()
    always = _LIBRARIES if run.run.device == "cuda" else {}
    facts = {
        _LIBRARIES.get(name, str(name)): value_text(version)
        for name, version in known
        if version is not None or name in always
    }
    commit, dirty = run.run.code.get("git_commit"), run.run.code.get("git_dirty")
    if commit is not None:
        facts["git commit"] = f"{commit}{' with changes' if dirty else ''}"
    return facts


def setting_text(difference: Difference, run: str) -> str:
    """Return the value of a setting as a configuration file writes it."""
    if run not in difference.values:
        return NO_SUCH_SETTING
    value = difference.values[run]
    return "null" if value is None else value_text(value)


def value_text(value: Any) -> str:
    """Return a value of a record as text: strings unchanged, others as JSON, None as n/a."""
    if value is None:
        return NOT_AVAILABLE
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def fact_text(key: str, value: Any) -> str:
    """Return a fact of a node or a device as text; numbers of bytes with their unit."""
    if str(key).endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        return format_bytes(value)
    if isinstance(value, Mapping):
        return ", ".join(_parts(value)) or NOT_AVAILABLE
    return ", ".join(map(value_text, value)) or "none" if isinstance(value, list) else value_text(value)


def _parts(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if key not in _LEFT_OUT and value is not None:
            yield f"{str(key).removesuffix('_bytes').replace('_', ' ')} {fact_text(key, value)}"


def _gpus(gpus: Any) -> str:
    """Return "4 x name, memory, link" for each kind of GPU."""
    if not isinstance(gpus, list) or not gpus:
        return "none"
    texts = []
    for gpu in gpus:
        values = dict(gpu) if isinstance(gpu, dict) else {"name": gpu}
        texts.append(", ".join([value_text(values.pop("name", None)), *_parts(values)]))
    return "; ".join(f"{texts.count(text)} × {text}" for text in dict.fromkeys(texts))
