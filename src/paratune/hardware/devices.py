"""Peak FLOP/s, memory and links of accelerators, from the data sheets of their makers.

A peak is the *dense* rate of matrix products with sums in fp32, with tensor or matrix cores where PyTorch uses them for
that precision (GeForce cards are twice as fast only with sums in fp16, which PyTorch does not use). Data sheets often
have the rate with 2:4 sparsity, which is twice as high. Unknown values are None. Peaks are at the boost clock; a card
with a power limit or at a high temperature does not reach them.
"""

import re
from dataclasses import dataclass

from paratune.base.units import GIB

ARITHMETICS = ("fp64", "fp32", "tf32", "fp16", "bf16")
"""Names of `precision`."""


@dataclass(frozen=True)
class Device:
    """One kind of accelerator as PyTorch sees it: one chip of a card with two."""

    key: str
    """Name on the command line, such as "a100-80gb"."""
    names: tuple[str, ...]
    """Names in CUDA, ROCm and NVML."""
    source: str
    """Data sheet of the figures."""
    memory_bytes: int
    """In the data sheet; a driver shows 0.5 to 7% less, most where error correction uses memory."""
    memory_bytes_per_s: float | None = None
    fp64: float | None = None
    """This and the next four: peak FLOP/s in that precision."""
    fp32: float | None = None
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    link_kind: str | None = None
    """nvlink (all GPUs of a machine), nvlink bridge (two GPUs, if there is a bridge) or infinity fabric."""
    link_bytes_per_s: float | None = None
    """Speed of all links of that kind together, in one direction."""
    pcie_bytes_per_s: float | None = None
    """Speed of 16 lanes to the host, in one direction, without protocol overhead."""
    generation: str | None = None
    """Name of the architecture, such as ampere."""
    num_multiprocessors: int | None = None
    """Streaming multiprocessors, or compute units of AMD."""

    def peak_flops_per_s(self, arithmetic: str) -> float | None:
        """Return the peak in a precision; None where the device does not support it, or the data sheet lacks it.

        Raises:
            ValueError: `arithmetic` is not one of `ARITHMETICS`.
        """
        if arithmetic not in ARITHMETICS:
            raise ValueError(f"arithmetic is {arithmetic!r}, one of {', '.join(ARITHMETICS)} is needed")
        value: float | None = getattr(self, arithmetic)
        return value


