"""Ask the tools and the system what the checks of a run judge. Each answer may be missing; none is waited for long."""

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
from paratune.config.traits import traits_of
from paratune.doctor.batch_script import read_called
from paratune.doctor.finding import MachineFacts
from paratune.doctor.processes import resolve
from paratune.doctor.setup import Probes, Start
from paratune.doctor.storage import probe_write
from paratune.hardware.extensions import extensions_folder, is_compiled
from paratune.hardware.gpus import built_nccl, loaded_nccl
from paratune.records.run_folder import state_of

PROGRAMS = ("srun", "sbatch", "g++", "ninja")
READ_BYTES = 8 * MIB
"""Of a data file, to learn how fast it is read."""


def gather(
    machine: MachineFacts, start: Start, data_files: Sequence[Path], damaged_checkpoint: str | None = None
) -> Probes:
    """Ask everything that `Probes` holds.

    Args:
        machine: Where the run folder is, and the environment.
        start: How many nodes the run has; the clocks of the others are asked inside a job alone.
        data_files: Whose reading is timed.
        damaged_checkpoint: Passed on.
    """
    speed, script = probe_write(machine.out_folder), _batch_script(machine.environ)
    return Probes(
        **_of_nvidia(machine.environ),
        **_of_torch(machine),
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
        run_state=state_of(machine.out_folder),
        damaged_checkpoint=damaged_checkpoint,
        shm_bytes=hardware.describe_storage(Path("/dev/shm"))["total_bytes"] if Path("/dev/shm").is_dir() else None,
        user_site=_hidden_by_home(),
    )


