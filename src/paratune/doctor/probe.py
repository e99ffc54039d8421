"""Collects facts for the checks of a run from tools and the system, each with a timeout; any may be missing."""

import importlib.util
import os
import re
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.base.units import MIB, parse_count
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.tracker_sections import PACKAGES
from paratune.config.traits import strategy_traits
from paratune.doctor.batch_script import read_called
from paratune.doctor.finding import MachineFacts
from paratune.doctor.processes import resolve
from paratune.doctor.setup import Probes, Start
from paratune.doctor.storage import probe_write
from paratune.hardware.batch_script import batch_script
from paratune.hardware.extensions import extensions_folder, is_compiled
from paratune.hardware.gpus import built_nccl, loaded_nccl
from paratune.records.run_folder import folder_state

PROGRAMS = ("srun", "sbatch", "g++", "ninja")
READ_BYTES = 8 * MIB
"""Bytes of a data file that are read to measure the speed."""


def gather(
    machine: MachineFacts, start: Start, data_files: Sequence[Path], damaged_checkpoint: str | None = None
) -> Probes:
    """Return all facts of `Probes`; the clocks of other nodes are read only inside a job.

    The speed of reading is measured for `data_files`.
    """
    speed, script = probe_write(machine.out_folder), batch_script(machine.environ)
    return Probes(
        **_nvidia_facts(machine.environ),
        **_torch_facts(machine),
        loaded_nccl=loaded_nccl(),
        nvcc=nvcc_version(hardware.command_output(_nvcc(machine.environ) or "nvcc", "--version")),
        tools=_tools(machine),
        batch_script=script,
        called_scripts=read_called(script or "", machine.environ, Path.cwd()),
        interfaces=_interfaces(),
        port_is_free=port_is_free,
        resolve=resolve,
        run_storage=hardware.describe_storage(machine.out_folder),
        cache_storage=hardware.describe_storage(machine.cache_folder),
        run_bytes_per_s=None if isinstance(speed, str) else speed,
        data_bytes_per_s={str(path): rate for path in data_files if (rate := _read_speed(path)) is not None},
        free_files=_free_files(machine.out_folder),
        quota_free_bytes=_quota(machine.out_folder),
        clock_skew_s=_clock_skew(machine.out_folder),
        node_skew_s=_node_skew(machine.environ, start),
        run_state=folder_state(machine.out_folder),
        damaged_checkpoint=damaged_checkpoint,
        shm_bytes=hardware.describe_storage(Path("/dev/shm"))["total_bytes"] if Path("/dev/shm").is_dir() else None,
        user_site=_user_site_packages(),
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
        return Start(nodes, processes, gpus, source="SLURM_NTASKS_PER_NODE", needs_srun=nodes > 1)
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
        "topology": hardware.command_output("nvidia-smi", "topo", "-m"),
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
        "torch_nccl": None if torch.version.cuda is None else built_nccl(),
        "torch_archs": tuple(torch.cuda.get_arch_list()) if machine.node["gpus"] else (),
    }


def nvcc_version(text: str | None) -> str | None:
    """Return the version, such as "13.0", from the output of `nvcc --version`; None without one."""
    match = re.search(r"release (\d+\.\d+)", text or "")
    return match[1] if match else None


