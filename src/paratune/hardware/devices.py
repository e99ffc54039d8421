"""What accelerators can do at most, by their makers' own sheets: peak arithmetic, memory, links, power.

Floor 1: data, no torch. A peak is the *dense* rate at which matrices are multiplied, tensor or matrix cores included
where PyTorch uses them for that arithmetic, with sums in fp32 (GeForce cards are twice as fast only when they sum in
fp16, which PyTorch does not ask for). Sheets often print the rate with 2:4 sparsity, which is twice what stands here.
What a sheet does not say is None, never a guess. A peak is at the maker's boost clock; a card that is capped or slowed
down by heat cannot reach it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from paratune.base.units import GIB

ARITHMETICS = ("fp64", "fp32", "tf32", "fp16", "bf16")
"""As `precision` names them."""


@dataclass(frozen=True)
class Device:
    """One kind of accelerator, as PyTorch sees it: of cards with two chips, one chip."""

    key: str
    """What one writes, such as "a100-80gb"."""
    names: tuple[str, ...]
    """What CUDA, ROCm and NVML call it."""
    source: str
    """The sheet that the figures are from."""
    memory_bytes: int
    """As it is sold; a driver shows 0.5 to 7% less, most where error correction takes its part of the memory."""
    memory_bytes_per_s: float | None = None
    fp64: float | None = None
    """This and the next four: peak floating-point operations per second in that arithmetic."""
    fp32: float | None = None
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    link_kind: str | None = None
    """nvlink (all GPUs of a machine), nvlink bridge (two of them, where one is fitted) or infinity fabric."""
    link_bytes_per_s: float | None = None
    """Of all its links of that kind together, one direction."""
    pcie_bytes_per_s: float | None = None
    """Of 16 lanes to the host, one direction, before protocol."""
    tdp_w: float | None = None
    """Most power that it may draw in the long run."""

    def peak_flops_per_s(self, arithmetic: str) -> float | None:
        """Return the peak in an arithmetic; None where the device has none, or its sheet does not say.

        Raises:
            ValueError: `arithmetic` is not one of `ARITHMETICS`.
        """
        if arithmetic not in ARITHMETICS:
            raise ValueError(f"arithmetic is {arithmetic!r}, one of {', '.join(ARITHMETICS)} is needed")
        value: float | None = getattr(self, arithmetic)
        return value


_FAST_FP64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""NVIDIA's compute capabilities with half as many units for fp64 as for fp32: P100, V100, A100, H100, B200. All others
have a 32nd or a 64th of them (CUDA C++ Programming Guide, throughput of native arithmetic instructions)."""
_HALF = 0.49
"""A sheet rounds: 37 of 75 TFLOP/s is half."""


def has_fast_fp64(name: str, capability: tuple[int, int] | None) -> bool:
    """Say whether a device computes in fp64 at half the speed of fp32 or faster.

    Args:
        name: As CUDA or ROCm reports it; what its sheet says counts where the device is listed.
        capability: NVIDIA's compute capability, as (9, 0), of a device that is not listed; None where it has none.
    """
    device = find_device(name)
    if device is not None and device.fp64 is not None and device.fp32 is not None:
        return device.fp64 >= _HALF * device.fp32
    return capability in _FAST_FP64


def find_device(name: str) -> Device | None:
    """Return the device of a name as CUDA, ROCm or NVML reports it, or of a key; None where it is not listed.

    The whole name counts, vendor and marketing words aside: a slice of a GPU ("... MIG 1g.5gb") is not the GPU.
    """
    return _BY_NAME.get(_plain(name))


_VENDOR_WORDS = frozenset({"nvidia", "amd", "tesla", "geforce", "instinct", "generation"})


def _plain(name: str) -> str:
    return " ".join(word for word in re.findall(r"[a-z0-9.]+", name.lower()) if word not in _VENDOR_WORDS)


_T, _G = 1e12, 1e9
_PCIE = {3: 16 * _G, 4: 32 * _G, 5: 64 * _G}

