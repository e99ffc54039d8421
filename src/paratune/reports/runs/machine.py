"""Hardware and software of a run as text, and the kinds of machines of runs."""

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.units import GIB, NOT_AVAILABLE, format_bytes
from paratune.records.finished import RunRecord, gpus_of, number_in
from paratune.reports.measures import over_sessions

_LIBRARIES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL"}
"""Libraries that are shown for runs on GPUs even when their version is unknown."""
_LEFT_OUT = {"python", "free_bytes"}  # facts that are shown with the software, or that change from hour to hour
_NODE = ("cpu_model", "num_physical_cores", "num_logical_cores")
_GPU = ("name", "memory_bytes")
"""Fields that identify the kind of a machine, in addition to its memory and the links of its GPUs."""


def machine_kinds(runs: Sequence[RunRecord]) -> list[Hashable]:
    """Return the kind of machine of each run; times and memory are comparable between runs of equal kinds.

    A kind is the CPU, the memory, the GPU model and the link of the GPUs. How many nodes and GPUs a run had does not
    count, nor do host names: a queue that lends one GPU of a node to a run and four to another lends the same machine.

    Args:
        runs: All runs that are compared. A run records the links between its own GPUs, so one with fewer GPUs may miss
            some links of the node, and one with a single GPU has none: it counts as having the links of another run
            with the same nodes that has these and more, when there is just one such set of links.
    """
    kinds = []
    for run in runs:
        models_of, links = set(), set[str]()
        for node in run.run.hardware:
            ram, gpus = number_in(node.get("ram_bytes")), gpus_of(node)
            models = frozenset(tuple(str(gpu.get(key)) for key in _GPU) for gpu in gpus)
            models_of.add((*(str(node.get(key)) for key in _NODE), None if ram is None else round(ram / GIB), models))
            links.update(kind for gpu in gpus if gpu.get("link") for kind in str(gpu["link"]).split("+"))
        kinds.append((frozenset(models_of), frozenset(links)))
    links_of = grouped(kinds)
    found: list[Hashable] = []
    for nodes, own in kinds:  # the only largest set of links of these nodes that contains its own
        wider = {links for links in links_of[nodes] if own <= links}
        largest = [links for links in wider if not any(links < other for other in wider)]
        found.append((nodes, largest[0] if len(largest) == 1 else own))
    return found


def software_facts(run: RunRecord) -> dict[str, str]:
    """Return package versions and the git commit; "old → new" when sessions differ."""
    facts: list[dict[str, str]] = []
    for session in (own.run for own in run.sessions):
        always = _LIBRARIES if session.device == "cuda" else {}
        known = {name: version for name, version in session.versions.items() if version is not None or name in always}
        facts.append({_LIBRARIES.get(name, name): value_text(version) for name, version in known.items()})
        if (commit := session.code.get("git_commit")) is not None:
            facts[-1]["git commit"] = f"{commit}{' with changes' if session.code.get('git_dirty') else ''}"
    keys = dict.fromkeys(key for by_key in facts for key in by_key)
    return {key: over_sessions(dict.fromkeys(by_key.get(key) for by_key in facts)) for key in keys}


def value_text(value: Any) -> str:
    """Return a value of a record as text: strings unchanged, others as JSON, None as n/a."""
    if value is None:
        return NOT_AVAILABLE
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def fact_text(key: str, value: Any) -> str:
    """Return a fact of a node or a device as text; numbers of bytes with their unit."""
    if str(key).endswith("_bytes") and number_in(value) is not None:
        return format_bytes(value)
    if isinstance(value, Mapping):
        parts = {str(name): part for name, part in value.items() if name not in _LEFT_OUT and part is not None}
        names = {name: name.removesuffix("_bytes").replace("_", " ") for name in parts}
        return ", ".join(f"{names[name]} {fact_text(name, part)}" for name, part in parts.items()) or NOT_AVAILABLE
    return ", ".join(map(value_text, value)) or "none" if isinstance(value, list) else value_text(value)
