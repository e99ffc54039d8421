"""Describes the GPUs of this machine, their links, and the versions of driver and libraries.

torch is imported inside the functions that need it. Unknown values are None.
"""

import contextlib
import ctypes
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paratune.hardware.system_files import command_output, read_text

LINKS = ("SYS", "NODE", "PHB", "PXB", "PIX")
"""PCIe paths between two GPUs from the slowest to the fastest, as `nvidia-smi topo -m` names them; NV<n> is NVLink."""
_PCIE_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t of nvml.h with the names of `nvidia-smi topo -m`; 0 is two GPUs on one board."""
_IS_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH of nvml.h."""
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
    """Return the links of each GPU to the others, from NVML, or from nvidia-smi where pynvml is not installed.

    Args:
        uuids: From PyTorch, without the prefix "GPU-".

    Returns:
        For each GPU the kinds of its links joined by "+", slowest first; None for a single GPU or when unknown.
    """
    if len(uuids) < 2:
        return [None] * len(uuids)
    nvml = _import_nvml()
    if nvml is not None:
        with contextlib.suppress(Exception):  # of NVML: no driver, no permission, a slice of a GPU
            return nvml_links(nvml, uuids)
    numbers = gpu_numbers(command_output("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"))
    own = [numbers.get(uuid) for uuid in uuids]
    links = gpu_links(command_output("nvidia-smi", "topo", "-m"), [number for number in own if number is not None])
    return [None if number is None else links.get(number) for number in own]


def gpu_numbers(rows: str | None) -> dict[str, int]:
    """Return the number of each GPU in nvidia-smi by UUID without prefix, from rows of `index, uuid`."""
    matches = (re.fullmatch(r"\s*(\d+)\s*,\s*GPU-(\S+)\s*", line) for line in (rows or "").splitlines())
    return {match[2]: int(match[1]) for match in matches if match}


def gpu_links(topology: str | None, numbers: Sequence[int] | None = None) -> dict[int, str]:
    """Return the links of GPUs (default: all) to each other, from the output of `nvidia-smi topo -m`.

    Returns:
        By GPU number, the kinds of links in its row joined by "+", slowest first; GPUs without links are left out.
    """
    table = link_table(topology)
    wanted = set(table) if numbers is None else set(numbers)
    kinds = {number: {kind for other, kind in table[number].items() if other in wanted} for number in table}
    return {number: _joined(kinds[number]) for number in table if number in wanted and kinds[number]}


def link_table(topology: str | None) -> dict[int, dict[int, str]]:
    """Return the kind of link of every pair of GPUs, from the output of `nvidia-smi topo -m`."""
    table: dict[int, dict[int, str]] = {}
    columns: list[str] = []
    for line in topology_lines(topology):
        words = line.split()
        if not columns:
            columns = [word for word in words if re.fullmatch(r"GPU\d+", word)]
        elif words and words[0] in columns:
            pairs = zip(columns, words[1:], strict=False)
            table[int(words[0][3:])] = {int(other[3:]): kind for other, kind in pairs if other != words[0]}
    return table


def topology_lines(topology: str | None) -> list[str]:
    """Return the lines of the output of `nvidia-smi topo -m`, which underlines the heading on a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", topology or "").splitlines()


def nvml_links(nvml: Any, uuids: Sequence[str]) -> list[str | None]:
    """Return the links of each GPU to the others, with the names of `nvidia-smi topo -m`.

    `nvml` is the module `pynvml`; UUIDs are of two GPUs or more, without the prefix "GPU-".

    Raises:
        Exception: Of NVML, when there is no driver, no such device, or no permission.
    """
    with _initialised(nvml):
        handles = [nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
        ends = [_nvlink_ends(nvml, handle) for handle in handles]
        addresses = [_text(nvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
        kinds: list[set[str]] = [set() for _ in uuids]
        for first, second in itertools.combinations(range(len(uuids)), 2):
            # A link to a switch reaches all GPUs with such a link.
            num_switched = min(ends[first].get("switch", 0), ends[second].get("switch", 0))
            num_links = ends[first].get(addresses[second]) or num_switched
            if num_links:
                kind = f"NV{num_links}"
            else:
                kind = _PCIE_LEVELS[nvml.nvmlDeviceGetTopologyCommonAncestor(handles[first], handles[second])]
            kinds[first].add(kind)
            kinds[second].add(kind)
        return [_joined(names) for names in kinds]


@contextlib.contextmanager
def _initialised(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _nvlink_ends(nvml: Any, handle: Any) -> dict[str, int]:
    """Return the number of active NVLinks of a GPU to each PCI address, or to a "switch"."""
    ends: dict[str, int] = {}
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, number):
                continue
            is_switch = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number) == _IS_SWITCH
            end = "switch" if is_switch else _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId)
        except nvml.NVMLError:  # a GPU without NVLink, or with fewer links
            continue
        ends[end] = ends.get(end, 0) + 1
    return ends


def _text(value: str | bytes) -> str:
    """Return a text of NVML, which older versions of pynvml return as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _joined(kinds: set[str]) -> str:
    return "+".join(sorted(kinds, key=lambda kind: (LINKS.index(kind) if kind in LINKS else len(LINKS), kind)))


