"""What the doctor's checks take and give."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = "this machine"
Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    code: str
    """Short fixed name, for scripts; several findings may share one."""
    level: Level
    """ok; note: good to know; warning: works, but slowly or not always; problem: something will not work."""
    what: str
    """What was found."""
    why: str = ""
    """Why it matters."""
    remedy: str = ""
    """What to do about it."""
    where: str = HERE
    """Where it was found: a line of a file, an option, a variable, or this machine."""
    line: str = ""
    """The line that repairs it, as it is typed: `key: value` of the configuration, or a command of the shell. Empty
    where no single line does."""


@dataclass(frozen=True)
class MachineFacts:
    """What the checks judge; gathered once, so that each check is a function of plain values."""

    node: Mapping[str, Any]
    """As `hardware.describe_node` gives it."""
    versions: Mapping[str, str | None]
    """As `hardware.package_versions` gives it."""
    out_folder: Path
    cache_folder: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    home: Path = field(default_factory=Path.home)
    num_affine_cores: int | None = None
    """Cores that the system lets this process run on, whatever a container's quota leaves of them; None if unknown."""


Check = Callable[[MachineFacts], Iterable[Finding]]