def _nvcc(environ: Mapping[str, str]) -> str | None:
    """Return the CUDA compiler of extensions, by the rules of torch.utils.cpp_extension."""
    if home := environ.get("CUDA_HOME") or environ.get("CUDA_PATH"):
        return shutil.which("nvcc", path=str(Path(home) / "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def _tools(machine: MachineFacts) -> dict[str, str]:
    tools = {name: path for name in PROGRAMS if (path := shutil.which(name)) is not None}
    # By the rules of torch.utils.cpp_extension.
    if (compiler := shutil.which(machine.environ.get("CXX") or "c++")) is not None:
        tools.setdefault("g++", compiler)
    if (compiler := _nvcc(machine.environ)) is not None:
        tools["nvcc"] = compiler
    for package in (*PACKAGES.values(), "datasets"):
        spec = importlib.util.find_spec(package)
        # A folder of that name in the working directory has a spec without an origin.
        if spec is not None and spec.origin is not None:
            tools[f"package {package}"] = spec.origin
    if is_compiled(extensions_folder(machine.environ, machine.home), "cpu_adam"):
        tools["cpu_adam"] = "compiled"
    return tools


def _interfaces() -> tuple[str, ...] | None:
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return None


def port_is_free(port: int) -> bool:
    """Return whether a process can listen on a port of this machine."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
    except OSError:
        return False
    return True


def _read_speed(path: Path) -> float | None:
    """Return the bytes per second of reading a file from the disk; None if it is too small to measure."""
    try:
        if path.stat().st_size < MIB:
            return None
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # do not read from the page cache
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            size = len(file.read(READ_BYTES) or b"")
            return size / max(1e-9, time.perf_counter() - begin)
    except OSError:
        return None


def _free_files(folder: Path) -> int | None:
    try:
        stats = os.statvfs(hardware.nearest_existing(folder))
    except OSError:
        return None
    return stats.f_favail if stats.f_files else None  # some file systems create inodes when needed


def _quota(folder: Path) -> int | None:
    place = str(hardware.nearest_existing(folder))
    commands = (("lfs", "quota", "-q", "-u", str(os.getuid()), place), ("quota", "-w", "-f", place))
    quotas = (parse_quota(_output(words)) for words in commands if shutil.which(words[0]))
    return next((left for left in quotas if left is not None), None)


def _output(words: Sequence[str]) -> str:
    """Return the output of a command for any exit code: `quota` returns 1 for a user over the quota."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=10, check=False
        ).stdout
    return ""


def parse_quota(text: str) -> int | None:
    """Return the free bytes of a quota, from the table of `quota -w` or `lfs quota -q`; None for no limit.

    Columns in KiB: file system, blocks (with * over the quota, in brackets if some servers did not answer), soft limit,
    hard limit; 0 is no limit. After a long name `lfs` continues on the next line.
    """
    left = []
    for match in re.finditer(r"^\s*(?:\S*/\S*|\S+:\S+)\s+\[?(\d+)\]?\*?\s+(\d+)\s+(\d+)(?=\s|$)", text, re.MULTILINE):
        used, soft, hard = (int(number) for number in match.groups())
        limits = [limit for limit in (soft, hard) if limit > 0]
        left += [max(0, min(limits) - used) * 1024] if limits else []
    return min(left, default=None)


def _clock_skew(folder: Path) -> float | None:
    try:
        with tempfile.TemporaryFile(dir=hardware.nearest_existing(folder)) as file:
            file.write(b"?")
            file.flush()
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:
        return None


def _node_skew(environ: Mapping[str, str], start: Start) -> dict[str, float]:
    """Return the differences of the clocks of the nodes of the job; empty outside a job."""
    if start.num_nodes < 2 or "SLURM_JOB_ID" not in environ or "SLURM_STEP_ID" in environ:
        return {}
    start_time = time.time()
    count = str(start.num_nodes)
    text = hardware.command_output(
        *("srun", "--overlap", "-N", count, "-n", count, "sh", "-c", 'echo "$(hostname) $(date +%s.%N)"')
    )
    return node_skews(text or "", start_time, time.time())


def node_skews(text: str, start: float, end: float) -> dict[str, float]:
    """Return by how many seconds the clock of each node is ahead, from lines "host seconds".

    A time between `start` and `end` of the command counts as no difference.
    """
    skews = {}
    for line in text.splitlines():
        host, _, seconds = line.partition(" ")
        with suppress(ValueError):
            then = float(seconds)
            skews[host] = then - end if then > end else min(0.0, then - start)
    return skews


def _user_site_packages() -> tuple[str, ...]:
    """Return the packages of ~/.local that hide those of a virtual environment."""
    if sys.prefix == sys.base_prefix or not site.ENABLE_USER_SITE:
        return ()
    home = site.getusersitepackages()
    names = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "safetensors")
    specs = {name: importlib.util.find_spec(name) for name in names}
    return tuple(name for name, spec in specs.items() if spec and spec.origin and spec.origin.startswith(home))
