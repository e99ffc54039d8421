"""What this machine and this installation are: for the record of a run, and for `paratune doctor`.

Floor 1: no torch at import. What cannot be found out is None, never a guess.
"""

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")
"""Instruction sets that decide how fast matrix products are, in fp32 and in bf16; the last one is ARM's."""
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Those of them that are for bf16; any one will do."""

PACKAGES = (
    "paratune",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "pyarrow",
    "numpy",
    "scipy",
    "scikit-learn",
    "pydantic",
    "deepspeed",
    "triton",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
"""Packages whose version can change a result or a speed."""

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})
NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
)
VIRTUAL_DISKS = ("vd", "xvd")
"""Disks of a virtual machine: what lies behind them is not known, whatever they say."""
_PROC = Path("/proc")
_SYS = Path("/sys")
_NO_LIMIT_BYTES = 2**60
"""cgroup v1 says "no limit" with a number near 2^63."""


def describe_node(path: Path | None = None) -> dict[str, Any]:
    """Describe the machine that this process runs on.

    Args:
        path: Folder whose storage is described, existing or to be made; the working directory when not given.

    Returns:
        hostname, os, kernel, cpu_model, cpu_flags (those of `CPU_FLAGS` that it has), num_physical_cores,
        num_logical_cores, num_usable_cores (affinity and container quota; a fraction is possible), ram_bytes,
        ram_limit_bytes (of the container), storage, gpus, python. None where unknown; `gpus` is [] where there are
        none.
    """
    return {
        "hostname": socket.gethostname(),
        "os": _os_name(),
        "kernel": f"{platform.system()} {platform.release()}",
        "cpu_model": cpu_model(),
        "cpu_flags": cpu_flags(),
        "num_physical_cores": _num_cores(logical=False),
        "num_logical_cores": _num_cores(logical=True),
        "num_usable_cores": usable_cores(),
        "ram_bytes": _ram_bytes(),
        "ram_limit_bytes": memory_limit_bytes(),
        "storage": describe_storage(path or Path()),
        "gpus": describe_gpus(),
        "python": platform.python_version(),
    }


def cpu_model(proc: Path = _PROC) -> str | None:
    """Return the marketing name of the processor, such as "AMD EPYC 9654 96-Core Processor"."""
    fields = _cpu_fields(proc)
    return fields.get("model name") or fields.get("Model") or platform.processor() or None


def cpu_flags(proc: Path = _PROC) -> list[str] | None:
    """Return which of `CPU_FLAGS` the processor has; None where the system does not say."""
    fields = _cpu_fields(proc)
    words = fields.get("flags") or fields.get("Features")
    return None if words is None else [flag for flag in CPU_FLAGS if flag in words.split()]


def usable_cores(proc: Path = _PROC, sys_root: Path = _SYS) -> float | None:
    """Return how many logical cores this process may keep busy: its affinity, or the container's quota if less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    known = [value for value in (affinity, core_quota(proc, sys_root)) if value is not None]
    return min(known, default=None)