_P100 = "NVIDIA Tesla P100 datasheet, 2016"
_V100 = "NVIDIA V100 datasheet, January 2020"
_TURING = "NVIDIA Turing GPU architecture white paper, 2018, table 1 (reference card)"
_GA102 = "NVIDIA Ampere GA102 GPU architecture white paper, 2021"
_A100 = "NVIDIA A100 datasheet, June 2021"
_ADA = "NVIDIA Ada GPU architecture white paper, 2022"
_H100 = "NVIDIA H100 datasheet"
_H200 = "NVIDIA H200 datasheet"
_HOPPER = {"fp64": 67 * _T, "fp32": 67 * _T, "tf32": 494.7 * _T, "fp16": 989.4 * _T, "bf16": 989.4 * _T}
_NVL = {"fp64": 60 * _T, "fp32": 60 * _T, "tf32": 417.5 * _T, "fp16": 835.5 * _T, "bf16": 835.5 * _T}
_AMPERE = {"fp64": 19.5 * _T, "fp32": 19.5 * _T, "tf32": 156 * _T, "fp16": 312 * _T, "bf16": 312 * _T}
_CDNA3 = {"fp64": 163.4 * _T, "fp32": 163.4 * _T, "tf32": 653.7 * _T, "fp16": 1307.4 * _T, "bf16": 1307.4 * _T}

