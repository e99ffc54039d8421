"""Describes the GPUs of this machine, their links, and the versions of driver and libraries.

torch is imported inside the functions that need it. Unknown values are None.
"""

import contextlib
import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.hardware.system_files import command_output, read_text

LINKS = ("SYS", "NODE", "PHB", "PXB", "PIX")
"""PCIe paths between two GPUs from the slowest to the fastest, as `nvidia-smi topo -m` names them; NV<n> is NVLink."""
_PROC = Path("/proc")
_SYS = Path("/sys")


def describe_gpus() -> list[dict[str, Any]] | None:
    """Describe the GPUs that torch may use; None when torch cannot be imported (it is imported here).

    Returns:
        For each GPU: name, memory_bytes, capability ("9.0"), link (to the other GPUs, such as "NV18" or "PHB", slowest
        first when there are several; None for a single GPU or when unknown).
    """
    try:
        import torch
    except (ImportError, OSError):  # OSError: one of its libraries cannot be loaded
        return None
    if not torch.cuda.is_available():
        return []
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    # CUDA_VISIBLE_DEVICES may hide and reorder devices, by number or by UUID; the UUID in torch does not change.
    links = links_between([str(getattr(properties, "uuid", "")) for properties in devices])
    return [
        {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "link": link,
        }
        for properties, link in zip(devices, links, strict=True)
    ]


def links_between(uuids: Sequence[str]) -> list[str | None]:
    """Return the links of each GPU to the others, from nvidia-smi.

    Args:
        uuids: From PyTorch, without the prefix "GPU-".

    Returns:
        For each GPU the kinds of its links joined by "+", slowest first; None for a single GPU or when unknown.
    """
    if len(uuids) < 2:
        return [None] * len(uuids)
    rows = (command_output("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader") or "").splitlines()
    matches = (re.fullmatch(r"\s*(\d+)\s*,\s*GPU-(\S+)\s*", row) for row in rows)
    numbers = {match[2]: int(match[1]) for match in matches if match}
    own = [numbers.get(uuid) for uuid in uuids]
    links = gpu_links(command_output("nvidia-smi", "topo", "-m"), [number for number in own if number is not None])
    return [None if number is None else links.get(number) for number in own]


def gpu_links(topology: str | None, numbers: Sequence[int] | None = None) -> dict[int, str]:
    """Return the links of GPUs (default: all) to each other, from the output of `nvidia-smi topo -m`.

    Returns:
        By GPU number, the kinds of links in its row joined by "+", slowest first; GPUs without links are left out.
    """
    table: dict[int, dict[int, str]] = {}
    columns: list[str] = []
    # On a terminal nvidia-smi underlines the heading.
    for line in re.sub(r"\x1b\[[0-9;]*m", "", topology or "").splitlines():
        words = line.split()
        if not columns:
            columns = [word for word in words if re.fullmatch(r"GPU\d+", word)]
        elif words and words[0] in columns:
            pairs = zip(columns, words[1:], strict=False)
            table[int(words[0][3:])] = {int(other[3:]): kind for other, kind in pairs if other != words[0]}
    wanted = set(table) if numbers is None else set(numbers)
    kinds = {number: {kind for other, kind in table[number].items() if other in wanted} for number in table}
    rank = {kind: place for place, kind in enumerate(LINKS)}
    slowest_first = {
        number: sorted(names, key=lambda kind: (rank.get(kind, len(rank)), kind)) for number, names in kinds.items()
    }
    return {number: "+".join(slowest_first[number]) for number in table if number in wanted and kinds[number]}


def gpu_driver(proc: Path = _PROC, sys_root: Path = _SYS) -> str | None:
    """Return the version of NVIDIA's driver, such as "550.54.15"; None without a driver."""
    version = (read_text(sys_root / "module" / "nvidia" / "version") or "").strip()
    line = (read_text(proc / "driver" / "nvidia" / "version") or "").partition("\n")[0]
    if match := re.fullmatch(r"[\d.]+", version) or re.search(r"\d+\.\d+(\.\d+)?", line):
        return match[0]
    # Without these files, as in WSL, the program of the driver has it.
    lines = (command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "").splitlines()
    return lines[0].strip() if lines else None


def library_versions() -> dict[str, str | None]:
    """Return the versions of CUDA's runtime, cuDNN and NCCL that this process uses; None without a GPU of NVIDIA.

    Returns:
        cuda (with which torch was built), cudnn, and nccl: of the loaded library, which may not be that of the package
        with the same name; where none is loaded, of that with which torch was built.
    """
    unknown: dict[str, str | None] = {"cuda": None, "cudnn": None, "nccl": None}
    try:
        import torch
    except (ImportError, OSError):
        return unknown
    if torch.version.cuda is None or not torch.cuda.is_available():
        return unknown
    cudnn = None
    with contextlib.suppress(Exception):  # cuDNN raises where its version does not fit torch
        cudnn = cudnn_version(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return {"cuda": torch.version.cuda, "cudnn": cudnn, "nccl": loaded_nccl() or built_nccl()}


def built_nccl() -> str | None:
    """Return the version of NCCL with which torch was built; None for a build without NCCL."""
    import torch

    with contextlib.suppress(Exception):  # a build without NCCL raises various exceptions
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return None


def loaded_nccl(maps: Path = _PROC / "self" / "maps") -> str | None:
    """Return the version of NCCL that this process has loaded; None where it has none.

    Paths are not enough: the official builds of torch search their own folder before LD_LIBRARY_PATH, others do not.
    """
    for line in (read_text(maps) or "").splitlines():
        path = line.partition("/")[2]
        if re.search(r"/libnccl\.so[.\d]*$", f"/{path}"):
            number = ctypes.c_int()
            with contextlib.suppress(OSError, AttributeError):
                if ctypes.CDLL(f"/{path}").ncclGetVersion(ctypes.byref(number)) == 0:
                    return nccl_version(number.value)
    return None


def nccl_version(code: int) -> str:
    """Return "2.27.7" for 22707: 10000 X + 100 Y + Z, and up to 2.8 1000 X + 100 Y + Z (NCCL_VERSION in nccl.h)."""
    return _dotted(code, 10000 if code >= 10000 else 1000)


def cudnn_version(code: int | None) -> str | None:
    """Return "9.10.2" for 91002: 10000 X + 100 Y + Z, and up to 8 1000 X + 100 Y + Z (cudnn_version.h)."""
    return None if code is None else _dotted(code, 10000 if code >= 90000 else 1000)


def _dotted(code: int, major_factor: int) -> str:
    major, rest = divmod(code, major_factor)
    return f"{major}.{rest // 100}.{rest % 100}"
