"""Links between GPUs, from a replacement of NVML and from texts of nvidia-smi; versions of libraries."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paratune.hardware import gpus


class NVMLError(Exception):
    """As pynvml's."""


LEVELS = {(0, 1): 30, (0, 2): 50, (0, 3): 50, (1, 2): 50, (1, 3): 50, (2, 3): 20}
"""NVML_TOPOLOGY_HOSTBRIDGE, _SYSTEM and _MULTIPLE of nvml.h."""


class FakeNvml:
    """Replaces pynvml: four GPUs, of which two have a bridge; PCIe or the processors connect the others."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 6

    def __init__(self, *, nvlinks: dict[int, list[str]] | None = None, as_bytes: bool = False) -> None:
        """Lay out the links.

        Args:
            nvlinks: By GPU, where its active links end: at the number of another GPU, or at a "switch".
            as_bytes: Whether texts are bytes, as those of old versions of pynvml.
        """
        self.nvlinks = {0: ["1"] * 4, 1: ["0"] * 4} if nvlinks is None else nvlinks
        self.as_bytes, self.num_open = as_bytes, 0

    def _say(self, text: str) -> Any:
        return text.encode() if self.as_bytes else text

    def _end(self, gpu: int, link: int) -> str:
        ends = self.nvlinks.get(gpu)
        if ends is None or link >= len(ends):
            raise NVMLError("Not Supported")
        return ends[link]

    def nvmlInit(self) -> None:  # noqa: N802
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return self._say("535.183.01")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if not uuid.startswith("GPU-000"):
            raise NVMLError("Not Found")
        return int(uuid[-1])

    def nvmlDeviceGetPciInfo(self, gpu: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self._say(f"00000000:0{gpu}:00.0"))

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:  # noqa: N802
        return int(self._end(gpu, link) != "off")

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:  # noqa: N802
        return 2 if self._end(gpu, link) == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self._say(f"00000000:0{self._end(gpu, link)}:00.0"))

    def nvmlDeviceGetTopologyCommonAncestor(self, gpu: int, other: int) -> int:  # noqa: N802
        return LEVELS[tuple(sorted((gpu, other)))]


def uuids(*numbers: int) -> list[str]:
    return [f"000{number}" for number in numbers]


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize(
    ("visible", "links"),
    [
        # GPUs 0 and 1 have a bridge of four links; 2 and 3 share a switch of PCIe; between both pairs are processors.
        ((0, 1, 2, 3), ["SYS+NV4", "SYS+NV4", "SYS+PXB", "SYS+PXB"]),
        ((2, 3), ["PXB", "PXB"]),
        ((3, 0, 1), ["SYS", "SYS+NV4", "SYS+NV4"]),
        ((1, 3), ["SYS", "SYS"]),
    ],
)
def test_links_are_those_between_the_devices_that_torch_sees(visible, links, as_bytes):
    nvml = FakeNvml(as_bytes=as_bytes)
    assert gpus.nvml_links(nvml, uuids(*visible)) == links
    assert nvml.num_open == 0


def test_links_to_switches_reach_all_gpus_that_have_some():
    # A link of GPU 2 is off; GPU 3 has none.
    nvml = FakeNvml(nvlinks={0: ["switch"] * 6, 1: ["switch"] * 6, 2: [*["switch"] * 5, "off"]})
    assert gpus.nvml_links(nvml, uuids(0, 1)) == ["NV6", "NV6"]
    assert gpus.nvml_links(nvml, uuids(0, 2)) == ["NV5", "NV5"]
    assert gpus.nvml_links(nvml, uuids(0, 1, 3)) == ["SYS+NV6", "SYS+NV6", "SYS"]


TOPOLOGY = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity
GPU0\t X \tNV4\tSYS\tSYS\t0-31
GPU1\tNV4\t X \tSYS\tSYS\t0-31
GPU2\tSYS\tSYS\t X \tPXB\t32-63
GPU3\tSYS\tSYS\tPXB\t X \t32-63
"""
ROWS = "0, GPU-0000\n1, GPU-0001\n2, GPU-0002\n3, GPU-0003\n"


def smi(*words: str) -> str:
    assert words[0] == "nvidia-smi"
    return TOPOLOGY if "topo" in words else ROWS


