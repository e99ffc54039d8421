"""Runs the checks and prints their findings."""

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.base.text import plain
from paratune.base.units import format_bytes, format_number
from paratune.console import print_json, print_result
from paratune.doctor import (
    configuration,
    devices,
    feasible,
    files,
    installation,
    model_files,
    processes,
    starting,
    storage,
    torch_builds,
)
from paratune.doctor.finding import HERE, Check, Finding, MachineFacts
from paratune.doctor.setup import QueuedRun, SetupCheck
from paratune.errors import EXIT_FAILED, EXIT_OK

CHECKS: tuple[Check, ...] = (
    installation.check_packages,
    devices.check_torch,
    processes.check_distributed,
    storage.check_disks,
)
"""The checks of the machine that apply to every run."""
NODE_CHECKS: tuple[Check, ...] = (
    devices.check_cores,
    devices.check_memory,
    devices.check_shared_memory,
    devices.check_gpus,
)
"""Checks that are skipped when the run is on other machines: a login node has no GPU and few resources."""
GROUP_CHECKS: tuple[Check, ...] = (processes.check_hostname, processes.check_loopback)
"""Checks that are also skipped for a run of one process, which needs no network."""
SETUP_CHECKS: tuple[SetupCheck, ...] = (
    configuration.check_run_folder,
    configuration.check_needed_extras,
    configuration.check_trackers,
    configuration.check_steps,
    files.check_sources,
    files.check_columns,
    files.check_missing,
    files.check_labels,
    files.check_parts,
    files.check_lengths,
    files.check_amount,
    model_files.check_model,
    model_files.check_vocabulary,
    model_files.check_half_precision,
    model_files.check_states_fit,
    feasible.check_feasible,
    starting.check_devices,
    starting.check_site,
    starting.check_visible,
    starting.check_gpu_state,
    starting.check_workers,
    storage.check_room,
    storage.check_nodes_share,
    torch_builds.check_driver,
    torch_builds.check_kernels,
)
"""The checks of a run with a valid configuration, in the order of their findings."""


def judge(machine: MachineFacts, *, is_elsewhere: bool = False, is_single: bool = False) -> list[Finding]:
    """Run the checks of the machine, and return their findings; a check that raises an exception gives a warning.

    A run on other machines (`is_elsewhere`) skips `NODE_CHECKS`, and a run of one process (`is_single`) `GROUP_CHECKS`.
    """
    checks = CHECKS if is_elsewhere else CHECKS + NODE_CHECKS
    return _run_checks(checks if is_elsewhere or is_single else checks + GROUP_CHECKS, machine)


def judge_setup(setup: QueuedRun) -> list[Finding]:
    """Run all checks of a run, or only those of its options if the configuration is invalid."""
    checks: tuple[SetupCheck, ...] = (configuration.check_options,)
    return _run_checks(checks if setup.loaded is None else checks + SETUP_CHECKS, setup)


def _run_checks(checks: Iterable[Callable[[Any], Iterable[Finding]]], facts: Any) -> list[Finding]:
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check(facts))
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            fact = f"{name} could not be checked: {type(error).__name__}: {error}"
            findings.append(Finding("check", "warning", fact))
    return findings


def print_findings(findings: list[Finding], machine: MachineFacts, setup: QueuedRun | None, *, as_json: bool) -> int:
    """Print findings; return the exit code, 1 when one of them is a problem.

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
        print_json({**result, "node": machine.node, "versions": machine.versions}, indent=1)
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
            notes.append(" ".join((f"note: {fact}{stop}", *others)))
            continue
        style = {"warning": "yellow", "problem": "bold red"}[finding.level]
        grid.add_row(Text(finding.level, style), Text("\n".join(lines)))
    if grid.row_count:
        print_result(grid)
    if setup is not None and setup.loaded is not None:
        notes.append(plain(_run_line(setup)))
    counts = {level: sum(finding.level == level for finding in findings) for level in ("problem", "warning")}
    counted = [f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items() if count]
    conclusion = f"{', '.join(counted) or 'no problems'}: {plain(_machine_line(machine))}"
    print_result(Text("\n".join([*notes, conclusion])), is_prose=True)
    return exit_code


def _machine_line(machine: MachineFacts) -> str:
    node = machine.node
    names = [gpu["name"] for gpu in node["gpus"] or []]
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    memory = min(value for value in (node["ram_bytes"], node["ram_limit_bytes"]) if value is not None)
    return (
        f"torch {machine.versions['torch'] or 'n/a'}, {format_number(node['num_usable_cores'])} cores, "
        f"{format_bytes(memory)} of memory, {'GPUs n/a' if node['gpus'] is None else gpus}"
    )


def _run_line(setup: QueuedRun) -> str:
    """Return a line with the rows, the model and the processes of a run, as far as they are known."""
    start, model = setup.start, setup.model
    parts = [f"{split.name} {split.num_rows:,}" for split in setup.data.splits] if setup.data else []
    parts = [f"{', '.join(parts)} rows"] if parts else []
    if model is not None and model.num_parameters is not None:
        parts.append(f"{model.model_type or 'model'} with {model.num_parameters:,} parameters")
    parts.append(f"{start.world_size} process{'es' * (start.world_size > 1)}")
    if start.num_nodes > 1:
        parts[-1] += f" on {start.num_nodes} nodes"
    return f"{setup.path}: {'; '.join(parts)}"


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
