"""Checks of the installed packages."""

import operator as op
import re
from collections.abc import Iterator, Mapping
from importlib import metadata

from paratune.doctor.finding import Finding, MachineFacts

OF_DEVELOPERS = ("dev", "docs", "release")
"""Extras without features for users."""


def check_packages(machine: MachineFacts) -> Iterator[Finding]:
    for name, wanted, extra in requirements():
        version = None if extra is not None else _installed(name)
        if extra is not None or (version is not None and meets(version, wanted)):
            continue
        found = f"{name} is not installed" if version is None else f"{name} {version} is installed; {wanted} is needed"
        line = f"pip install '{name}{wanted}'"
        yield Finding("packages", "problem", found, "paratune cannot run without it.", line=line)


def check_extras() -> Iterator[Finding]:
    missing = [
        extra
        for name, wanted, extra in requirements()
        if extra not in (None, *OF_DEVELOPERS) and ((version := _installed(name)) is None or not meets(version, wanted))
    ]
    if missing:
        yield Finding("extras", "note", f"missing extras: {', '.join(map(str, dict.fromkeys(missing)))}")


def requirements(package: str = "paratune") -> list[tuple[str, str, str | None]]:
    """Return (name, version range, extra or None) of each requirement in the package's own metadata."""
    result = []
    for text in metadata.requires(package) or []:
        match = re.match(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?", text)
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", text)
        if match:
            result.append((match[1], match[2].strip(), extra[1] if extra else None))
    return result


def meets(version: str, wanted: str) -> bool:
    """Return whether a version is in a range such as ">=2.11" or ">=5,<6"; only numbers are compared."""
    compare = {">=": op.ge, "<=": op.le, "==": op.eq, "!=": op.ne, ">": op.gt, "<": op.lt}
    have = _numbers(version)
    return all(compare[sign](have, _numbers(want)) for sign, want in re.findall(r"([<>=!]=|[<>])\s*([\w.]+)", wanted))


def _numbers(version: str) -> list[int]:
    """Return "2.13.0+cpu" as [2, 13], without trailing zeros and the part after a plus."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def is_offline(environ: Mapping[str, str]) -> bool:
    """Return whether the environment forbids requests to the hub."""
    value = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")
