"""Runs the checks and shows what they find."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.console import print_json
from paratune.doctor import devices, installation, processes, storage
from paratune.doctor.finding import Check, Finding, Machine
from paratune.errors import EXIT_FAILED, EXIT_OK

CHECKS: tuple[Check, ...] = (
    installation.check_packages,
    installation.check_extras,
    installation.check_demo,
    devices.check_cores,
    devices.check_memory,
    devices.check_shared_memory,
    devices.check_gpus,
    devices.check_precision,
    processes.check_distributed,
    processes.check_hostname,
    processes.check_loopback,
    storage.check_disks,
    installation.check_hub,
    installation.check_deepspeed,
    installation.check_extension_locks,
)
"""In the order in which their findings are shown."""


def examine(out_folder: Path) -> list[Finding]:
    """Look at the machine and the installation.

    Args:
        out_folder: Where runs would be written; it need not exist and is not made.

    Returns:
        Findings in the order of `CHECKS`.
    """
    return judge(_gather(out_folder))


def judge(machine: Machine) -> list[Finding]:
    """Run all checks; one that fails itself becomes a warning, because the others still say something."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings.extend(check(machine))
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            findings.append(
                Finding("check", "warning", f"{name} could not be looked at: {type(error).__name__}: {error}")
            )
    return findings


def run(json: bool = False, folder: str | Path = "runs") -> int:
    """Print what `examine` finds.

    Args:
        json: One JSON object instead of text: ok, findings, node, versions.
        folder: Where runs would be written.

    Returns:
        The exit code: 0, or 1 when there is a problem.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if json:
        machine = _gather(Path(folder))
        findings = judge(machine)
        result = {"schema_version": 1, "ok": not _has_problem(findings), "findings": [asdict(one) for one in findings]}
        print_json({**result, "node": machine.node, "versions": machine.versions}, indent=1)
    else:
        with console.status("Looking at this machine"):
            findings = examine(Path(folder))
        _show(console, findings)
    return EXIT_FAILED if _has_problem(findings) else EXIT_OK


def _has_problem(findings: Iterable[Finding]) -> bool:
    return any(finding.level == "problem" for finding in findings)


def _show(console: Any, findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}
    # Two columns, so that what is wrapped stays beside its level.
    grid = Table.grid(padding=(0, 1))
    for finding in findings:
        lines = (finding.what, finding.why, finding.remedy and f"-> {finding.remedy}")
        grid.add_row(Text(finding.level, styles[finding.level]), Text("\n".join(line for line in lines if line)))
    console.print(grid)
    counts = {level: sum(one.level == level for one in findings) for level in ("problem", "warning", "note")}
    console.print(", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items()))


def _gather(out_folder: Path) -> Machine:
    cache = os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune"
    return Machine(
        node=hardware.describe_node(out_folder),
        versions=hardware.package_versions(),
        out_folder=out_folder,
        cache_folder=Path(cache).expanduser(),
    )
