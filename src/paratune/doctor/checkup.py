"""Runs the checks and shows what they find."""

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
"""In the order in which their findings are shown."""

OF_THE_NODES: frozenset[Check] = frozenset(
    {
        *(devices.check_cores, devices.check_memory, devices.check_shared_memory, devices.check_gpus),
        *(devices.check_precision, processes.check_hostname, processes.check_loopback),
    }
)
"""What says nothing of a run when other machines make it: a login node has no GPU, and little of everything."""

OF_SEVERAL: frozenset[Check] = frozenset({processes.check_hostname, processes.check_loopback})
"""What says nothing of a run of one process without a group, which needs no network."""

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
"""Of a run, whose configuration is right by itself; in the order in which their findings are shown."""


def examine(out_folder: Path) -> list[Finding]:
    """Look at the machine and the installation.

    Args:
        out_folder: Where runs would be written; it need not exist and is not made.

    Returns:
        Findings in the order of `CHECKS`.
    """
    return judge(describe_machine(out_folder))


def judge(machine: MachineFacts, *, is_elsewhere: bool = False, is_single: bool = False) -> list[Finding]:
    """Run all checks; one that fails itself becomes a warning, because the others still say something.

    Args:
        machine: This one.
        is_elsewhere: Whether the run is made on other machines: what is theirs alone is not asked of this one.
        is_single: Whether the run is one of `strategy: single`.
    """
    left_out = (OF_THE_NODES if is_elsewhere else frozenset()) | (OF_SEVERAL if is_single else frozenset())
    return _judged([check for check in CHECKS if check not in left_out], machine)


def judge_setup(setup: QueuedRun) -> list[Finding]:
    """Run the checks of a run: all of them when its configuration can be run, else those of its options alone."""
    checks: tuple[SetupCheck, ...] = (configuration.check_options,)
    return _judged(checks if setup.loaded is None else checks + SETUP_CHECKS, setup)


def _judged(checks: Iterable[Callable[[Any], Iterable[Finding]]], what: Any) -> list[Finding]:
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check(what))
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
    with looking("Looking at this machine", silent=json):
        machine = describe_machine(Path(folder))
        findings = judge(machine)
    return tell(findings, machine, as_json=json)


@contextmanager
def looking(what: str, *, silent: bool) -> Iterator[None]:
    """Show that something is looked at, for as long as it takes."""
    from rich.console import Console

    if silent:
        yield
        return
    with Console(highlight=False).status(what):
        yield


def tell(findings: list[Finding], machine: MachineFacts, *, as_json: bool) -> int:
    """Print findings; return the exit code, 1 when one of them is a problem."""
    from rich.console import Console

    if as_json:
        result = {"schema_version": 1, "ok": not _has_problem(findings), "findings": [asdict(one) for one in findings]}
        print_json({**result, "node": machine.node, "versions": machine.versions}, indent=1)
    else:
        _show(Console(highlight=False), findings)
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
        place = "" if finding.where == HERE or finding.where in finding.what else f"{finding.where}: "
        repair = (
            f"{finding.line}   ({finding.remedy})"
            if finding.line and finding.remedy
            else finding.line or finding.remedy
        )
        lines = (plain(place + finding.what), plain(finding.why), repair and plain(f"-> {repair}"))
        grid.add_row(Text(finding.level, styles[finding.level]), Text("\n".join(line for line in lines if line)))
    console.print(grid)
    counts = {level: sum(one.level == level for one in findings) for level in ("problem", "warning", "note")}
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
