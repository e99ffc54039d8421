"""Links between GPUs, from texts of nvidia-smi; versions of libraries."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paratune.hardware import gpus


def uuids(*numbers: int) -> list[str]:
    return [f"000{number}" for number in numbers]


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
def test_links_are_those_between_the_devices_that_torch_sees(monkeypatch, visible, links):
    monkeypatch.setattr(gpus, "command_output", smi)
    assert gpus.links_between(uuids(*visible)) == links


def test_links_of_a_slice_or_without_nvidia_smi_are_unknown(monkeypatch):
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
    monkeypatch.setattr(gpus, "command_output", smi)
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
    monkeypatch.setattr(gpus, "command_output", lambda *_: None)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert gpus.gpu_driver(tmp_path / "proc", tmp_path / "sys") == version


def test_the_driver_version_comes_from_nvidia_smi_if_the_kernel_has_none(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(gpus, "command_output", lambda *_: "535.183.01\n535.183.01")
    assert gpus.gpu_driver(tmp_path, tmp_path) == "535.183.01"


# CUDNN_VERSION in cudnn_version.h: MAJOR * 10000 + MINOR * 100 + PATCHLEVEL, and MAJOR * 1000 + ... up to cuDNN 8.
@pytest.mark.parametrize(("code", "version"), [(8902, "8.9.2"), (90100, "9.1.0"), (91002, "9.10.2"), (None, None)])
def test_the_number_of_a_cudnn(code, version):
    assert gpus.cudnn_version(code) == version


def test_without_a_gpu_no_library_of_nvidia_is_in_use():
    assert gpus.library_versions() == {"cuda": None, "cudnn": None, "nccl": None}


def test_versions_of_libraries_that_are_not_loaded_come_from_torch(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    assert gpus.library_versions() == {"cuda": "13.0", "cudnn": "9.13.0", "nccl": "2.28.9"}
