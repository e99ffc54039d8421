"""Input and output of the checks: facts about the machine, and findings."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = "this machine"
Level = Literal["note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """A result of a check; a check that finds nothing to report has none."""

    code: str
    """Short stable name, for scripts; several findings may have the same."""
    level: Level
    """note: good to know; warning: works, but slowly or not always; problem: something will not work."""
    fact: str
    """The result, in words."""
    why: str = ""
    """Why it matters."""
    remedy: str = ""
    """The action that repairs it."""
    where: str = HERE
    """A line of a file, an option, a variable, or this machine."""
    line: str = ""
    """The line that repairs it: `key: value` of the configuration, or a shell command; "" without such a line."""


@dataclass(frozen=True)
class MachineFacts:
    """Facts about this machine; collected once, so that each check is a function of plain values."""

    node: Mapping[str, Any]
    """From `hardware.describe_node`."""
    versions: Mapping[str, str | None]
    """From `hardware.package_versions`."""
    out_folder: Path
    cache_folder: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    num_affine_cores: int | None = None
    """Cores in the CPU affinity of this process, before the quota of a container; None if unknown."""


Check = Callable[[MachineFacts], Iterable[Finding]]