def core_quota(proc: Path = _PROC, sys_root: Path = _SYS) -> float | None:
    """Return the cores' worth of time that the container grants, the tightest of all levels; None for no limit."""
    quotas = []
    for folder in _cgroup_folders("cpu", proc, sys_root):
        words = (_read(folder / "cpu.max") or "").split()
        if not words:
            words = [_read(folder / f"cpu.cfs_{part}_us") or "" for part in ("quota", "period")]
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quota, period = (int(word) for word in words)
            if quota > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit_bytes(proc: Path = _PROC, sys_root: Path = _SYS) -> int | None:
    """Return the memory that the container grants, the tightest of all levels; None for no limit."""
    limits = []
    for folder in _cgroup_folders("memory", proc, sys_root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(ValueError):
                limits.append(int(_read(folder / name) or ""))
    return min((limit for limit in limits if limit < _NO_LIMIT_BYTES), default=None)


def describe_storage(path: Path, proc: Path = _PROC, sys_root: Path = _SYS) -> dict[str, Any]:
    """Describe the file system that holds `path`, or will hold it.

    Returns:
        filesystem (type), kind (ssd, hdd, memory or network), free_bytes, total_bytes; None where unknown, as the kind
        of a virtual disk is.
    """
    existing = nearest_existing(path)
    filesystem, device = _mount_of(existing, proc)
    try:
        usage = shutil.disk_usage(existing)
    except OSError:
        usage = None
    return {
        "filesystem": filesystem,
        "kind": _storage_kind(filesystem, device, sys_root),
        "free_bytes": None if usage is None else usage.free,
        "total_bytes": None if usage is None else usage.total,
    }


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists."""
    path = path.expanduser().absolute()
    for folder in (path, *path.parents):
        # A folder that may not be looked into counts as absent.
        with contextlib.suppress(OSError):
            if folder.exists():
                return folder
    return Path(path.anchor)


def describe_gpus() -> list[dict[str, Any]] | None:
    """Describe the GPUs that torch may use; None when torch cannot be imported (it is imported here).

    Returns:
        For each: name, memory_bytes, capability ("9.0"), link (how it reaches the other GPUs, such as "NV18" or "PHB",
        slowest first when there are several; None for a single GPU or when unknown).
    """
    try:
        import torch
    except (ImportError, OSError):  # OSError: one of its libraries cannot be loaded
        return None
    if not torch.cuda.is_available():
        return []
    links = gpu_links(command_output("nvidia-smi", "topo", "-m"))
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
                # nvidia-smi numbers all GPUs of the machine, torch those that CUDA_VISIBLE_DEVICES leaves.
                "link": None if os.environ.get("CUDA_VISIBLE_DEVICES") else links.get(index),
            }
        )
    return gpus


LINKS = ("SYS", "NODE", "PHB", "PXB", "PIX")
"""PCIe paths between two GPUs from the slowest to the fastest, as `nvidia-smi topo -m` names them; NV<n> is NVLink."""


def gpu_links(topology: str | None) -> dict[int, str]:
    """Return how each GPU reaches the others, from the text of `nvidia-smi topo -m`.

    Returns:
        By GPU number, the kinds of link in its row joined by "+", slowest first; GPUs without others are left out.
    """
    rows = {}
    columns: list[str] = []
    # The terminal form underlines the heading.
    for line in re.sub(r"\x1b\[[0-9;]*m", "", topology or "").splitlines():
        words = line.split()
        if not columns:
            columns = [word for word in words if re.fullmatch(r"GPU\d+", word)]
        elif words and words[0] in columns:
            kinds = set(words[1 : 1 + len(columns)]) - {"X"}
            if kinds:
                rows[int(words[0][3:])] = "+".join(sorted(kinds, key=_link_order))
    return rows


def _link_order(kind: str) -> tuple[int, str]:
    return (LINKS.index(kind) if kind in LINKS else len(LINKS), kind)


NVLINK_BYTES_PER_S = {"6": 20e9, "7": 25e9, "8": 25e9, "9": 25e9, "10": 50e9}
"""Of one link in one direction, by the first number of the GPU's compute capability (NVIDIA's white papers on P100,
V100, A100, H100 and Blackwell)."""


def link_bytes_per_s(link: str | None, capability: str) -> float | None:
    """Return how fast a GPU reaches the slowest of the others, one direction; None for what is not known, as PCIe.

    Args:
        link: As `describe_gpus` has it: "NV18", or several joined by "+".
        capability: Compute capability of the GPU, such as "9.0".
    """
    each = NVLINK_BYTES_PER_S.get(capability.partition(".")[0])
    kinds = [re.fullmatch(r"NV(\d+)", kind) for kind in (link or "").split("+")]
    if each is None or not all(kinds):
        return None
    return each * min(int(kind.group(1)) for kind in kinds if kind)


def package_versions() -> dict[str, str | None]:
    """Return the versions of python and of `PACKAGES`, without importing them; None for those not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def code_version(path: Path | None = None) -> dict[str, Any]:
    """Return from which commit the running code comes.

    Args:
        path: A folder of source code; that of the running paratune when not given.

    Returns:
        git_commit (40 digits) and git_dirty (whether files in the folder differ from it); both None when the folder is
        not tracked by git, which is so for an installed package even when it lies inside someone's checkout.
    """
    folder = path or Path(__file__).parents[1]
    unknown = {"git_commit": None, "git_dirty": None}
    if not _git(folder, "ls-files", "--", "."):
        return unknown
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--", ".")
    return unknown if commit is None else {"git_commit": commit, "git_dirty": None if status is None else bool(status)}


