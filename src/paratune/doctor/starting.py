"""Checks of the start: processes, GPUs and cores of a node, and folders of a site."""

from collections.abc import Iterator, Sequence

from paratune.base.units import format_bytes, format_number
from paratune.doctor.feasible import tasks_line
from paratune.doctor.finding import Finding
from paratune.doctor.setup import QueuedRun
from paratune.processes.launcher import has_own_gpu

BUSY_SHARE = 0.1
"""Share of the memory of a GPU that other processes may use without a finding."""


def check_devices(setup: QueuedRun) -> Iterator[Finding]:
    start, config = setup.start, setup.config
    num_gpus = start.gpus_per_node if start.gpus_per_node is not None else len(setup.gpus)
    if config.device == "cpu" or num_gpus == 0:
        return
    if start.processes_per_node < num_gpus and start.world_size > 1:
        fact = f"{start.processes_per_node} processes on each node, and {num_gpus} GPUs"
        why = "Some GPUs are idle."
        yield Finding("gpus_idle", "warning", fact, why, "", start.source, tasks_line(setup, num_gpus))
    elif start.world_size == 1 and num_gpus > 1:
        fact, why, remedy = f"one process, and {num_gpus} GPUs", "The other GPUs are idle.", "with strategy.kind: ddp"
        yield Finding("gpus_idle", "note", fact, why, remedy, start.source, tasks_line(setup, num_gpus))


def check_site(setup: QueuedRun) -> Iterator[Finding]:
    why = "The job waits in the queue and fails at its start."
    for option, folder, line in setup.start.missing_folders:
        fact, remedy = f"{folder} does not exist on this machine", "" if line else "create or rename it"
        yield Finding("site_folder", "problem", fact, why, remedy, f"{setup.start.source}: {option}", line)


def check_visible(setup: QueuedRun) -> Iterator[Finding]:
    visible = setup.machine.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = setup.start.processes_per_node
    uses_gpus = setup.config.device != "cpu" and setup.machine.node["gpus"] and not setup.start.is_elsewhere
    # srun shows only its own GPU to each task.
    if visible in ("", "-1") or not uses_gpus or has_own_gpu(setup.machine.environ):
        return
    devices = [word for word in visible.split(",") if word.strip()]
    where = f"CUDA_VISIBLE_DEVICES={visible}"
    if len(set(devices)) < len(devices):
        fact, why = "a GPU is listed twice", "CUDA then finds no GPU."
        others = list(dict.fromkeys(devices))
        line = f"export CUDA_VISIBLE_DEVICES={','.join(others)}"
        line = line if len(others) >= count else "unset CUDA_VISIBLE_DEVICES"
        yield Finding("visible_twice", "problem", fact, why, "", where, line)
    elif len(devices) < count:
        fact = f"{count} processes on this machine see {len(devices)} GPUs"
        why = "Processes without their own GPU fail with `invalid device ordinal`."
        yield Finding("visible_too_few", "problem", fact, why, "", where, "unset CUDA_VISIBLE_DEVICES")


def check_gpu_state(setup: QueuedRun) -> Iterator[Finding]:
    gpus = [] if setup.start.is_elsewhere else setup.gpus
    used_bytes = setup.probes.gpu_processes
    for number, used in used_bytes.items():
        total = gpus[number]["memory_bytes"] if number < len(gpus) else None
        if total and used > BUSY_SHARE * total:
            fact = f"other processes use {format_bytes(used)} of GPU {number}"
            free = [str(gpu) for gpu in range(len(gpus)) if used_bytes.get(gpu, 0) <= BUSY_SHARE * total]
            why = "Memory runs out earlier, and steps take longer."
            line = _only(setup, free)
            remedy = "or end them" if line else "end them; nvidia-smi lists them"
            yield Finding("gpu_busy", "warning", fact, why, remedy, f"GPU {number}", line)
    kinds = [gpu["name"] for gpu in gpus]
    if len(set(kinds)) > 1 and setup.start.processes_per_node > 1:
        fact = f"the GPUs differ: {', '.join(dict.fromkeys(kinds))}"
        why = "Every step takes as long as on the slowest GPU."
        most_frequent = max(kinds, key=kinds.count)
        same = [str(number) for number, kind in enumerate(kinds) if kind == most_frequent]
        yield Finding("gpus_differ", "warning", fact, why, "", "GPUs", _only(setup, same))


def _only(setup: QueuedRun, numbers: Sequence[str]) -> str:
    """Return the line that limits a run to these GPUs, with fewer processes if necessary."""
    visible = f"CUDA_VISIBLE_DEVICES={','.join(numbers)}"
    if not numbers:
        return ""
    if len(numbers) >= setup.start.processes_per_node:
        return f"export {visible}"
    return f"{visible} paratune train {setup.path} --nproc {len(numbers)}"


def check_workers(setup: QueuedRun) -> Iterator[Finding]:
    workers, num_processes = setup.config.data.num_workers, setup.start.processes_per_node
    # Those of a login node are not those of the run.
    cores = setup.start.cores_per_node if setup.start.is_elsewhere else setup.machine.node["num_usable_cores"]
    if workers and cores is not None and (workers + 1) * num_processes > cores:
        fact = f"{num_processes} processes with {workers} loader workers each, and {format_number(cores)} cores"
        why = "The processes share cores, and steps wait for batches."
        line = f"data.num_workers: {max(0, int(cores // num_processes) - 1)}"
        yield Finding("too_many_workers", "warning", fact, why, "", setup.where("data.num_workers"), line)
