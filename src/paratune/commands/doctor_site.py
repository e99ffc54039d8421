"""The facts about a site file that `paratune doctor --site` checks."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from paratune import hardware
from paratune.cluster.site import Site, processes_per_node
from paratune.doctor.setup import Start
from paratune.errors import ConfigError, did_you_mean, require_at_least


def check_size(site: Path | None, nodes: int | None, gpus_per_node: int | None, num_processes: int | None) -> None:
    """Raise a `ConfigError` if options contradict each other or are out of range."""
    if site is None and (nodes is not None or gpus_per_node is not None):
        raise ConfigError(
            "--nodes and --gpus-per-node describe a cluster: name its file with --site",
            code="cli.option_missing",
            option="--site",
        )
    if site is not None and num_processes is not None:
        raise ConfigError(
            "--nproc describes this machine and --site a cluster; use one of them",
            code="cli.conflict",
            options=("--nproc", "--site"),
        )
    require_at_least("--nodes", nodes)
    require_at_least("--gpus-per-node", gpus_per_node, 0)
    require_at_least("--nproc", num_processes)


def start_on(site: Site, path: Path) -> Start:
    """Return the start of a run on a site."""
    return Start(
        num_nodes=site.nodes,
        processes_per_node=processes_per_node(site),
        gpus_per_node=site.gpus_per_node,
        source=str(path),
        needs_srun=True,
        no_network=not site.internet,
        time_limit_s=None if site.time is None else seconds(site.time),
        gpu_type=site.gpu_type,
        cores_per_node=site.cpus_per_node,
        is_elsewhere=True,
        brings_software=bool(site.modules or site.container or site.setup),
        unfit=tuple(_unfit(site)),
    )


def site_environment(site: Site) -> dict[str, str]:
    """Return the environment variables of the site, with the variables of this shell expanded."""
    return {name: os.path.expandvars(str(value)) for name, value in site.environment.items()}


def seconds(time: str) -> float:
    """Return the seconds of a time in a format of Slurm: minutes, minutes:seconds, hours:minutes:seconds, days-hours...

    >>> seconds("90"), seconds("1-12"), seconds("08:00:00")
    (5400.0, 129600.0, 28800.0)
    """
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
        return float(int(days) * 86400 + hours * 3600 + minutes * 60 + secs)
    if len(parts) == 3:
        return float(parts[0] * 3600 + parts[1] * 60 + parts[2])
    return float(parts[0] * 60 + (parts[1] if len(parts) == 2 else 0))


def _unfit(site: Site) -> Iterator[tuple[str, str, str, str]]:
    """Yield the folders and partitions of the site file that do not exist on this machine; partitions need Slurm."""
    folders = {"venv": site.venv, "container.image": site.container.image if site.container else None}
    for option, value in folders.items():
        path = Path(os.path.expandvars(value)).expanduser() if value else None
        if path is None or "$" in str(path) or path.exists():  # a variable that only the nodes have
            continue
        near = did_you_mean(path.name, [file.name for file in path.parent.iterdir()]) if path.parent.is_dir() else ""
        line = f"{option}: {path.with_name(near[15:-1])}" if near else ""
        yield "folder", option, f"{path} does not exist on this machine", line
    known = _partitions()
    names = [site.partition] if isinstance(site.partition, str) else list(site.partition or [])
    for name in names if known else ():
        if name not in known:
            nearest = re.search(r"did you mean (.+)\?", did_you_mean(name, known))
            line = f"partition: {nearest[1] if nearest else known[0]}"
            yield "partition", "partition", f"Slurm has no partition {name} (it has: {', '.join(known)})", line


def _partitions() -> list[str]:
    """Return the partitions of this cluster; an empty list without Slurm."""
    if shutil.which("sinfo") is None:
        return []
    text = hardware.command_output("sinfo", "--noheader", "--format=%R") or ""
    return list(dict.fromkeys(text.split()))