@pytest.mark.parametrize("visible", [(0, 1, 2, 3), (2, 3), (3, 0, 1), (1, 3)])
def test_nvidia_smi_and_nvml_give_the_same_links(monkeypatch, visible):
    monkeypatch.setattr(gpus, "command_output", smi)
    monkeypatch.setattr(gpus, "_import_nvml", lambda: None)
    assert gpus.links_between(uuids(*visible)) == gpus.nvml_links(FakeNvml(), uuids(*visible))


def test_nvidia_smi_replaces_a_failing_nvml(monkeypatch):
    monkeypatch.setattr(gpus, "_import_nvml", FakeNvml)
    monkeypatch.setattr(gpus, "command_output", smi)
    assert gpus.links_between(["a slice", *uuids(2, 3)]) == [None, "PXB", "PXB"]
    monkeypatch.setattr(gpus, "command_output", lambda *_: None)
    assert gpus.links_between(["a slice", *uuids(2)]) == [None, None]
    assert gpus.links_between(uuids(0)) == [None]


def test_hidden_and_reordered_devices_are_found_by_the_uuid_of_torch(monkeypatch):
    # As with CUDA_VISIBLE_DEVICES=3,0,1.
    def properties(index: int) -> Any:
        uuid = uuids(3, 0, 1)[index]
        return SimpleNamespace(name="V100", total_memory=16, major=7, minor=0, uuid=uuid)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(gpus, "_import_nvml", FakeNvml)
    described = gpus.describe_gpus()
    assert [gpu["link"] for gpu in described] == ["SYS", "SYS+NV4", "SYS+NV4"]
    assert described[0] == {"name": "V100", "memory_bytes": 16, "capability": "7.0", "link": "SYS"}


NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version: 9.3.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)\n"


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"sys/module/nvidia/version": "550.54.15\n", "proc/driver/nvidia/version": NVRM}, "550.54.15"),
        ({"proc/driver/nvidia/version": NVRM}, "470.57.02"),
        ({"proc/driver/nvidia/version": OPEN}, "550.54.15"),
        ({}, None),
    ],
)
def test_the_driver_by_files_of_the_kernel(tmp_path: Path, monkeypatch, files, version):
    monkeypatch.setattr(gpus, "_import_nvml", lambda: None)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert gpus.gpu_driver(tmp_path / "proc", tmp_path / "sys") == version


def test_the_driver_version_comes_from_nvml_if_the_kernel_has_none(tmp_path: Path, monkeypatch):
    nvml = FakeNvml(as_bytes=True)
    monkeypatch.setattr(gpus, "_import_nvml", lambda: nvml)
    assert gpus.gpu_driver(tmp_path, tmp_path) == "535.183.01"
    assert nvml.num_open == 0


# CUDNN_VERSION in cudnn_version.h: MAJOR * 10000 + MINOR * 100 + PATCHLEVEL, and MAJOR * 1000 + ... up to cuDNN 8.
@pytest.mark.parametrize(("code", "version"), [(8902, "8.9.2"), (90100, "9.1.0"), (91002, "9.10.2"), (None, None)])
def test_the_number_of_a_cudnn(code, version):
    assert gpus.cudnn_version(code) == version


def test_libraries_in_use_are_those_that_the_process_has_loaded(tmp_path: Path, monkeypatch):
    answers = {"/opt/lib/libcudart.so.12": 12080, "/opt/lib/libnccl.so.2": 22707}

    class Library:
        def __init__(self, path: str) -> None:
            self.path = path

        def _answer(self, number: Any) -> int:
            number._obj.value = answers[self.path]
            return 0

        ncclGetVersion = cudaRuntimeGetVersion = _answer  # noqa: N815

    monkeypatch.setattr(ctypes, "CDLL", Library)
    maps = tmp_path / "maps"
    maps.write_text("".join(f"7f00-7f01 r-xp 00000000 08:01 131 {path}\n" for path in answers))
    # 12080 = 1000 x 12 + 10 x 8; 22707 = 10000 x 2 + 100 x 27 + 7.
    assert (gpus.loaded_cuda(maps), gpus.loaded_nccl(maps)) == ("12.8", "2.27.7")
    assert gpus.loaded_cuda(tmp_path / "none") is None


def test_without_a_gpu_no_library_of_nvidia_is_in_use():
    assert gpus.library_versions() == {"cuda": None, "cudnn": None, "nccl": None}


def test_versions_of_libraries_that_are_not_loaded_come_from_torch(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    assert gpus.library_versions() == {"cuda": "13.0", "cudnn": "9.13.0", "nccl": "2.28.9"}
