"""Collects facts for the checks of a run from tools and the system; any of them may be missing."""

import re
import shutil
from collections.abc import Mapping
from typing import Any

from paratune import hardware
from paratune.base.units import MIB, parse_count
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.doctor.facts import MachineFacts, Probes, Start
from paratune.records.run_folder import folder_state


def gather(machine: MachineFacts, damaged_checkpoint: str | None = None) -> Probes:
    """Return all facts of `Probes`."""
    return Probes(
        **_nvidia_facts(machine.environ),
        **_torch_facts(machine),
        run_storage=hardware.describe_storage(machine.out_folder),
        run_state=folder_state(machine.out_folder),
        damaged_checkpoint=damaged_checkpoint,
    )


def start_of(config: Config | None, environ: Mapping[str, str], num_processes: int | None) -> Start:
    """Return the start of a run from --nproc, torchrun or Slurm, else with the minimum number of processes."""
    if num_processes is not None:
        return Start(1, num_processes)
    world, local = parse_count(environ.get("WORLD_SIZE")), parse_count(environ.get("LOCAL_WORLD_SIZE"))
    if world and local and "RANK" in environ:
        return Start(max(1, world // local), local, source="WORLD_SIZE")
    nodes = parse_count(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES"))
    if "SLURM_JOB_ID" in environ and nodes:
        gpus = parse_count(environ.get("SLURM_GPUS_ON_NODE"))
        tasks = _tasks_per_node(environ, nodes)
        # One task on a node is probably torchrun, which starts a process for each GPU.
        processes = (gpus or 1) if tasks == 1 else tasks
        return Start(nodes, processes, gpus, source="SLURM_NTASKS_PER_NODE")
    minimum = 1
    if config is not None:
        traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
        minimum = max(traits.min_world_size, traits.world_size_multiple) if traits is not None else 1
    return Start(1, minimum, source="strategy.kind" if minimum > 1 else "--nproc")


def _tasks_per_node(environ: Mapping[str, str], nodes: int) -> int:
    if (tasks := parse_count(environ.get("SLURM_NTASKS_PER_NODE"))) is not None:
        return tasks
    if match := re.match(r"(\d+)", environ.get("SLURM_TASKS_PER_NODE", "")):  # such as 4(x2)
        return parse_count(match[1]) or 1
    return max(1, (parse_count(environ.get("SLURM_NTASKS")) or nodes) // nodes)


def _nvidia_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    if shutil.which("nvidia-smi") is None:
        return {}
    heading = hardware.command_output("nvidia-smi") or ""
    rows = hardware.command_output(
        "nvidia-smi", "--query-gpu=index,driver_version,memory.used", "--format=csv,noheader,nounits"
    )
    used, driver = parse_gpu_rows(rows or "")
    return {
        "driver": driver,
        "driver_cuda": parse_driver_cuda(heading),
        # A separate query: drivers of series 470 reject queries with compute_cap (candle#733).
        "capabilities": parse_capabilities(
            hardware.command_output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader") or ""
        ),
        # nvidia-smi numbers all GPUs of the machine, torch only those in CUDA_VISIBLE_DEVICES.
        "gpu_processes": {} if environ.get("CUDA_VISIBLE_DEVICES") else used,
    }


def parse_driver_cuda(heading: str) -> str | None:
    """Return the newest CUDA version of a driver from the output of `nvidia-smi`; None for N/A.

    Its label is "CUDA Version" up to drivers of series 600, and "CUDA UMD Version" from 610.
    """
    match = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d+\.\d+)", heading)
    return match[1] if match else None


def parse_gpu_rows(text: str) -> tuple[dict[int, int], str | None]:
    """Return the bytes in use on each GPU, and the driver, from `index, driver_version, memory.used` (MiB) rows."""
    used, driver = {}, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdigit():
            driver = cells[1]
            if cells[2].isdigit():
                used[int(cells[0])] = int(cells[2]) * MIB
    return used, driver


def parse_capabilities(text: str) -> tuple[str, ...]:
    """Return the known compute capabilities of GPUs, from rows of `compute_cap`."""
    return tuple(line.strip() for line in text.splitlines() if re.fullmatch(r"\s*\d+\.\d\s*", line))


def _torch_facts(machine: MachineFacts) -> dict[str, Any]:
    if machine.node["gpus"] is None:
        return {}
    import torch

    return {
        "torch_cuda": torch.version.cuda,
        "torch_archs": tuple(torch.cuda.get_arch_list()) if machine.node["gpus"] else (),
    }
