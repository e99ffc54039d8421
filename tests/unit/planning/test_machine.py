"""Machines: listed devices, those of recorded nodes, and the error of a device that is not listed."""

from dataclasses import replace

import pytest
from raised import raises_code

from paratune.base.units import GIB
from paratune.planning.constants import assumed_constants
from paratune.planning.machine import find_machine, machine_of_node


def test_constants_of_a_listed_device_follow_its_sheet() -> None:
    machine = find_machine("a100-40gb")
    assert machine.constants is not None
    assert machine.is_cuda
    assert machine.memory_bytes == int(39.50 * GIB)  # as an error of PyTorch prints it: TianheWu/CoSeR#10
    # NVIDIA A100 datasheet: 312 TFLOP/s in bf16, of which large products reach three quarters; 108 multiprocessors.
    assert machine.constants["product.bf16"].value == pytest.approx(0.75 * 312e12)
    assert machine.constants["product.bf16"].high < 312e12
    assert machine.constants["units"].value == 108
    # 300 GB/s of NVLink in one direction; 1555 GB/s of memory.
    assert machine.constants["link"].value == pytest.approx(0.65 * 300e9)
    assert machine.constants["elementwise"].high < 1555e9


@pytest.mark.parametrize("key", ["a100-40gb", "t4", "v100-16gb", "rtx-3090", "mi250x"])
def test_assumed_constants_have_bounds(key: str) -> None:
    constants = find_machine(key).constants
    assert constants is not None
    for name in constants.by_name:
        assert constants[name].low <= constants[name].value <= constants[name].high


@pytest.mark.parametrize(
    ("key", "product"),
    [("a10", 0.75 * 125e12), ("rtx-3090", 71e12), ("rtx-a6000", 0.75 * 154.8e12)],
)
def test_matrix_units_of_geforce_reach_more_of_their_peak(key: str, product: float) -> None:
    constants = find_machine(key).constants
    assert constants is not None
    assert constants["product.fp16"].value == pytest.approx(product)
    assert constants["batched.fp16"].value == pytest.approx(0.3 * product)


def test_rates_of_a_generation_contain_its_published_products() -> None:
    # TFLOP/s of large products: DeepBench, 4096 x 7000 x 4096 (T4: 4608 x 24000 x 1536); Triton's tutorial, 4096; MAMF.
    for key, arithmetic, published in (
        ("v100-16gb", "fp16", 112.3),
        ("t4", "fp16", 39.4),
        ("t4", "fp32", 3.77),
        ("a100-40gb", "fp16", 219.7),
        ("h100-80gb", "bf16", 794.5),
        ("b200", "bf16", 1745.0),
    ):
        constants = find_machine(key).constants
        assert constants is not None
        rate = constants[f"product.{arithmetic}"]
        assert rate.low < published * 1e12 < rate.high


def test_arithmetic_missing_on_the_sheet_is_unknown() -> None:
    constants = find_machine("v100-16gb").constants
    assert constants is not None
    assert "product.bf16" not in constants
    assert "product.fp16" in constants


def test_nvlink_bridge_is_only_the_upper_bound() -> None:
    constants = find_machine("rtx-3090").constants
    assert constants is not None
    # PCIe 4.0 has 32 GB/s for 16 lanes, the bridge 56.25.
    assert constants["link"].value < 32e9
    assert constants["link"].high == pytest.approx(0.9 * 56.25e9)


def test_error_of_an_unlisted_device_lists_all_devices() -> None:
    with raises_code("plan.unknown_device", "a100-41gb", "h100-80gb", "there are a100-40gb, a100-80gb, a100-40gb-pcie"):
        find_machine("a100-41gb")
    with raises_code("plan.unknown_device", "nonsense", "t4"):
        find_machine("nonsense")
    with raises_code("plan.unknown_device", "v100s"):
        find_machine("v100ss")
    with raises_code("plan.unknown_device", "a100-40gb, a100-80gb"):
        find_machine("A100")


def test_a_rank_on_a_cpu_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cpu = replace(find_machine("t4"), is_cuda=False, constants=None, num_cores=8.0)
    assert [cpu.threads_of_rank(ranks) for ranks in (1, 3, 16)] == [8, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cpu.threads_of_rank(1) == 1
    assert find_machine("t4").threads_of_rank(1) == 1


def test_the_machine_of_a_recorded_node() -> None:
    node = {"gpus": [], "cpu_model": "EPYC", "num_usable_cores": 4.0, "ram_bytes": 64 * GIB, "ram_limit_bytes": 8 * GIB}
    cpu = machine_of_node(node)
    assert (cpu.name, cpu.is_cuda, cpu.memory_bytes, cpu.num_cores, cpu.constants) == ("EPYC", False, 8 * GIB, 4, None)
    gpu = machine_of_node({**node, "gpus": [{"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 * GIB}]})
    assert gpu.memory_bytes == int(39.50 * GIB)
    assert gpu.kind == find_machine("a100-40gb").kind == "a100-40gb"
    assert find_machine("t4").kind == "t4"
    assert cpu.kind == machine_of_node({**node, "ram_bytes": GIB}).kind == "EPYC (4 cores)"
    assert machine_of_node({**node, "cpu_model": "Xeon"}).kind == "Xeon (4 cores)"
    assert machine_of_node({**node, "num_usable_cores": 8.0}).kind == "EPYC (8 cores)"


def test_no_constants_without_memory_bandwidth() -> None:
    device = find_machine("t4").device
    assert device is not None
    assert assumed_constants(replace(device, memory_bytes_per_s=None)) is None
