"""Usable memory of devices."""

import pytest

from paratune.base.units import GIB
from paratune.hardware.devices import DEVICES
from paratune.planning.machine import find_machine, machine_of_node


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
    assert find_machine(key).memory_bytes == int(gib * GIB)


def test_memory_size_of_user_or_driver_is_kept() -> None:
    for name, num_bytes in (("NVIDIA A100-SXM4-40GB", 38 * GIB), ("a GPU of next year", 20 * GIB)):
        assert machine_of_node({"gpus": [{"name": name, "memory_bytes": num_bytes}]}).memory_bytes == num_bytes


def test_no_device_has_more_than_its_nominal_memory() -> None:
    for device in DEVICES:
        assert 0.9 * device.memory_bytes < (find_machine(device.key).memory_bytes or 0) < device.memory_bytes