def peak_memory_bytes() -> int | None:
    """Return the largest resident memory that this process has had so far."""
    # Not `ru_maxrss` on Linux: a process that was started by a large one begins with the peak of its parent.
    for line in (_read(_PROC / "self" / "status") or "").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory() -> bool:
    """Begin `peak_memory_bytes` anew from what is resident now; return False where the system cannot."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident_memory_bytes() -> int | None:
    """Return the resident memory of this process now."""
    for line in (_read(_PROC / "self" / "status") or "").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None


def total_memory_bytes() -> int:
    """Return the memory that this machine has, or the container grants if less."""
    return min(_ram_bytes(), memory_limit_bytes() or _NO_LIMIT_BYTES)


def available_memory_bytes(proc: Path = _PROC, sys_root: Path = _SYS) -> int:
    """Return how much more memory can be taken without swapping, of the machine and of what the container grants."""
    import psutil

    left = [int(psutil.virtual_memory().available)]
    for folder in _cgroup_folders("memory", proc, sys_root):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(ValueError):
                limit, used = (int(_read(folder / name) or "") for name in (limit_name, used_name))
                if limit < _NO_LIMIT_BYTES:
                    left.append(max(0, limit - used + _reclaimable_bytes(folder)))
    return min(left)


def _reclaimable_bytes(folder: Path) -> int:
    """Return the bytes of a control group's cached files, which the system drops when memory is short."""
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def command_output(*words: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return what a command prints, without the last line end; None when it is absent, fails or takes over 10 s."""
    try:
        result = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return result.stdout.rstrip("\n")


def _os_name() -> str | None:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform() or None


def _cpu_fields(proc: Path) -> Mapping[str, str]:
    """Return the first processor's lines of /proc/cpuinfo, and the machine's that follow the list (Model, on ARM)."""
    fields: dict[str, str] = {}
    for line in (_read(proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _num_cores(*, logical: bool) -> int | None:
    import psutil

    count: int | None = psutil.cpu_count(logical=logical)
    return count


def _ram_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _cgroup_folders(controller: str, proc: Path, sys_root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group and of its parents, of cgroup v2 and of v1."""
    for line in (_read(proc / "self" / "cgroup") or "").splitlines():
        _, controllers, inner = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = [sys_root / "fs" / "cgroup" / controllers] if controllers else []
        tops += [sys_root / "fs" / "cgroup" / controller] if controllers else [sys_root / "fs" / "cgroup"]
        for top in dict.fromkeys(tops):
            relative = Path(inner.lstrip("/"))
            # In a container the path is the host's and may be absent here; its top is then the container's own.
            yield from (top / parent for parent in (relative, *relative.parents) if ".." not in parent.parts)


def _mount_of(path: Path, proc: Path) -> tuple[str | None, str | None]:
    """Return type and device number ("254:0") of the file system that holds an existing path."""
    real = path.resolve()
    best: tuple[int, str, str] | None = None
    for line in (_read(proc / "self" / "mountinfo") or "").splitlines():
        # 36 35 98:0 /root /mount/point options [optional]... - type source options
        left, _, right = line.partition(" - ")
        words = left.split()
        point = Path(_unescape(words[4]))
        # Of two mounts on one point the later one hides the earlier.
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), right.split()[0], words[2])
    return (None, None) if best is None else (best[1], best[2])


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blanks: "\\040" is a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _storage_kind(filesystem: str | None, device: str | None, sys_root: Path) -> str | None:
    if filesystem in MEMORY_FILESYSTEMS:
        return "memory"
    if filesystem in NETWORK_FILESYSTEMS:
        return "network"
    if device is None:
        return None
    block = (sys_root / "dev" / "block" / device).resolve()
    if block.name.startswith(VIRTUAL_DISKS):
        return None
    # A partition has no queue of its own; its disk, the folder above, has.
    for folder in (block, block.parent):
        rotational = _read(folder / "queue" / "rotational")
        if rotational is not None:
            return "hdd" if rotational.strip() == "1" else "ssd"
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    # Inside a git hook GIT_DIR names another repository; a file-system monitor would be another program to start.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    return command_output("git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments, environment=environment)
