"""Runs the checks and prints their findings."""

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.base.text import plain
from paratune.base.units import format_bytes, format_number
from paratune.console import print_json, print_screen
from paratune.doctor import files, machine, model_files, options, start
from paratune.doctor.facts import HERE, Finding, MachineFacts, QueuedRun
from paratune.errors import EXIT_FAILED, EXIT_OK

Check = Callable[[MachineFacts], Iterable[Finding]]
SetupCheck = Callable[[QueuedRun], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    machine.check_packages,
    machine.check_torch,
    machine.check_disks,
)
"""The checks of the machine that apply to every run."""
NODE_CHECKS: tuple[Check, ...] = (
    machine.check_cores,
    machine.check_memory,
    machine.check_gpus,
)
"""Checks that are skipped when the run is on other machines: a login node has no GPU and few resources."""
SETUP_CHECKS: tuple[SetupCheck, ...] = (
    options.check_options,
    options.check_run_folder,
    options.check_services,
    options.check_steps,
    files.check_sources,
    files.check_labels,
    files.check_parts,
    files.check_lengths,
    model_files.check_model,
    model_files.check_half_precision,
    model_files.check_states_fit,
    options.check_feasible,
    start.check_devices,
    start.check_visible,
    start.check_gpu_state,
    start.check_workers,
    start.check_room,
    start.check_folders,
    start.check_build,
)
"""The checks of a run in the order of their findings; an invalid configuration has only the first."""


def judge(checks: Iterable[Callable[[Any], Iterable[Finding]]], facts: MachineFacts | QueuedRun) -> list[Finding]:
    """Run checks, and return their findings; a check that raises an exception gives a warning."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check(facts))
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            fact = f"{name} could not be checked: {type(error).__name__}: {error}"
            findings.append(Finding("check", "warning", fact))
    return findings


def print_findings(
    findings: list[Finding], facts: MachineFacts, setup: QueuedRun | None, *, all_: bool, as_json: bool
) -> int:
    """Print the conclusion and the findings; return the exit code, 1 when one of them is a problem.

    Args:
        setup: The run, for a line with its data and its model; None for this machine alone.
        as_json: Print one object: ok, findings, node, versions.
    """
    from rich.table import Table
    from rich.text import Text

    has_problem = any(finding.level == "problem" for finding in findings)
    exit_code = EXIT_FAILED if has_problem else EXIT_OK
    if as_json:
        result = {"schema_version": 1, "ok": not has_problem, "findings": [asdict(finding) for finding in findings]}
        print_json({**result, "node": facts.node, "versions": facts.versions}, indent=1)
        return exit_code
    # Two columns, so that wrapped lines stay next to their level.
    grid = Table.grid(padding=(0, 1))
    notes = []
    for finding in findings:
        place = "" if finding.where == HERE or finding.where in finding.fact else f"{finding.where}: "
        repair = finding.line or finding.remedy
        if finding.line and finding.remedy:
            repair += f"   ({finding.remedy})"
        lines = [plain(line) for line in (place + finding.fact, finding.why, repair and f"-> {repair}") if line]
        if finding.level == "note":
            fact, *others = lines
            stop = "." if finding.why else ""
            more = "  (--all)" if others else ""
            notes.append(" ".join((f"note: {fact}{stop}", *others)) if all_ else f"note: {fact}{more}")
            continue
        style = {"warning": "yellow", "problem": "bold red"}[finding.level]
        grid.add_row(Text(finding.level, style), Text("\n".join(lines)))
    if setup is not None and setup.loaded is not None:
        model, num_processes, num_nodes = setup.model, setup.start.world_size, setup.start.num_nodes
        rows = ", ".join(f"{split.name} {split.num_rows:,}" for split in setup.data.splits) if setup.data else ""
        parts = [f"{rows} rows"] if rows else []
        if model is not None and model.num_parameters is not None:
            parts.append(f"{model.model_type or 'model'} with {model.num_parameters:,} parameters")
        nodes = f" on {num_nodes} nodes" if num_nodes > 1 else ""
        parts.append(f"{num_processes} process{'es' * (num_processes > 1)}{nodes}")
        notes.append(plain(f"{setup.path.name}: {'; '.join(parts)}"))
    counts = {level: sum(finding.level == level for finding in findings) for level in ("problem", "warning")}
    counted = [f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items() if count]
    node = facts.node
    names = [gpu["name"] for gpu in node["gpus"] or []]
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    memory = min(value for value in (node["ram_bytes"], node["ram_limit_bytes"]) if value is not None)
    conclusion = plain(
        f"{', '.join(counted) or 'no problems'}: torch {facts.versions['torch'] or 'n/a'}, "
        f"{format_number(node['num_usable_cores'])} cores, {format_bytes(memory)} of memory, "
        f"{'GPUs n/a' if node['gpus'] is None else gpus}"
    )
    print_screen(conclusion, *[grid] * bool(grid.row_count), *notes, all_=all_)
    return exit_code


def describe_machine(out_folder: Path) -> MachineFacts:
    """Describe this machine once for all checks.

    Args:
        out_folder: Folder of runs; it need not exist and is not created.
    """
    cache = os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune"
    return MachineFacts(
        node=hardware.describe_node(out_folder),
        versions=hardware.package_versions(),
        out_folder=out_folder,
        cache_folder=Path(cache).expanduser(),
        num_affine_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    )
