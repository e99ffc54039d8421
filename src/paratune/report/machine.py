"""Hardware, software and settings of a run in words."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from paratune.base.units import GIB, NOT_AVAILABLE, format_bytes
from paratune.report.compare import Difference
from paratune.report.read import RunRecord
from paratune.report.table import ARROW

NO_SUCH_SETTING = "no such setting"
_NAMES = {"hostname": "host", "cpu_model": "CPU", "cpu_flags": "CPU flags", "ram_bytes": "memory", "gpus": "GPUs"}
_LEFT_OUT = {"python", "free_bytes"}
"""Told with the software; and what changes from hour to hour. The record has them."""
_NODE = ("cpu_model", "num_physical_cores", "num_logical_cores")
_GPU = ("name", "memory_bytes", "link")
"""What of a node and its GPUs makes it another machine, beside its memory; hosts of one kind are the same one."""


def hardware_facts(run: RunRecord) -> dict[str, str]:
    """Return what each node of a run was, one readable line a fact; of each session, when it moved."""
    facts = [(session.get("run.step"), _nodes(session)) for session in run.sessions]
    moves = [one for number, one in enumerate(facts) if number == 0 or one[1] != facts[number - 1][1]]
    if len(moves) == 1:
        return moves[0][1]
    return {f"from step {step}: {name}": text for step, nodes in moves for name, text in nodes.items()}


def machine_of(run: RunRecord) -> tuple[Any, ...]:
    """Return what tells the machines of runs apart: CPU, cores, memory and GPUs of each node; not their names."""
    nodes = run.get("run.hardware")
    return tuple(_node(node) for node in nodes if isinstance(node, Mapping)) if isinstance(nodes, list) else ()


def _node(node: Mapping[str, Any]) -> tuple[Any, ...]:
    ram, gpus = node.get("ram_bytes"), node.get("gpus")
    kinds = []
    for gpu in gpus if isinstance(gpus, list) else ():
        kinds.append(str([gpu.get(key) for key in _GPU]) if isinstance(gpu, Mapping) else str(gpu))
    return (
        *(str(node.get(key)) for key in _NODE),
        round(ram / GIB) if isinstance(ram, int | float) else None,
        tuple(kinds),
    )


def _nodes(run: RunRecord) -> dict[str, str]:
    found = run.get("run.hardware")
    nodes = [node for node in found if isinstance(node, dict)] if isinstance(found, list) else []
    lines: dict[str, str] = {}
    for number, node in enumerate(nodes):
        prefix = f"node {number}: " if len(nodes) > 1 else ""
        for key, value in node.items():
            if key in _LEFT_OUT or (value is None and key.endswith("_limit_bytes")):
                continue
            name = _NAMES.get(key, str(key).replace("num_", "").replace("_bytes", "").replace("_", " "))
            lines[prefix + name] = _gpus(value) if key == "gpus" else _fact(key, value)
    return lines


def software_facts(run: RunRecord) -> dict[str, str]:
    """Return the versions of what was installed, and the commit of a checkout; "old → new" where sessions differ."""
    facts = [_software(session) for session in run.sessions]
    keys = dict.fromkeys(key for one in facts for key in one)
    return {key: ARROW.join(dict.fromkeys(one.get(key, NOT_AVAILABLE) for one in facts)) for key in keys}


def _software(run: RunRecord) -> dict[str, str]:
    versions = run.get("run.versions")
    known = versions.items() if isinstance(versions, dict) else ()
    facts = {str(name): written(version) for name, version in known if version is not None}
    commit, dirty = run.get("run.code.git_commit"), run.get("run.code.git_dirty")
    if commit is not None:
        facts["git commit"] = f"{commit}{' with changes' if dirty else ''}"
    return facts


def setting_text(difference: Difference, run: str) -> str:
    """Return the value of a setting in a run as a configuration file would have it."""
    if run not in difference.values:
        return NO_SUCH_SETTING
    value = difference.values[run]
    return "null" if value is None else written(value)


def written(value: Any) -> str:
    """Return a value of a record: texts as they are, others as JSON, None as n/a."""
    if value is None:
        return NOT_AVAILABLE
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _fact(key: str, value: Any) -> str:
    if str(key).endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        return format_bytes(value)
    if isinstance(value, Mapping):
        return ", ".join(_parts(value)) or NOT_AVAILABLE
    return ", ".join(map(written, value)) or "none" if isinstance(value, list) else written(value)


def _parts(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if key not in _LEFT_OUT and value is not None:
            yield f"{str(key).removesuffix('_bytes').replace('_', ' ')} {_fact(key, value)}"


def _gpus(gpus: Any) -> str:
    """Return "4 x name, memory, link" for each kind of GPU."""
    if not isinstance(gpus, list) or not gpus:
        return "none"
    texts = []
    for gpu in gpus:
        values = dict(gpu) if isinstance(gpu, dict) else {"name": gpu}
        texts.append(", ".join([written(values.pop("name", None)), *_parts(values)]))
    return "; ".join(f"{texts.count(text)} × {text}" for text in dict.fromkeys(texts))