_FAST_FP64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""NVIDIA's compute capabilities with half as many units for fp64 as for fp32: P100, V100, A100, H100, B200. All others
have 1/32 or 1/64 (CUDA C++ Programming Guide, throughput of native arithmetic instructions)."""
_HALF = 0.49
"""Data sheets round: 37 of 75 TFLOP/s is half."""


def has_fast_fp64(name: str, capability: tuple[int, int] | None) -> bool:
    """Return whether a device computes in fp64 with half the speed of fp32 or more.

    `name` is as CUDA or ROCm reports it. The data sheet counts for a listed device, and NVIDIA's compute capability, as
    (9, 0), or None where there is none, for others.
    """
    device = find_device(name)
    if device is not None and device.fp64 is not None and device.fp32 is not None:
        return device.fp64 >= _HALF * device.fp32
    return capability in _FAST_FP64


def find_device(name: str) -> Device | None:
    """Return the device with a key, or with a name of CUDA, ROCm or NVML; None where it is not listed.

    The whole name counts, without vendor words: a slice of a GPU ("... MIG 1g.5gb") is not the GPU.
    """
    return _BY_NAME.get(_plain(name))


_VENDOR_WORDS = frozenset({"nvidia", "amd", "tesla", "geforce", "instinct", "generation"})


def _plain(name: str) -> str:
    return " ".join(word for word in re.findall(r"[a-z0-9.]+", name.lower()) if word not in _VENDOR_WORDS)


_P100 = "NVIDIA Tesla P100 datasheet, 2016"
_V100 = "NVIDIA V100 datasheet, January 2020"
_TURING = "NVIDIA Turing GPU architecture white paper, 2018, table 1 (reference card)"
_GA102 = "NVIDIA Ampere GA102 GPU architecture white paper, 2021"
_A100 = "NVIDIA A100 datasheet, June 2021"
_ADA = "NVIDIA Ada GPU architecture white paper, 2022"
_H100 = "NVIDIA H100 datasheet"
_H200 = "NVIDIA H200 datasheet"
_Row = tuple[str, tuple[str, ...], str, int, float, tuple[float | None, ...], str | None, float | None, int, str, int]
_ROWS: tuple[_Row, ...] = (
    # key, names, source, GiB, GB/s, TFLOP/s in each of `ARITHMETICS`, kind and GB/s of links, PCIe generation,
    # generation and multiprocessors
    ("p100-16gb", ("Tesla P100-SXM2-16GB",), _P100, 16, 732,
     (5.3, 10.6, None, 21.2, None), "nvlink", 80, 3, "pascal", 56),
    ("p100-16gb-pcie", ("Tesla P100-PCIE-16GB",), _P100, 16, 732,
     (4.7, 9.3, None, 18.7, None), None, None, 3, "pascal", 56),
    ("v100-16gb", ("Tesla V100-SXM2-16GB",), _V100, 16, 900,
     (7.8, 15.7, None, 125, None), "nvlink", 150, 3, "volta", 80),
    ("v100-32gb", ("Tesla V100-SXM2-32GB",), _V100, 32, 900,
     (7.8, 15.7, None, 125, None), "nvlink", 150, 3, "volta", 80),
    ("v100-16gb-pcie", ("Tesla V100-PCIE-16GB",), _V100, 16, 900,
     (7, 14, None, 112, None), None, None, 3, "volta", 80),
    ("v100-32gb-pcie", ("Tesla V100-PCIE-32GB",), _V100, 32, 900,
     (7, 14, None, 112, None), None, None, 3, "volta", 80),
    ("v100s", ("Tesla V100S-PCIE-32GB",), _V100, 32, 1134, (8.2, 16.4, None, 130, None), None, None, 3, "volta", 80),
    ("t4", ("Tesla T4",), "NVIDIA T4 datasheet, 2019", 16, 320,
     (None, 8.1, None, 65, None), None, None, 3, "turing", 40),
    ("rtx-2080-ti", ("NVIDIA GeForce RTX 2080 Ti",), _TURING, 11, 616,
     (None, 13.4, None, 53.8, None), "nvlink bridge", 50, 3, "turing", 68),
    ("rtx-3090", ("NVIDIA GeForce RTX 3090",), _GA102, 24, 936,
     (35.6 / 64, 35.6, 35.6, 71, 71), "nvlink bridge", 56.25, 4, "ampere", 82),
    ("rtx-a6000", ("NVIDIA RTX A6000",), _GA102, 48, 768,
     (None, 38.7, 77.4, 154.8, 154.8), "nvlink bridge", 56.25, 4, "ampere", 84),
    ("rtx-4090", ("NVIDIA GeForce RTX 4090",), _ADA, 24, 1008,
     (82.6 / 64, 82.6, 82.6, 165.2, 165.2), None, None, 4, "ada", 128),
    ("rtx-5090", ("NVIDIA GeForce RTX 5090",), "NVIDIA RTX Blackwell GPU architecture white paper, 2025", 32, 1792,
     (None, 104.8, 104.8, 209.5, 209.5), None, None, 5, "blackwell", 170),
    ("a10", ("NVIDIA A10",), "NVIDIA A10 datasheet, 2021", 24, 600,
     (None, 31.2, 62.5, 125, 125), None, None, 4, "ampere", 72),
    ("a30", ("NVIDIA A30",), "NVIDIA A30 datasheet, 2021", 24, 933,
     (10.3, 10.3, 82, 165, 165), "nvlink bridge", 100, 4, "ampere", 56),
    ("a40", ("NVIDIA A40",), "NVIDIA A40 datasheet, 2021", 48, 696,
     (None, 37.4, 74.8, 149.7, 149.7), "nvlink bridge", 56.25, 4, "ampere", 84),
    ("a100-40gb", ("NVIDIA A100-SXM4-40GB",), _A100, 40, 1555,
     (19.5, 19.5, 156, 312, 312), "nvlink", 300, 4, "ampere", 108),
    ("a100-80gb", ("NVIDIA A100-SXM4-80GB",), _A100, 80, 2039,
     (19.5, 19.5, 156, 312, 312), "nvlink", 300, 4, "ampere", 108),
    ("a100-40gb-pcie", ("NVIDIA A100-PCIE-40GB",), _A100, 40, 1555,
     (19.5, 19.5, 156, 312, 312), "nvlink bridge", 300, 4, "ampere", 108),
    ("a100-80gb-pcie", ("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB",), _A100, 80, 1935,
     (19.5, 19.5, 156, 312, 312), "nvlink bridge", 300, 4, "ampere", 108),
    ("l4", ("NVIDIA L4",), "NVIDIA L4 datasheet, 2023", 24, 300, (None, 30.3, 60, 121, 121), None, None, 4, "ada", 58),
    ("l40", ("NVIDIA L40",), "NVIDIA L40 datasheet, 2022", 48, 864,
     (None, 90.5, 90.5, 181.05, 181.05), None, None, 4, "ada", 142),
    ("l40s", ("NVIDIA L40S",), "NVIDIA L40S datasheet, 2023", 48, 864,
     (None, 91.6, 183, 362.05, 362.05), None, None, 4, "ada", 142),
    ("h100-80gb", ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB",), _H100, 80, 3350,
     (67, 67, 494.7, 989.4, 989.4), "nvlink", 450, 5, "hopper", 132),
    ("h100-80gb-pcie", ("NVIDIA H100 PCIe",), _H100, 80, 2000,
     (51, 51, 378, 756, 756), "nvlink bridge", 300, 5, "hopper", 114),
    ("h100-nvl", ("NVIDIA H100 NVL",), _H100, 94, 3900,
     (60, 60, 417.5, 835.5, 835.5), "nvlink bridge", 300, 5, "hopper", 132),
    ("h200", ("NVIDIA H200",), _H200, 141, 4800, (67, 67, 494.7, 989.4, 989.4), "nvlink", 450, 5, "hopper", 132),
    ("h200-nvl", ("NVIDIA H200 NVL",), _H200, 141, 4800,
     (60, 60, 417.5, 835.5, 835.5), "nvlink bridge", 450, 5, "hopper", 132),
    ("b200", ("NVIDIA B200",), "NVIDIA HGX B200 datasheet, one of its eight GPUs", 180, 8000,
     (37, 75, 1125, 2250, 2250), "nvlink", 900, 5, "blackwell", 148),
    ("mi210", ("AMD Instinct MI210",), "AMD Instinct MI210 datasheet, 2022", 64, 1638.4,
     (45.3, 45.3, None, 181, 181), None, None, 4, "cdna", 104),
    # A card has two chips, which are separate devices.
    ("mi250x", ("AMD Instinct MI250X",), "AMD Instinct MI250X datasheet, 2021, one of its two chips", 64, 1638.4,
     (47.85, 47.85, None, 191.5, 191.5), None, None, 4, "cdna", 110),
    ("mi300x", ("AMD Instinct MI300X",), "AMD Instinct MI300X datasheet, 2023", 192, 5300,
     (163.4, 163.4, 653.7, 1307.4, 1307.4), "infinity fabric", 448, 5, "cdna", 304),
    ("mi325x", ("AMD Instinct MI325X",), "AMD Instinct MI325X datasheet, 2024", 256, 6000,
     (163.4, 163.4, 653.7, 1307.4, 1307.4), "infinity fabric", 448, 5, "cdna", 304),
)  # fmt: skip
_PCIE_BYTES_PER_S = {3: 16e9, 4: 32e9, 5: 64e9}


def _device(row: _Row) -> Device:
    key, names, source, gib, gb_per_s, tflops_per_s, link_kind, link_gb_per_s, pcie, generation, units = row
    return Device(
        key,
        names,
        source,
        memory_bytes=gib * GIB,
        memory_bytes_per_s=gb_per_s * 1e9,
        **{name: None if peak is None else peak * 1e12 for name, peak in zip(ARITHMETICS, tflops_per_s, strict=True)},
        link_kind=link_kind,
        link_bytes_per_s=None if link_gb_per_s is None else link_gb_per_s * 1e9,
        pcie_bytes_per_s=_PCIE_BYTES_PER_S[pcie],
        generation=generation,
        num_multiprocessors=units,
    )


DEVICES: tuple[Device, ...] = tuple(map(_device, _ROWS))
"""All known devices."""
_BY_NAME = {_plain(name): device for device in DEVICES for name in (device.key, *device.names)}
