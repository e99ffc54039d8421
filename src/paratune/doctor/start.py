"""Checks of the start: processes, GPUs and cores of a node, the build of torch, folders of a site, and disk space."""

import re
from collections.abc import Iterator, Sequence

from paratune.base.units import format_bytes, format_number
from paratune.doctor.facts import Finding, Level, QueuedRun
from paratune.doctor.options import tasks_line
from paratune.hardware.builds import BUILDS, NEWEST_CUDA, OLD_BUILD, build_for, has_kernels, install_line
from paratune.processes.launcher import has_own_gpu

BUSY_SHARE = 0.1
"""Share of the memory of a GPU that other processes may use without a finding."""
STATE_BYTES = 12
"""Bytes per parameter of a checkpoint: the weight and both moments of AdamW in fp32; twice as many in fp64."""
LOCAL_FILESYSTEMS = frozenset({"btrfs", "ext3", "ext4", "overlay", "xfs", "zfs"})


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
        yield setup.finding("too_many_workers", "warning", fact, why, line)


def needed_bytes(setup: QueuedRun, keep: int | None = None) -> int | None:
    """Return the maximum size of the run folder; None if the size of the model is unknown.

    `checkpoint.keep` checkpoints are kept while one more is written; `evaluate.best` adds the best weights, and the end
    of the run the model.

    `keep` replaces `checkpoint.keep`.
    """
    count = setup.model.num_parameters if setup.model else None
    if count is None:
        return None
    config, value_bytes = setup.config, 8 if setup.config.precision == "fp64" else 4
    if config.measure.probe:
        return 0
    num_checkpoints = 1 if config.checkpoint.every == "never" else (keep or config.checkpoint.keep) + 1
    num_models = 1 + (2 if config.evaluate.best is not None else 0)
    return count * value_bytes * (num_checkpoints * STATE_BYTES // 4 + num_models)


def check_room(setup: QueuedRun) -> Iterator[Finding]:
    needed, free = needed_bytes(setup), setup.machine.node["storage"]["free_bytes"]
    if needed is None or free is None or needed <= free:
        return
    fact = (
        f"the run needs up to {format_bytes(needed)} in {setup.machine.out_folder}, and {format_bytes(free)} are free"
    )
    why = "If a checkpoint does not fit, the run ends (exit code 4)."
    smaller = range(setup.config.checkpoint.keep - 1, 0, -1)
    keep = next((keep for keep in smaller if (needed_bytes(setup, keep) or 0) <= free), None)
    remedy, line = "", "run.folder: FOLDER_WITH_MORE_SPACE"
    if keep is not None:
        remedy, line = "or choose another folder with run.folder", f"checkpoint.keep: {keep}"
    yield setup.finding("checkpoint_room", "problem", fact, why, line, remedy, key="run.folder")


def check_folders(setup: QueuedRun) -> Iterator[Finding]:
    """Check whether the folders of the site exist, and whether all nodes can read the run folder."""
    why = "The job waits in the queue and fails at its start."
    for option, folder, line in setup.start.missing_folders:
        fact, remedy = f"{folder} does not exist on this machine", "" if line else "create or rename it"
        yield Finding("site_folder", "problem", fact, why, remedy, f"{setup.start.source}: {option}", line)
    storage = setup.machine.node["storage"]
    is_local = storage.get("kind") in ("memory", "nvme", "ssd", "hdd") or storage.get("filesystem") in LOCAL_FILESYSTEMS
    if is_local and (setup.start.num_nodes > 1 or setup.start.is_elsewhere):
        fact = f"the run folder {setup.machine.out_folder} is on a disk of this node ({storage['filesystem']})"
        why = "Other nodes cannot read it: after a requeue, the first node may be another one, without the checkpoints."
        # On the file server itself, shared disks look local.
        level: Level = "warning" if setup.start.is_elsewhere else "problem"
        yield setup.finding("run_folder_local", level, fact, why, "run.folder: FOLDER_THAT_ALL_NODES_SHARE")


def check_build(setup: QueuedRun) -> Iterator[Finding]:
    """Check whether the build of torch fits the driver and the GPUs."""
    probes, driver, archs = setup.probes, setup.machine.node["gpu_driver"], setup.probes.torch_archs
    built, known = _major(probes.torch_cuda), _major(probes.driver_cuda)
    if setup.start.is_elsewhere:
        return
    exists, remedy, line = _repair(setup)
    # From CUDA 11 on a driver runs all of its own major version (CUDA Compatibility, minor version compatibility).
    if built and known and known < built:
        fact = f"torch is built with CUDA {probes.torch_cuda}, and the driver supports CUDA {probes.driver_cuda}"
        why = "torch finds no GPU (`The NVIDIA driver on your system is too old`)."
        where = f"driver {driver or 'n/a'}"
        yield Finding("driver_old", "problem", fact, why, remedy or "or a newer driver", where, line)
    elif probes.torch_cuda is None and driver is not None and setup.config.device != "cpu":
        fact = "torch is a build for CPUs, and there is an NVIDIA driver"
        why = "The run uses the CPU, and the GPUs are idle."
        yield Finding("torch_build", "problem" if exists else "note", fact, why, remedy, "torch", line)
    # A build for ROCm has names such as gfx90a, which are no compute capabilities.
    if any(arch.startswith("sm_") for arch in archs):
        for gpu in setup.gpus:
            if not has_kernels(archs, number := int(gpu["capability"].replace(".", ""))):
                fact = f"torch has no kernels for {gpu['name']} (sm_{number}); it has {', '.join(archs)}"
                why = "The first operation ends with `no kernel image is available for execution on the device`."
                yield Finding("gpu_kernels", "problem", fact, why, remedy, "torch", line)
                return


def _repair(setup: QueuedRun) -> tuple[bool, str, str]:
    """Return another build of torch, or first a newer driver or other GPUs.

    Returns:
        Whether a build has kernels for some of the GPUs; the remedy; and the line that repairs the installation.
    """
    # The GPUs of torch, or if it finds none, those of the driver; 86 is compute capability 8.6.
    known = [gpu["capability"] for gpu in setup.gpus if gpu["capability"] is not None]
    numbers = [int(capability.replace(".", "")) for capability in known or setup.probes.capabilities]
    driver = setup.probes.driver_cuda
    current, best = build_for(_major(driver) or NEWEST_CUDA, numbers), build_for(NEWEST_CUDA, numbers)
    kinds = ", ".join(f"sm_{number}" for number in dict.fromkeys(numbers))
    if best is None:
        return False, f"another GPU: no build of torch has kernels for {kinds}", ""
    if not all(has_kernels(BUILDS[best], number) for number in numbers):
        return True, f"GPUs of one kind (CUDA_VISIBLE_DEVICES): no build has kernels for {kinds}", ""
    later = f"a newer driver, because this one supports CUDA {driver}, and then {install_line(best)}"
    if current is None:
        return True, later, ""
    return True, f"or {later}" if current == OLD_BUILD else "", install_line(current)


def _major(version: str | None) -> int | None:
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None