DEVICES: tuple[Device, ...] = (
    Device(
        "p100-16gb", ("Tesla P100-SXM2-16GB",), _P100, 16 * GIB, 732 * _G, fp64=5.3 * _T, fp32=10.6 * _T,
        fp16=21.2 * _T, link_kind="nvlink", link_bytes_per_s=80 * _G, pcie_bytes_per_s=_PCIE[3], tdp_w=300,
    ),
    Device(
        "p100-16gb-pcie", ("Tesla P100-PCIE-16GB",), _P100, 16 * GIB, 732 * _G, fp64=4.7 * _T, fp32=9.3 * _T,
        fp16=18.7 * _T, pcie_bytes_per_s=_PCIE[3], tdp_w=250,
    ),
    *(
        Device(
            f"v100-{gb}gb", (f"Tesla V100-SXM2-{gb}GB",), _V100, gb * GIB, 900 * _G, fp64=7.8 * _T, fp32=15.7 * _T,
            fp16=125 * _T, link_kind="nvlink", link_bytes_per_s=150 * _G, pcie_bytes_per_s=_PCIE[3], tdp_w=300,
        )
        for gb in (16, 32)
    ),
    *(
        Device(
            f"v100-{gb}gb-pcie", (f"Tesla V100-PCIE-{gb}GB",), _V100, gb * GIB, 900 * _G, fp64=7 * _T, fp32=14 * _T,
            fp16=112 * _T, pcie_bytes_per_s=_PCIE[3], tdp_w=250,
        )
        for gb in (16, 32)
    ),
    Device(
        "v100s", ("Tesla V100S-PCIE-32GB",), _V100, 32 * GIB, 1134 * _G, fp64=8.2 * _T, fp32=16.4 * _T,
        fp16=130 * _T, pcie_bytes_per_s=_PCIE[3], tdp_w=250,
    ),
    Device(
        "t4", ("Tesla T4",), "NVIDIA T4 datasheet, 2019", 16 * GIB, 320 * _G, fp32=8.1 * _T, fp16=65 * _T,
        pcie_bytes_per_s=_PCIE[3], tdp_w=70,
    ),
    Device(
        "rtx-2080-ti", ("NVIDIA GeForce RTX 2080 Ti",), _TURING, 11 * GIB, 616 * _G, fp32=13.4 * _T, fp16=53.8 * _T,
        link_kind="nvlink bridge", link_bytes_per_s=50 * _G, pcie_bytes_per_s=_PCIE[3], tdp_w=250,
    ),
    Device(
        "rtx-3090", ("NVIDIA GeForce RTX 3090",), _GA102, 24 * GIB, 936 * _G, fp64=35.6 / 64 * _T, fp32=35.6 * _T,
        tf32=35.6 * _T, fp16=71 * _T, bf16=71 * _T, link_kind="nvlink bridge", link_bytes_per_s=56.25 * _G,
        pcie_bytes_per_s=_PCIE[4], tdp_w=350,
    ),
    Device(
        "rtx-a6000", ("NVIDIA RTX A6000",), _GA102, 48 * GIB, 768 * _G, fp32=38.7 * _T, tf32=77.4 * _T,
        fp16=154.8 * _T, bf16=154.8 * _T, link_kind="nvlink bridge", link_bytes_per_s=56.25 * _G,
        pcie_bytes_per_s=_PCIE[4], tdp_w=300,
    ),
    Device(
        "rtx-4090", ("NVIDIA GeForce RTX 4090",), _ADA, 24 * GIB, 1008 * _G, fp64=82.6 / 64 * _T, fp32=82.6 * _T,
        tf32=82.6 * _T, fp16=165.2 * _T, bf16=165.2 * _T, pcie_bytes_per_s=_PCIE[4], tdp_w=450,
    ),
    Device(
        "rtx-5090", ("NVIDIA GeForce RTX 5090",), "NVIDIA RTX Blackwell GPU architecture white paper, 2025", 32 * GIB,
        1792 * _G, fp32=104.8 * _T, tf32=104.8 * _T, fp16=209.5 * _T, bf16=209.5 * _T, pcie_bytes_per_s=_PCIE[5],
        tdp_w=575,
    ),
    Device(
        "a10", ("NVIDIA A10",), "NVIDIA A10 datasheet, 2021", 24 * GIB, 600 * _G, fp32=31.2 * _T, tf32=62.5 * _T,
        fp16=125 * _T, bf16=125 * _T, pcie_bytes_per_s=_PCIE[4], tdp_w=150,
    ),
    Device(
        "a30", ("NVIDIA A30",), "NVIDIA A30 datasheet, 2021", 24 * GIB, 933 * _G, fp64=10.3 * _T, fp32=10.3 * _T,
        tf32=82 * _T, fp16=165 * _T, bf16=165 * _T, link_kind="nvlink bridge", link_bytes_per_s=100 * _G,
        pcie_bytes_per_s=_PCIE[4], tdp_w=165,
    ),
    Device(
        "a40", ("NVIDIA A40",), "NVIDIA A40 datasheet, 2021", 48 * GIB, 696 * _G, fp32=37.4 * _T, tf32=74.8 * _T,
        fp16=149.7 * _T, bf16=149.7 * _T, link_kind="nvlink bridge", link_bytes_per_s=56.25 * _G,
        pcie_bytes_per_s=_PCIE[4], tdp_w=300,
    ),
    Device(
        "a100-40gb", ("NVIDIA A100-SXM4-40GB",), _A100, 40 * GIB, 1555 * _G, **_AMPERE, link_kind="nvlink",
        link_bytes_per_s=300 * _G, pcie_bytes_per_s=_PCIE[4], tdp_w=400,
    ),
    Device(
        "a100-80gb", ("NVIDIA A100-SXM4-80GB",), _A100, 80 * GIB, 2039 * _G, **_AMPERE, link_kind="nvlink",
        link_bytes_per_s=300 * _G, pcie_bytes_per_s=_PCIE[4], tdp_w=400,
    ),
    Device(
        "a100-40gb-pcie", ("NVIDIA A100-PCIE-40GB",), _A100, 40 * GIB, 1555 * _G, **_AMPERE,
        link_kind="nvlink bridge", link_bytes_per_s=300 * _G, pcie_bytes_per_s=_PCIE[4], tdp_w=250,
    ),
    Device(
        "a100-80gb-pcie", ("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB"), _A100, 80 * GIB, 1935 * _G, **_AMPERE,
        link_kind="nvlink bridge", link_bytes_per_s=300 * _G, pcie_bytes_per_s=_PCIE[4], tdp_w=300,
    ),
    Device(
        "l4", ("NVIDIA L4",), "NVIDIA L4 datasheet, 2023", 24 * GIB, 300 * _G, fp32=30.3 * _T, tf32=60 * _T,
        fp16=121 * _T, bf16=121 * _T, pcie_bytes_per_s=_PCIE[4], tdp_w=72,
    ),
    Device(
        "l40", ("NVIDIA L40",), "NVIDIA L40 datasheet, 2022", 48 * GIB, 864 * _G, fp32=90.5 * _T, tf32=90.5 * _T,
        fp16=181.05 * _T, bf16=181.05 * _T, pcie_bytes_per_s=_PCIE[4], tdp_w=300,
    ),
    Device(
        "l40s", ("NVIDIA L40S",), "NVIDIA L40S datasheet, 2023", 48 * GIB, 864 * _G, fp32=91.6 * _T, tf32=183 * _T,
        fp16=362.05 * _T, bf16=362.05 * _T, pcie_bytes_per_s=_PCIE[4], tdp_w=350,
    ),
    Device(
        "h100-80gb", ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB"), _H100, 80 * GIB, 3350 * _G, **_HOPPER,
        link_kind="nvlink", link_bytes_per_s=450 * _G, pcie_bytes_per_s=_PCIE[5], tdp_w=700,
    ),
    Device(
        "h100-80gb-pcie", ("NVIDIA H100 PCIe",), _H100, 80 * GIB, 2000 * _G, fp64=51 * _T, fp32=51 * _T,
        tf32=378 * _T, fp16=756 * _T, bf16=756 * _T, link_kind="nvlink bridge", link_bytes_per_s=300 * _G,
        pcie_bytes_per_s=_PCIE[5], tdp_w=350,
    ),
    Device(
        "h100-nvl", ("NVIDIA H100 NVL",), _H100, 94 * GIB, 3900 * _G, **_NVL, link_kind="nvlink bridge",
        link_bytes_per_s=300 * _G, pcie_bytes_per_s=_PCIE[5], tdp_w=400,
    ),
    Device(
        "h200", ("NVIDIA H200",), _H200, 141 * GIB, 4800 * _G, **_HOPPER, link_kind="nvlink",
        link_bytes_per_s=450 * _G, pcie_bytes_per_s=_PCIE[5], tdp_w=700,
    ),
    Device(
        "h200-nvl", ("NVIDIA H200 NVL",), _H200, 141 * GIB, 4800 * _G, **_NVL, link_kind="nvlink bridge",
        link_bytes_per_s=450 * _G, pcie_bytes_per_s=_PCIE[5], tdp_w=600,
    ),
    Device(
        "b200", ("NVIDIA B200",), "NVIDIA HGX B200 datasheet, one of its eight GPUs", 180 * GIB, 8000 * _G,
        fp64=37 * _T, fp32=75 * _T, tf32=1125 * _T, fp16=2250 * _T, bf16=2250 * _T, link_kind="nvlink",
        link_bytes_per_s=900 * _G, pcie_bytes_per_s=_PCIE[5], tdp_w=1000,
    ),
    Device(
        "mi210", ("AMD Instinct MI210",), "AMD Instinct MI210 datasheet, 2022", 64 * GIB, 1638.4 * _G, fp64=45.3 * _T,
        fp32=45.3 * _T, fp16=181 * _T, bf16=181 * _T, pcie_bytes_per_s=_PCIE[4], tdp_w=300,
    ),
    # Two chips on a card, each a device of its own; the power is the card's and is not divided.
    Device(
        "mi250x", ("AMD Instinct MI250X",), "AMD Instinct MI250X datasheet, 2021, one of its two chips", 64 * GIB,
        1638.4 * _G, fp64=47.85 * _T, fp32=47.85 * _T, fp16=191.5 * _T, bf16=191.5 * _T, pcie_bytes_per_s=_PCIE[4],
    ),
    Device(
        "mi300x", ("AMD Instinct MI300X",), "AMD Instinct MI300X datasheet, 2023", 192 * GIB, 5300 * _G, **_CDNA3,
        link_kind="infinity fabric", link_bytes_per_s=448 * _G, pcie_bytes_per_s=_PCIE[5], tdp_w=750,
    ),
    Device(
        "mi325x", ("AMD Instinct MI325X",), "AMD Instinct MI325X datasheet, 2024", 256 * GIB, 6000 * _G, **_CDNA3,
        link_kind="infinity fabric", link_bytes_per_s=448 * _G, pcie_bytes_per_s=_PCIE[5], tdp_w=1000,
    ),
)  # fmt: skip
"""All that are known."""


def _by_name(devices: Iterable[Device]) -> dict[str, Device]:
    found: dict[str, Device] = {}
    for device in devices:
        for name in (device.key, *device.names):
            assert found.setdefault(_plain(name), device) is device, f"{name} is the name of two devices"
    return found


_BY_NAME = _by_name(DEVICES)