def gpu_driver(proc: Path = _PROC, sys_root: Path = _SYS) -> str | None:
    """Return the version of NVIDIA's driver, such as "550.54.15", from the kernel or NVML; None without a driver."""
    version = (read_text(sys_root / "module" / "nvidia" / "version") or "").strip()
    line = (read_text(proc / "driver" / "nvidia" / "version") or "").partition("\n")[0]
    if match := re.fullmatch(r"[\d.]+", version) or re.search(r"\d+\.\d+(\.\d+)?", line):
        return match[0]
    nvml = _import_nvml()
    if nvml is not None:
        with contextlib.suppress(Exception), _initialised(nvml):  # of NVML: no driver
            return _text(nvml.nvmlSystemGetDriverVersion())
    return None


def _import_nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def library_versions() -> dict[str, str | None]:
    """Return the versions of CUDA's runtime, cuDNN and NCCL that this process uses; None without a GPU of NVIDIA.

    Returns:
        cuda, cudnn, nccl: of the loaded library, which may not be that of the package with the same name; where none
        is loaded, of the library with which torch was built.
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
    return {"cuda": loaded_cuda() or torch.version.cuda, "cudnn": cudnn, "nccl": loaded_nccl() or built_nccl()}


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
    return _loaded("libnccl", "ncclGetVersion", nccl_version, maps)


def loaded_cuda(maps: Path = _PROC / "self" / "maps") -> str | None:
    """Return the version of the CUDA runtime that this process has loaded; None where it has none."""
    return _loaded("libcudart", "cudaRuntimeGetVersion", cuda_version, maps)


def _loaded(library: str, function: str, version: Callable[[int], str], maps: Path) -> str | None:
    for line in (read_text(maps) or "").splitlines():
        path = line.partition("/")[2]
        if re.search(rf"/{library}\.so[.\d]*$", f"/{path}"):
            number = ctypes.c_int()
            with contextlib.suppress(OSError, AttributeError):
                if getattr(ctypes.CDLL(f"/{path}"), function)(ctypes.byref(number)) == 0:
                    return version(number.value)
    return None


def nccl_version(code: int) -> str:
    """Return "2.27.7" for 22707: 10000 X + 100 Y + Z, and up to 2.8 1000 X + 100 Y + Z (NCCL_VERSION in nccl.h)."""
    return _dotted(code, 10000 if code >= 10000 else 1000)


def cuda_version(code: int) -> str:
    """Return "12.8" for 12080: 1000 X + 10 Y (CUDART_VERSION in cuda_runtime_api.h)."""
    return f"{code // 1000}.{code % 1000 // 10}"


def cudnn_version(code: int | None) -> str | None:
    """Return "9.10.2" for 91002: 10000 X + 100 Y + Z, and up to 8 1000 X + 100 Y + Z (cudnn_version.h)."""
    return None if code is None else _dotted(code, 10000 if code >= 90000 else 1000)


def _dotted(code: int, major_factor: int) -> str:
    major, rest = divmod(code, major_factor)
    return f"{major}.{rest // 100}.{rest % 100}"
