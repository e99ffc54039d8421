"""Describes this machine and this installation, for the record of a run and for `paratune doctor`.

Unknown values are None. torch is not imported with this module.
"""

import contextlib
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from paratune.hardware.gpus import describe_gpus, gpu_driver
from paratune.hardware.system_files import command_output as command_output
from paratune.hardware.system_files import read_text
from paratune.hardware.virtualisation import describe_virtualisation

CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")
"""Instruction sets that determine the speed of matrix products, in fp32 and in bf16; the last one is ARM's."""
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Instruction sets for bf16; one of them is enough."""
AMX_ADVICE = (
    "this CPU has amx_bf16: with precision: bf16, training of encoders was 1.4 to 1.7 times as fast as with fp32; "
    "to measure it, train 20 steps with each: --set train.max_steps=20 --set precision=bf16"
)
"""For CPUs with this instruction set; docs/explanation/precision.md has the runs."""

PACKAGES = (
    *("paratune", "torch", "transformers", "tokenizers", "safetensors", "datasets", "pyarrow", "numpy", "scipy"),
    *("scikit-learn", "pydantic", "deepspeed", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
"""Packages with an influence on results or speed."""

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})
NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs"}
    | {"fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "panfs"}
    | {"pvfs2", "smb3", "wekafs"}
)
VIRTUAL_DISKS = ("vd", "xvd")
"""Names of disks of a virtual machine; the kind of the real disk is unknown."""
VIRTUAL_NVME = ("Amazon Elastic Block Store", "nvme_card-pd", "MSFT NVMe Accelerator")
"""Models of network disks in clouds that a virtual machine sees as NVMe."""
_KINDS = ("hdd", "ssd", "nvme")
"""From the slowest to the fastest: a volume over several disks has the kind of the slowest disk."""
_PROC = Path("/proc")
_SYS = Path("/sys")
_NO_LIMIT_BYTES = 2**60
"""Smaller than any "no limit" of cgroup v1, a number near 2^63."""


def describe_node(path: Path | None = None, data_path: Path | None = None) -> dict[str, Any]:
    """Describe the machine of this process.

    Args:
        path: Folder for the description of its storage, which may not exist yet; default: the working directory.
        data_path: Folder of the token files; None when there is none.

    Returns:
        hostname, os, kernel, cpu_model, cpu_flags (of `CPU_FLAGS`), num_physical_cores, num_logical_cores,
        num_usable_cores (affinity and container quota; may be a fraction), ram_bytes, ram_limit_bytes (of the
        container), virtualisation, storage (of the run folder), data_storage (of the token files), gpus, gpu_driver
        (version of NVIDIA's driver), python. None where unknown; `gpus` is [] where there are none.
    """
    import psutil

    try:
        os_name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        os_name = platform.platform()
    return {
        "hostname": socket.gethostname(),
        "os": os_name or None,
        "kernel": f"{platform.system()} {platform.release()}",
        "cpu_model": cpu_model(),
        "cpu_flags": cpu_flags(),
        "num_physical_cores": psutil.cpu_count(logical=False),
        "num_logical_cores": psutil.cpu_count(logical=True),
        "num_usable_cores": usable_cores(),
        "ram_bytes": psutil.virtual_memory().total,
        "ram_limit_bytes": memory_limit_bytes(),
        "virtualisation": describe_virtualisation(),
        "storage": describe_storage(path or Path()),
        "data_storage": None if data_path is None else describe_storage(data_path),
        "gpus": describe_gpus(),
        "gpu_driver": gpu_driver(),
        "python": platform.python_version(),
    }


def cpu_model(proc: Path = _PROC) -> str | None:
    """Return the marketing name of the processor, such as "AMD EPYC 9654 96-Core Processor"."""
    fields = _cpu_fields(proc)
    return fields.get("model name") or fields.get("Model") or platform.processor() or None


def cpu_flags(proc: Path = _PROC) -> list[str] | None:
    """Return which of `CPU_FLAGS` the processor has; None where that is unknown."""
    fields = _cpu_fields(proc)
    words = fields.get("flags") or fields.get("Features")
    return None if words is None else [flag for flag in CPU_FLAGS if flag in words.split()]


def usable_cores(proc: Path = _PROC, sys_root: Path = _SYS) -> float | None:
    """Return the number of logical cores that this process may use: its affinity, or the container's quota if less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    known = [value for value in (affinity, core_quota(proc, sys_root)) if value is not None]
    return min(known, default=None)


def core_quota(proc: Path = _PROC, sys_root: Path = _SYS) -> float | None:
    """Return the CPU quota of the container in cores, the smallest of all levels; None for no limit."""
    quotas = []
    for folder in _cgroup_folders("cpu", proc, sys_root):
        words = (read_text(folder / "cpu.max") or "").split()
        if not words:
            words = [read_text(folder / f"cpu.cfs_{part}_us") or "" for part in ("quota", "period")]
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quota, period = (int(word) for word in words)
            if quota > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit_bytes(proc: Path = _PROC, sys_root: Path = _SYS) -> int | None:
    """Return the memory limit of the container, the smallest of all levels; None for no limit."""
    limits = []
    for folder in _cgroup_folders("memory", proc, sys_root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(ValueError):
                limits.append(int(read_text(folder / name) or ""))
    return min((limit for limit in limits if limit < _NO_LIMIT_BYTES), default=None)


def describe_storage(path: Path, proc: Path = _PROC, sys_root: Path = _SYS) -> dict[str, Any]:
    """Describe the file system of `path`, which may not exist yet.

    Returns:
        filesystem (type), kind (nvme, ssd, hdd, memory or network), free_bytes, total_bytes; None where unknown, such
        as the kind of a virtual disk.
    """
    existing = nearest_existing(path)
    filesystem, block = _mount_of(existing, proc, sys_root)
    kind = "memory" if filesystem in MEMORY_FILESYSTEMS else "network" if filesystem in NETWORK_FILESYSTEMS else None
    try:
        usage = shutil.disk_usage(existing)
    except OSError:
        usage = None
    return {
        "filesystem": filesystem,
        "kind": kind or (_disk_kind(block) if block else None),
        "free_bytes": None if usage is None else usage.free,
        "total_bytes": None if usage is None else usage.total,
    }


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists."""
    path = path.expanduser().absolute()
    for folder in (path, *path.parents):
        # A folder without permission counts as missing.
        with contextlib.suppress(OSError):
            if folder.exists():
                return folder
    return Path(path.anchor)


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
    """Return the git commit of the running code, or of the source code in a folder.

    Returns:
        git_commit (40 digits) and git_dirty (whether files in the folder differ from it); both None when git does not
        track the folder, as for an installed package, even inside another checkout.
    """
    folder = path or Path(__file__).parents[1]
    unknown = {"git_commit": None, "git_dirty": None}
    if not _git(folder, "ls-files", "--", "."):
        return unknown
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--", ".")
    return unknown if commit is None else {"git_commit": commit, "git_dirty": None if status is None else bool(status)}


def peak_memory_bytes() -> int | None:
    """Return the largest resident memory of this process so far."""
    # Not `ru_maxrss` on Linux: a process starts with the peak of its parent there.
    peak = _status_bytes("VmHWM")
    if peak is not None:
        return peak
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak_memory() -> bool:
    """Reset `peak_memory_bytes` to the resident memory now; return False where the system cannot."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident_memory_bytes() -> int | None:
    """Return the resident memory of this process now."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int | None:
    match = re.search(rf"^{name}:\s*(\d+) kB$", read_text(_PROC / "self" / "status") or "", re.MULTILINE)
    return None if match is None else int(match[1]) * 1024


def total_memory_bytes() -> int:
    """Return the memory of this machine, or the limit of the container if less."""
    import psutil

    return min(int(psutil.virtual_memory().total), memory_limit_bytes() or _NO_LIMIT_BYTES)


def available_memory_bytes(proc: Path = _PROC, sys_root: Path = _SYS) -> int:
    """Return the memory that can be allocated without swapping, within the machine and the limit of the container."""
    import psutil

    left = [int(psutil.virtual_memory().available)]
    for folder in _cgroup_folders("memory", proc, sys_root):
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with contextlib.suppress(ValueError):
                limit, used = (int(read_text(folder / name) or "") for name in names)
                # The system frees cached files when memory is short.
                cached = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder / "memory.stat") or "", re.M)
                if limit < _NO_LIMIT_BYTES:
                    left.append(max(0, limit - used + (int(cached[1]) if cached else 0)))
    return min(left)


def _cpu_fields(proc: Path) -> Mapping[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo, and of the machine after the list (Model, on ARM)."""
    fields: dict[str, str] = {}
    for line in (read_text(proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _cgroup_folders(controller: str, proc: Path, sys_root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group and of its parents, of cgroup v2 and of v1."""
    for line in (read_text(proc / "self" / "cgroup") or "").splitlines():
        _, controllers, inner = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = [sys_root / "fs" / "cgroup" / controllers] if controllers else []
        tops += [sys_root / "fs" / "cgroup" / controller] if controllers else [sys_root / "fs" / "cgroup"]
        for top in dict.fromkeys(tops):
            relative = Path(inner.lstrip("/"))
            # In a container the path is the host's and may be missing; the top folder is then the container's own.
            yield from (top / parent for parent in (relative, *relative.parents) if ".." not in parent.parts)


def _mount_of(path: Path, proc: Path, sys_root: Path) -> tuple[str | None, Path | None]:
    """Return the type of the file system of an existing path, and the folder in /sys of its block device."""
    real = path.resolve()
    best: tuple[int, str, str, str] | None = None
    for line in (read_text(proc / "self" / "mountinfo") or "").splitlines():
        # 36 35 98:0 /root /mount/point options [optional]... - type source options
        left, _, right = line.partition(" - ")
        words, (filesystem, source, *_) = left.split(), [*right.split(), "", ""]
        # The kernel escapes some characters in octal, such as a space as \040.
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4]))
        # A later mount on the same point hides the earlier one.
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), filesystem, words[2], source)
    if best is None:
        return None, None
    _, filesystem, number, source = best
    blocks = [sys_root / "dev" / "block" / number]
    # btrfs has its own device number; the source names one of its disks.
    if source.startswith("/dev/"):
        blocks.append(sys_root / "class" / "block" / Path(source).name)
    return filesystem, next((block.resolve() for block in blocks if block.exists()), None)


def _disk_kind(block: Path) -> str | None:
    """Return the kind of a disk, of a partition, or of a volume (LVM, RAID, encrypted) by its disks."""
    if (block / "slaves").is_dir() and (disks := sorted((block / "slaves").iterdir())):
        kinds = [_disk_kind(disk.resolve()) for disk in disks]
        return None if None in kinds else min((kind for kind in kinds if kind), key=_KINDS.index)
    # A partition has no queue and no model; its disk, the parent folder, has.
    for folder in (block, block.parent):
        rotational = read_text(folder / "queue" / "rotational")
        if rotational is None:
            continue
        model = (read_text(folder / "device" / "model") or "").strip()
        if folder.name.startswith(VIRTUAL_DISKS) or model.startswith(VIRTUAL_NVME):
            return None
        if rotational.strip() == "1":
            return "hdd"
        return "nvme" if folder.name.startswith("nvme") else "ssd"
    return None


def _git(folder: Path, *arguments: str) -> str | None:
    # Inside a git hook GIT_DIR names another repository; a file-system monitor would start another program.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    return command_output("git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments, environment=environment)