def start_of(config: Config | None, environ: Mapping[str, str], num_processes: int | None) -> Start:
    """Return how a run will be started, as an option, torchrun or Slurm says; else as few processes as may be."""
    if num_processes is not None:
        return Start(1, num_processes)
    world, local = parse_count(environ.get("WORLD_SIZE")), parse_count(environ.get("LOCAL_WORLD_SIZE"))
    if world and local and "RANK" in environ:
        return Start(max(1, world // local), local, said_by="WORLD_SIZE")
    nodes = parse_count(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES"))
    if "SLURM_JOB_ID" in environ and nodes:
        gpus = parse_count(environ.get("SLURM_GPUS_ON_NODE"))
        tasks = _tasks_per_node(environ, nodes)
        # One task a node is how torchrun is started, which makes a process for each GPU.
        processes = (gpus or 1) if tasks == 1 else tasks
        return Start(nodes, processes, gpus, said_by="SLURM_NTASKS_PER_NODE", needs_srun=nodes > 1)
    fewest = 1
    if config is not None:
        traits = traits_of(config.strategy.kind, strategy_options(config.strategy))
        fewest = max(traits.min_world_size, traits.world_size_multiple) if traits is not None else 1
    return Start(1, fewest, said_by="strategy.kind" if fewest > 1 else "--nproc")


def _tasks_per_node(environ: Mapping[str, str], nodes: int) -> int:
    if (each := parse_count(environ.get("SLURM_NTASKS_PER_NODE"))) is not None:
        return each
    if match := re.match(r"(\d+)", environ.get("SLURM_TASKS_PER_NODE", "")):  # such as 4(x2)
        return parse_count(match[1]) or 1
    return max(1, (parse_count(environ.get("SLURM_NTASKS")) or nodes) // nodes)


def _of_nvidia(environ: Mapping[str, str]) -> dict[str, Any]:
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
        # By itself: drivers of series 470 know no compute_cap, and refuse all that is asked with it (candle#733).
        "capabilities": parse_capabilities(
            hardware.command_output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader") or ""
        ),
        "topology": hardware.command_output("nvidia-smi", "topo", "-m"),
        # nvidia-smi numbers all GPUs of the machine, torch those that CUDA_VISIBLE_DEVICES leaves.
        "gpu_processes": {} if environ.get("CUDA_VISIBLE_DEVICES") else used,
    }


def parse_driver_cuda(heading: str) -> str | None:
    """Return the newest CUDA that a driver knows, from what `nvidia-smi` prints; None where it does not say (N/A).

    Up to drivers of the series 600 it stands under "CUDA Version", from 610 on under "CUDA UMD Version".
    """
    found = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d+\.\d+)", heading)
    return found[1] if found else None


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
    """Return the compute capability of each GPU whose driver tells it, from rows of `compute_cap`."""
    return tuple(line.strip() for line in text.splitlines() if re.fullmatch(r"\s*\d+\.\d\s*", line))


def _of_torch(machine: MachineFacts) -> dict[str, Any]:
    if machine.node["gpus"] is None:
        return {}
    import torch

    return {
        "torch_cuda": torch.version.cuda,
        "torch_nccl": None if torch.version.cuda is None else built_nccl(),
        "torch_archs": tuple(torch.cuda.get_arch_list()) if machine.node["gpus"] else (),
    }


def nvcc_version(text: str | None) -> str | None:
    """Return "13.0" from what `nvcc --version` prints; None where it says nothing."""
    match = re.search(r"release (\d+\.\d+)", text or "")
    return match[1] if match else None


def _nvcc(environ: Mapping[str, str]) -> str | None:
    """Return the CUDA compiler that extensions are compiled with, as torch.utils.cpp_extension finds it."""
    if home := environ.get("CUDA_HOME") or environ.get("CUDA_PATH"):
        return shutil.which("nvcc", path=str(Path(home) / "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def _batch_script(environ: Mapping[str, str]) -> str | None:
    """Return the script of the job that this is in, as Slurm keeps it."""
    number = environ.get("SLURM_JOB_ID")
    if number is None or shutil.which("scontrol") is None:
        return None
    text = hardware.command_output("scontrol", "write", "batch_script", number, "-")
    return text if text and text.startswith("#!") else None


def _tools(machine: MachineFacts) -> dict[str, str]:
    found = {name: path for name in PROGRAMS if (path := shutil.which(name)) is not None}
    # As torch.utils.cpp_extension finds them.
    if (compiler := shutil.which(machine.environ.get("CXX") or "c++")) is not None:
        found.setdefault("g++", compiler)
    if (compiler := _nvcc(machine.environ)) is not None:
        found["nvcc"] = compiler
    for package in (*PACKAGES.values(), "datasets"):
        spec = importlib.util.find_spec(package)
        # A folder of that name in the working directory is found as well, and is no package.
        if spec is not None and spec.origin is not None:
            found[f"package {package}"] = spec.origin
    if is_compiled(extensions_folder(machine.environ, machine.home), "cpu_adam"):
        found["cpu_adam"] = "compiled"
    return found


def _interfaces() -> tuple[str, ...] | None:
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return None


def port_is_free(port: int) -> bool:
    """Return whether a process may listen on a port of this machine."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
    except OSError:
        return False
    return True


def _read_speed(path: Path) -> float | None:
    """Return the bytes a second at which a file is read from the disk; None where it is too small to tell."""
    try:
        if path.stat().st_size < MIB:
            return None
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # what the system remembers of it says nothing about the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            size = len(file.read(READ_BYTES) or b"")
            return size / max(1e-9, time.perf_counter() - begin)
    except OSError:
        return None


def _free_files(folder: Path) -> int | None:
    try:
        found = os.statvfs(hardware.nearest_existing(folder))
    except OSError:
        return None
    return found.f_favail if found.f_files else None  # some file systems make inodes as they need them


def _quota(folder: Path) -> int | None:
    place = str(hardware.nearest_existing(folder))
    asked = (("lfs", "quota", "-q", "-u", str(os.getuid()), place), ("quota", "-w", "-f", place))
    found = (parse_quota(_printed(words)) for words in asked if shutil.which(words[0]))
    return next((left for left in found if left is not None), None)


def _printed(words: Sequence[str]) -> str:
    """Return what a command prints, whatever it ends with: `quota` ends with 1 for who is over it."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=10, check=False
        ).stdout
    return ""


def parse_quota(text: str) -> int | None:
    """Return the bytes that a quota leaves, from the table of `quota -w` or `lfs quota -q`; None for no limit.

    Both give, in KiB: file system, blocks (with * when over, in brackets when some servers did not answer), soft limit,
    hard limit; a limit of 0 is none. After a long name `lfs` goes on in the next line.
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
    """Ask the other nodes of the job for their time; outside a job nobody is asked."""
    if start.num_nodes < 2 or "SLURM_JOB_ID" not in environ or "SLURM_STEP_ID" in environ:
        return {}
    began = time.time()
    count = str(start.num_nodes)
    text = hardware.command_output(
        *("srun", "--overlap", "-N", count, "-n", count, "sh", "-c", 'echo "$(hostname) $(date +%s.%N)"')
    )
    return node_skews(text or "", began, time.time())


def node_skews(text: str, began: float, ended: float) -> dict[str, float]:
    """Return by how much each node's clock is ahead, from lines "host seconds" that were asked for in between.

    What lies between the two times may be the way of the question, and counts as no skew.
    """
    found = {}
    for line in text.splitlines():
        host, _, seconds = line.partition(" ")
        with suppress(ValueError):
            then = float(seconds)
            found[host] = then - ended if then > ended else min(0.0, then - began)
    return found


def _hidden_by_home() -> tuple[str, ...]:
    """Return the packages of ~/.local that hide those of a virtual environment."""
    if sys.prefix == sys.base_prefix or not site.ENABLE_USER_SITE:
        return ()
    home = site.getusersitepackages()
    names = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "safetensors")
    specs = {name: importlib.util.find_spec(name) for name in names}
    return tuple(name for name, spec in specs.items() if spec and spec.origin and spec.origin.startswith(home))
