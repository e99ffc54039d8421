"""Peaks against the arithmetic of the chips: units, operations each in a clock cycle, clock."""

import pytest

from paratune.base.units import GIB
from paratune.hardware.devices import ARITHMETICS, DEVICES, find_device, has_fast_fp64


def peak(name: str, arithmetic: str) -> float | None:
    device = find_device(name)
    assert device is not None, name
    return device.peak_flops_per_s(arithmetic)


@pytest.mark.parametrize(
    ("name", "arithmetic", "num_sms", "flops_a_cycle", "clock_ghz"),
    [
        # A multiply-add is two operations; fp32 has one a core and cycle. Tensor cores, dense: white papers on V100
        # (8 cores of 64 multiply-adds an SM), A100 (4 of 256), H100 (4 of 512) and GA102 (4 of 64 that sum in fp32).
        ("Tesla V100-SXM2-32GB", "fp32", 80, 64 * 2, 1.53),
        ("Tesla V100-SXM2-16GB", "fp16", 80, 8 * 64 * 2, 1.53),
        ("NVIDIA A100-SXM4-40GB", "fp32", 108, 64 * 2, 1.41),
        ("NVIDIA A100-SXM4-40GB", "bf16", 108, 4 * 256 * 2, 1.41),
        ("NVIDIA A100-SXM4-80GB", "tf32", 108, 4 * 128 * 2, 1.41),
        ("NVIDIA A100 80GB PCIe", "fp64", 108, 4 * 16 * 2, 1.41),
        ("NVIDIA H100 80GB HBM3", "bf16", 132, 4 * 512 * 2, 1.83),
        ("NVIDIA H200", "tf32", 132, 4 * 256 * 2, 1.83),
        ("NVIDIA H100 PCIe", "fp16", 114, 4 * 512 * 2, 1.62),
        ("NVIDIA GeForce RTX 3090", "fp16", 82, 4 * 64 * 2, 1.695),
        ("NVIDIA GeForce RTX 4090", "bf16", 128, 4 * 64 * 2, 2.52),
        ("Tesla T4", "fp16", 40, 8 * 64 * 2, 1.59),
        ("AMD Instinct MI300X", "bf16", 304, 2048, 2.1),
    ],
)
def test_peaks_are_dense(name, arithmetic, num_sms, flops_a_cycle, clock_ghz):
    assert peak(name, arithmetic) == pytest.approx(num_sms * flops_a_cycle * clock_ghz * 1e9, rel=0.015)


def test_the_peak_of_an_unsupported_precision_is_unknown():
    assert peak("Tesla V100-SXM2-16GB", "bf16") is None
    assert peak("Tesla T4", "tf32") is None
    with pytest.raises(ValueError, match="fp8"):
        peak("NVIDIA H200", "fp8")


@pytest.mark.parametrize(
    ("reported", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),  # drivers before 2021
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("Tesla V100S-PCIE-32GB", "v100s"),
        ("h200", "h200"),
        ("a100-80gb", "a100-80gb"),
    ],
)
def test_a_device_is_found_by_its_name_in_the_driver(reported, key):
    device = find_device(reported)
    assert device is not None
    assert device.key == key


@pytest.mark.parametrize(
    "reported",
    ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 3090 Ti", "AMD EPYC 9654 96-Core Processor", "A100", ""],
)
def test_unlisted_devices_are_not_found(reported):
    assert find_device(reported) is None


def test_all_devices_have_the_figures_of_a_plan():
    assert len({device.key for device in DEVICES}) == len(DEVICES)
    for device in DEVICES:
        assert {find_device(name) for name in (device.key, *device.names)} == {device}, "two devices have one name"
        assert device.source
        assert device.fp32
        assert device.memory_bytes >= 11 * GIB
        assert device.memory_bytes_per_s
        assert (device.link_kind is None) == (device.link_bytes_per_s is None)
        peaks = [device.peak_flops_per_s(arithmetic) for arithmetic in ARITHMETICS]
        # From fp64 to the half precisions none is slower than the one before.
        known = [value for value in peaks if value is not None]
        assert known == sorted(known), device.key


def test_link_speeds_are_for_one_direction():
    # NVLink of V100, A100, H100, B200: 6, 12, 18, 18 links of 25, 25, 25, 50 GB/s each way.
    for name, num_links, gb_per_s in (("v100-16gb", 6, 25), ("a100-40gb", 12, 25), ("h200", 18, 25), ("b200", 18, 50)):
        device = find_device(name)
        assert device is not None
        assert device.link_bytes_per_s == num_links * gb_per_s * 1e9


@pytest.mark.parametrize(
    ("name", "capability", "fast"),
    [
        # By their sheets: 67 and 67, 37 and 75, 1.3 and 82.6 TFLOP/s; T4 and L40S list no fp64.
        ("NVIDIA H200", (9, 0), True),
        ("NVIDIA B200", (10, 0), True),
        ("NVIDIA GeForce RTX 4090", (8, 9), False),
        ("Tesla T4", (7, 5), False),
        ("AMD Instinct MI300X", None, True),
        # By their capability: an A800 is an A100; a B300 has 10.3, and hardly any fp64.
        ("NVIDIA A800-SXM4-80GB", (8, 0), True),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0), True),
        ("NVIDIA B300 SXM6", (10, 3), False),
        ("NVIDIA GeForce RTX 5080", (12, 0), False),
        ("AMD Radeon RX 7900 XTX", None, False),
    ],
)
def test_which_devices_are_fast_in_fp64(name, capability, fast):
    assert has_fast_fp64(name, capability) is fast
