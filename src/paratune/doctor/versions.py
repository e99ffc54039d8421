"""Checks of driver, CUDA toolkit, NCCL and torch, of compilers, and of the state and links of GPUs."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from paratune.base.units import format_bytes
from paratune.config.traits import Traits
from paratune.doctor.finding import Finding
from paratune.doctor.setup import QueuedRun
from paratune.doctor.torch_builds import NEWEST_CUDA, build_for, has_kernels
from paratune.hardware.gpus import gpu_links, link_table, topology_lines

BUSY_SHARE = 0.1
"""Share of the memory of a GPU that other processes may use without a finding."""
MIN_SHM_BYTES = 256 * 2**20


def check_driver(setup: QueuedRun) -> Iterator[Finding]:
    probes = setup.probes
    built, known = _pair(probes.torch_cuda), _pair(probes.driver_cuda)
    where = f"driver {probes.driver or 'n/a'}"
    if setup.start.is_elsewhere:
        return
    # From CUDA 11 on a driver runs all of its own major version (CUDA Compatibility, minor version compatibility).
    if built and known and known[0] < built[0]:
        fact = f"torch is built with CUDA {probes.torch_cuda}, and the driver supports CUDA {probes.driver_cuda}"
        why = "torch finds no GPU (`The NVIDIA driver on your system is too old`)."
        build = build_for(known[0], _archs(setup))
        line, remedy = (build.install, "or a newer driver") if build else ("", "a newer driver")
        yield Finding("driver_old", "problem", fact, why, remedy, where, line)
    elif probes.torch_cuda is None and probes.driver is not None and setup.config.device != "cpu":
        fact = "torch is a build for CPUs, and there is an NVIDIA driver"
        if build_for(NEWEST_CUDA, _archs(setup)) is None:
            why = f"No build of torch has kernels for {_in_words(_archs(setup))}: the run uses the CPU."
            yield Finding("torch_build", "note", fact, why, "", "torch")
            return
        why = "The run uses the CPU, and the GPUs are idle."
        yield Finding("torch_build", "problem", fact, why, *_other_build(setup))
    elif built and known:
        fact = f"torch with CUDA {probes.torch_cuda} on a driver for CUDA {probes.driver_cuda}"
        yield Finding("driver", "ok", fact, where=where)


def _other_build(setup: QueuedRun) -> tuple[str, str, str]:
    """Return remedy, place and line of a finding: another build of torch, or first a newer driver or GPU."""
    numbers, known = _archs(setup), _pair(setup.probes.driver_cuda)
    current, best = (build_for(cuda, numbers) for cuda in (known[0] if known else NEWEST_CUDA, NEWEST_CUDA))
    if best is None:
        return f"another GPU: no build of torch has kernels for {_in_words(numbers)}", "torch", ""
    later = f"a newer driver, because this one supports CUDA {setup.probes.driver_cuda}, and then {best.install}"
    if current is None:
        return later, "torch", ""
    return f"or {later}" if current.last_torch else "", "torch", current.install


def _archs(setup: QueuedRun) -> list[int]:
    """Return the architectures of the GPUs of torch, or if it finds none, those of the driver."""
    known = [gpu["capability"] for gpu in setup.gpus if gpu["capability"] is not None]
    return [_arch(capability) for capability in known or setup.probes.capabilities]


def _in_words(numbers: Collection[int]) -> str:
    return ", ".join(f"sm_{number}" for number in dict.fromkeys(numbers))


def check_kernels(setup: QueuedRun) -> Iterator[Finding]:
    archs = setup.probes.torch_archs
    # A build for ROCm has names such as gfx90a, which are no compute capabilities.
    is_cuda = any(arch.startswith("sm_") for arch in archs)
    for gpu in setup.gpus if is_cuda and not setup.start.is_elsewhere else ():
        number = _arch(gpu["capability"])
        if has_kernels(archs, number):
            continue
        fact = f"torch has no kernels for {gpu['name']} (sm_{number}); it has {', '.join(archs)}"
        why = "The first operation ends with `no kernel image is available for execution on the device`."
        remedy, where, line = _other_build(setup)
        numbers = _archs(setup)
        build = build_for(NEWEST_CUDA, numbers)
        if build is not None and any(not has_kernels(build.archs, arch) for arch in numbers):
            kinds = _in_words(numbers)
            remedy, line = f"GPUs of one kind (CUDA_VISIBLE_DEVICES): no build has kernels for {kinds}", ""
        yield Finding("gpu_kernels", "problem", fact, why, remedy, where, line)
        return


def _arch(capability: str) -> int:
    """Return a compute capability as in names of architectures: 86 for 8.6."""
    return int(capability.replace(".", ""))


def check_nccl(setup: QueuedRun) -> Iterator[Finding]:
    built, loaded = setup.probes.torch_nccl, setup.probes.loaded_nccl
    installed = {name: setup.machine.versions.get(name) for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13")}
    major = (_pair(setup.probes.torch_cuda) or (0, 0))[0]
    if built and loaded and _pair(built) != _pair(loaded) and not setup.start.is_elsewhere:
        fact = f"torch is built with NCCL {built}, and NCCL {loaded} is loaded"
        why = "If nodes load different versions, collectives hang or fail with `unhandled system error`."
        line = "unset LD_PRELOAD" if "nccl" in setup.machine.environ.get("LD_PRELOAD", "") else "unset LD_LIBRARY_PATH"
        remedy = "or load the module with the version of torch"
        yield Finding("nccl_differs", "warning", fact, why, remedy, "NCCL", line)
    if all(installed.values()) and f"nvidia-nccl-cu{major}" in installed:
        right = f"nvidia-nccl-cu{major}"
        (wrong,) = set(installed) - {right}
        fact = "NCCL is installed for CUDA 12 and for CUDA 13, in the same folder"
        why = "The one that was installed last is loaded, even if torch was built with the other."
        # To uninstall one deletes the file of both.
        line = f"pip uninstall -y {wrong} && pip install --force-reinstall --no-deps {right}=={installed[right]}"
        yield Finding("nccl_twice", "warning", fact, why, "", "pip", line)


def check_toolchain(setup: QueuedRun) -> Iterator[Finding]:
    """Check the tools that compile cpu_adam of DeepSpeed at the first start."""
    traits = setup.traits
    if traits is None or not traits.compiles_optimizer:
        return
    tools, where = setup.probes.tools, setup.where("strategy.cpu_adam")
    if "cpu_adam" in tools or setup.start.brings_software:  # already compiled, or the tools of the run are unknown
        return
    why = "DeepSpeed compiles its AdamW at the start of the run; the compilation fails, or waits for ever."
    lines = {"g++": "sudo apt-get install g++", "ninja": "pip install ninja", "nvcc": "module load cuda"}
    needed = [name for name in lines if name != "nvcc" or setup.gpus]
    for name in needed:
        if name not in tools:
            fact = f"strategy.cpu_adam needs {name}, which is not on the PATH"
            remedy = "or strategy.cpu_adam: false, which uses AdamW of PyTorch"
            yield Finding("toolchain", "problem", fact, why, remedy, where, lines[name])
    built, compiler = _pair(setup.probes.torch_cuda), _pair(setup.probes.nvcc)
    skips = setup.machine.environ.get("DS_SKIP_CUDA_CHECK") == "1"
    if setup.gpus and built and compiler and built[0] != compiler[0] and not skips:
        fact = f"nvcc has CUDA {setup.probes.nvcc}, and torch is built with CUDA {setup.probes.torch_cuda}"
        why = "DeepSpeed does not compile (`CUDAMismatchException`)."
        yield Finding("nvcc_differs", "problem", fact, why, "", where, f"module load cuda/{setup.probes.torch_cuda}")


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


def check_topology(setup: QueuedRun) -> Iterator[Finding]:
    links, count = gpu_links(setup.probes.topology), setup.start.processes_per_node
    used = _used(setup, links)
    if count < 2 or len(used) < 2 or setup.start.is_elsewhere:
        return
    groups = linked_groups(setup.probes.topology or "")
    best = max(groups, key=len, default=())
    traits = setup.traits
    if any(set(used) <= set(group) for group in groups) or not groups:
        kinds = "+".join(sorted({links[number] for number in used}))
        yield Finding("topology", "ok", f"GPUs are linked by {kinds}", where="nvidia-smi topo -m")
    elif len(best) >= count:
        near = ",".join(map(str, best[:count]))
        fact = f"not all of GPUs {','.join(map(str, used))} are linked by NVLink, and GPUs {near} are"
        line = f"export CUDA_VISIBLE_DEVICES={near}"
        why = "Gradients are sent through the CPU."
        yield Finding("topology", "warning", fact, why, "", "nvidia-smi topo -m", line)
    elif traits is not None and "gradients" in traits.shards:
        fact = f"NVLink links groups of {len(best)} GPUs, and the run shards over {count}"
        why = "All-gathers of the weights are sent through the CPU in each step."
        yield Finding("topology", "note", fact, why, *_in_groups(traits, len(best)))


def _in_groups(traits: Traits, size: int) -> tuple[str, str, str]:
    """Return remedy, place and line of a finding: how to shard within groups of GPUs."""
    where = "nvidia-smi topo -m"
    if traits.grouped_as is not None:
        return f"with strategy.shard_size: {size}", where, f"strategy.kind: {traits.grouped_as}"
    if traits.shards_within_node or traits.shard_size is not None:
        return "", where, f"strategy.shard_size: {size}"
    return f"strategy.kind: hsdp, with strategy.shard_size: {size}, shards within such groups", where, ""


def check_numa(setup: QueuedRun) -> Iterator[Finding]:
    nodes = numa_nodes(setup.probes.topology or "")
    used = _used(setup, nodes)
    spread, cores = {nodes[number] for number in used}, setup.machine.node["num_usable_cores"]
    if setup.start.is_elsewhere or len(spread) < 2 or cores is None or cores >= len(used):
        return
    fact = f"GPUs of {len(spread)} NUMA nodes, and {cores:g} cores for {len(used)} processes"
    why = "Processes wait for a core, and use half of the GPUs through the other socket."
    in_slurm = "SLURM_JOB_ID" in setup.machine.environ
    line = "#SBATCH --cpus-per-gpu=4" if in_slurm else ""
    yield Finding("numa", "warning", fact, why, "give each process 2 cores or more", "nvidia-smi topo -m", line)


def _used(setup: QueuedRun, known: Collection[int]) -> list[int]:
    """Return the numbers in nvidia-smi of the GPUs of the processes; an empty list if they are unknown."""
    visible = setup.machine.environ.get("CUDA_VISIBLE_DEVICES")
    words = [word.strip() for word in visible.split(",")] if visible else [str(number) for number in known]
    if not all(word.isdigit() and int(word) in known for word in words):  # such as UUIDs
        return []
    return [int(word) for word in words][: setup.start.processes_per_node]


def linked_groups(topology: str) -> list[tuple[int, ...]]:
    """Return the groups of GPUs in which NVLink links every pair, from the output of `nvidia-smi topo -m`."""
    table = link_table(topology)
    groups: list[list[int]] = []
    for number in table:
        for group in groups:
            if all(re.fullmatch(r"NV\d+", table[number].get(other, "")) for other in group):
                group.append(number)
                break
        else:
            groups.append([number])
    return [tuple(group) for group in groups if len(group) > 1]


def numa_nodes(topology: str) -> Mapping[int, str]:
    """Return the NUMA node of each GPU, from the output of `nvidia-smi topo -m`; empty without this column."""
    names: list[str] = []
    nodes = {}
    for line in topology_lines(topology):
        # One or two tabs separate cells; the first cell of the heading is empty.
        cells = [cell.strip() for cell in re.split(r"\s{2,}|\t", line.strip()) if cell.strip()]
        if "NUMA Affinity" in cells:
            names = cells
        elif names and cells and re.fullmatch(r"GPU\d+", cells[0]):
            at = names.index("NUMA Affinity") + 1
            # If a cell is empty, the other cells are at wrong positions.
            if len(cells) == len(names) + 1 and cells[at] != "N/A":
                nodes[int(cells[0][3:])] = cells[at]
    return nodes


def check_shared_room(setup: QueuedRun) -> Iterator[Finding]:
    shm, num_processes = setup.probes.shm_bytes, setup.start.processes_per_node
    workers = setup.config.data.num_workers * num_processes
    is_used = workers or (setup.gpus and num_processes > 1)  # gloo does not use it
    if is_used and shm is not None and shm < MIN_SHM_BYTES and not setup.start.is_elsewhere:
        fact = f"/dev/shm has {format_bytes(shm)} for {num_processes} processes and {workers} loader workers"
        why = "If it is full, they fail with `bus error`, and NCCL with `unhandled system error`."
        yield Finding("shm_small", "problem", fact, why, "of the container", "/dev/shm", "--shm-size=1g")


def check_environment(setup: QueuedRun) -> Iterator[Finding]:
    if setup.probes.user_site:
        fact = f"{', '.join(setup.probes.user_site)} of ~/.local hides that of the environment"
        why = "The run uses other versions than those in its environment and on other nodes."
        line = "export PYTHONNOUSERSITE=1"
        yield Finding("user_site", "warning", fact, why, "", "~/.local", line)
    workers, cores = setup.config.data.num_workers, setup.num_cores
    needed = (workers + 1) * setup.start.processes_per_node
    if workers and cores is not None and needed > cores:
        fact = f"{setup.start.processes_per_node} processes with {workers} loader workers each, and {cores:g} cores"
        why = "The processes share cores, and steps wait for batches."
        fitting = max(0, int(cores // setup.start.processes_per_node) - 1)
        where = setup.where("data.num_workers")
        yield Finding("too_many_workers", "warning", fact, why, "", where, f"data.num_workers: {fitting}")


def _pair(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)(?:\.(\d+))?", version or "")
    return (int(match[1]), int(match[2] or 0)) if match else None
