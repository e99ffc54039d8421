"""Usable memory of devices."""

import pytest

from paratune.base.units import GIB
from paratune.hardware.devices import DEVICES, find_device
from paratune.planning.machine import usable_bytes


@pytest.mark.parametrize(
    ("key", "gib"),
    [
        ("v100-32gb", 31.74),  # haotian-liu/LLaVA#812
        ("t4", 14.75),  # hpcaitech/Open-Sora#697
        ("a100-80gb", 79.25),  # levihsu/OOTDiffusion#235
        ("h100-80gb", 79.11),  # vllm-project/vllm#27508
        ("rtx-a6000", 0.97 * 48),  # not listed
    ],
)
def test_usable_memory_is_what_pytorch_prints(key: str, gib: float) -> None:
    device = find_device(key)
    assert device is not None
    assert usable_bytes(device, device.memory_bytes) == int(gib * GIB)


def test_memory_size_of_user_or_driver_is_kept() -> None:
    device = find_device("a100-40gb")
    assert usable_bytes(device, 38 * GIB) == 38 * GIB
    assert usable_bytes(None, 20 * GIB) == 20 * GIB


def test_no_device_has_more_than_its_nominal_memory() -> None:
    assert all(
        0.9 * device.memory_bytes < usable_bytes(device, device.memory_bytes) < device.memory_bytes
        for device in DEVICES
    )
