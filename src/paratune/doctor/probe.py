"""Collects facts for the checks of a run from tools and the system; any of them may be missing."""

import re
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
    facts: dict[str, Any] = {}
    if machine.node["gpus"] is not None:
        import torch

        archs = tuple(torch.cuda.get_arch_list()) if machine.node["gpus"] else ()
        facts = {"torch_cuda": torch.version.cuda, "torch_archs": archs}
    heading, used, capabilities = (
        hardware.command_output("nvidia-smi", *options) or ""
        for options in (
            (),
            ("--query-gpu=index,memory.used", "--format=csv,noheader,nounits"),
            # A separate query: drivers of series 470 reject queries with compute_cap (candle#733).
            ("--query-gpu=compute_cap", "--format=csv,noheader"),
        )
    )
    # The label is "CUDA Version" up to drivers of series 600, and "CUDA UMD Version" from 610.
    driver_cuda = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d+\.\d+)", heading)
    rows = re.finditer(r"(?m)^\s*(\d+), *(\d+)\s*$", used)
    # nvidia-smi numbers all GPUs of the machine, torch only those in CUDA_VISIBLE_DEVICES.
    is_limited = bool(machine.environ.get("CUDA_VISIBLE_DEVICES"))
    return Probes(
        **facts,
        driver_cuda=driver_cuda[1] if driver_cuda else None,
        capabilities=tuple(line.strip() for line in capabilities.splitlines() if re.fullmatch(r"\s*\d+\.\d\s*", line)),
        gpu_processes={} if is_limited else {int(row[1]): int(row[2]) * MIB for row in rows},
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
        tasks = parse_count(environ.get("SLURM_NTASKS_PER_NODE"))
        if tasks is None and (match := re.match(r"(\d+)", environ.get("SLURM_TASKS_PER_NODE", ""))):  # such as 4(x2)
            tasks = parse_count(match[1]) or 1
        if tasks is None:
            tasks = max(1, (parse_count(environ.get("SLURM_NTASKS")) or nodes) // nodes)
        # One task on a node is probably torchrun, which starts a process for each GPU.
        processes = (gpus or 1) if tasks == 1 else tasks
        return Start(nodes, processes, gpus, source="SLURM_NTASKS_PER_NODE")
    minimum = 1
    if config is not None:
        traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
        minimum = max(traits.min_world_size, traits.world_size_multiple) if traits is not None else 1
    return Start(1, minimum, source="strategy.kind" if minimum > 1 else "--nproc")
