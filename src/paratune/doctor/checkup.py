"""Runs the checks and prints their findings."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.base.text import plain
from paratune.console import print_json
from paratune.doctor import (
    configuration,
    devices,
    feasible,
    files,
    installation,
    model_files,
    processes,
    room,
    starting,
    storage,
    versions,
)
from paratune.doctor.finding import HERE, Check, Finding, MachineFacts
from paratune.doctor.setup import QueuedRun, SetupCheck
from paratune.errors import EXIT_FAILED, EXIT_OK

CHECKS: tuple[Check, ...] = (
    installation.check_packages,
    installation.check_extras,
    installation.check_demo,
    devices.check_torch,
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
    installation.check_compiled,
)
"""The checks of the machine, in the order of their findings."""
NODE_CHECKS: frozenset[Check] = frozenset(
    {
        *(devices.check_cores, devices.check_memory, devices.check_shared_memory, devices.check_gpus),
        *(devices.check_precision, processes.check_hostname, processes.check_loopback),
    }
)
"""Checks that are skipped when the run is on other machines: a login node has no GPU and few resources."""
GROUP_CHECKS: frozenset[Check] = frozenset({processes.check_hostname, processes.check_loopback})
"""Checks that are skipped for a run of one process, which needs no network."""
SETUP_CHECKS: tuple[SetupCheck, ...] = (
    configuration.check_run_folder,
    configuration.check_needed_extras,
    configuration.check_trackers,
    configuration.check_steps,
    configuration.check_order_of_sums,
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
    starting.check_slurm,
    starting.check_variables,
    starting.check_meeting,
    starting.check_switched_off,
    starting.check_nodes_share,
    room.check_room,
    room.check_speed,
    room.check_clocks,
    room.check_time_limit,
    versions.check_driver,
    versions.check_kernels,
    versions.check_nccl,
    versions.check_toolchain,
    versions.check_gpu_state,
    versions.check_topology,
    versions.check_numa,
    versions.check_shared_room,
    versions.check_environment,
)
"""The checks of a run with a valid configuration, in the order of their findings."""


def examine(out_folder: Path) -> list[Finding]:
    """Check the machine and the installation.

    Args:
        out_folder: Folder of runs; it need not exist and is not created.

    Returns:
        Findings in the order of `CHECKS`.
    """
    return judge(describe_machine(out_folder))


def judge(machine: MachineFacts, *, is_elsewhere: bool = False, is_single: bool = False) -> list[Finding]:
    """Run all checks, and return their findings; a check that raises an exception gives a warning.

    A run on other machines (`is_elsewhere`) skips `NODE_CHECKS`, and a run of one process (`is_single`) `GROUP_CHECKS`.
    """
    skipped = (NODE_CHECKS if is_elsewhere else frozenset()) | (GROUP_CHECKS if is_single else frozenset())
    return _run_checks([check for check in CHECKS if check not in skipped], machine)


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


def run(json: bool = False, folder: str | Path = "runs") -> int:
    """Print the findings of `examine`, with `json` as one object: ok, findings, node, versions.

    Returns:
        The exit code: 0, or 1 when there is a problem.
    """
    with shown_status("Checking this machine", silent=json):
        machine = describe_machine(Path(folder))
        findings = judge(machine)
    return print_findings(findings, machine, as_json=json)


@contextmanager
def shown_status(text: str, *, silent: bool) -> Iterator[None]:
    """Show a status text in the terminal while the block runs."""
    from rich.console import Console

    if silent:
        yield
        return
    with Console(highlight=False).status(text):
        yield


def print_findings(findings: list[Finding], machine: MachineFacts, *, as_json: bool) -> int:
    """Print findings; return the exit code, 1 when one of them is a problem."""
    from rich.console import Console

    has_problem = any(finding.level == "problem" for finding in findings)
    if as_json:
        result = {"schema_version": 1, "ok": not has_problem, "findings": [asdict(finding) for finding in findings]}
        print_json({**result, "node": machine.node, "versions": machine.versions}, indent=1)
    else:
        _show(Console(highlight=False), findings)
    return EXIT_FAILED if has_problem else EXIT_OK


def _show(console: Any, findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}
    # Two columns, so that wrapped lines stay next to their level.
    grid = Table.grid(padding=(0, 1))
    for finding in findings:
        place = "" if finding.where == HERE or finding.where in finding.fact else f"{finding.where}: "
        repair = finding.line or finding.remedy
        if finding.line and finding.remedy:
            repair += f"   ({finding.remedy})"
        lines = (plain(place + finding.fact), plain(finding.why), repair and plain(f"-> {repair}"))
        grid.add_row(Text(finding.level, styles[finding.level]), Text("\n".join(line for line in lines if line)))
    console.print(grid)
    counts = {level: sum(finding.level == level for finding in findings) for level in ("problem", "warning", "note")}
    console.print(", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items()))


def describe_machine(out_folder: Path) -> MachineFacts:
    """Describe this machine once for all checks."""
    cache = os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune"
    return MachineFacts(
        node=hardware.describe_node(out_folder),
        versions=hardware.package_versions(),
        out_folder=out_folder,
        cache_folder=Path(cache).expanduser(),
        num_affine_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    )
