"""Device files with measured constants: a written file is read on another machine."""

from dataclasses import replace
from pathlib import Path

import pytest
from raised import raises_code

from paratune.base.units import GIB
from paratune.planning.calibration import write_node_file
from paratune.planning.constants import BoundedConstant, Constants
from paratune.planning.machine import Machine, find_machine, with_measurements

ONE = Constants({"link": BoundedConstant(4.0, 3.0, 5.0, "measured: 2 processes", ((1.0, 2.0), (2.0, 4.0)))})
FOUR = Constants({"network": BoundedConstant(1e9, 9e8, 2e9, 'measured: "x"')})
CPU = Machine("a CPU", None, is_cuda=False, memory_bytes=64 * GIB, constants=None, num_cores=16.0)


def test_written_cpu_node_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    write_node_file(path, CPU, {1: ONE, 4: FOUR})
    assert find_machine(str(path)) == with_measurements(CPU, {1: ONE, 4: FOUR})
    with raises_code("output.not_writable"):
        write_node_file(path, CPU, {1: ONE})


def test_written_gpu_node_keeps_its_sheet_and_measurements(tmp_path: Path) -> None:
    listed = find_machine("a100-40gb")
    link = {1: Constants({"link": BoundedConstant(2e11, 1.9e11, 2.1e11, "measured")})}
    write_node_file(tmp_path / "node.yaml", replace(listed, name="NVIDIA A100"), link)
    node = find_machine(str(tmp_path / "node.yaml"))
    assert node.constants is not None
    assert listed.constants is not None
    assert (node.name, node.memory_bytes, node.is_calibrated) == ("NVIDIA A100", listed.memory_bytes, True)
    assert node.constants["link"].value == 2e11
    assert node.constants["adamw"] == listed.constants["adamw"]


def test_measured_device_that_is_not_listed_has_its_arithmetics(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    rate = '{"value": 3.0e+14, "low": 2.0e+14, "high": 4.0e+14, "source": "measured"}'
    path.write_text(f'memory_gib: 20\ndevices_per_node: 2\ncalibration:\n  "1":\n    product.bf16: {rate}\n')
    node = find_machine(str(path))
    assert node.device is not None
    assert (node.device.peak_flops_per_s("bf16"), node.device.peak_flops_per_s("fp16")) == (3e14, None)
    assert node.devices_per_node == 2


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("cores: 8\n", ("config.required", "memory_gib")),
        ("cores: 8\nmemory_gib: 3\nlink_gb_per_s: 3\n", ("config.no_effect", "link_gb_per_s")),
        ('device: t4\ncalibration: {"1": {speed: {}}}\n', ("plan.figures_damaged", "speed")),
        ('device: t4\ncalibration: {"1": {link: {value: 3}}}\n', ("plan.figures_damaged", "link")),
        ("device: t4\ncalibration: {one: {}}\n", ("plan.figures_damaged", "one")),
        ("device: t4\ncalibration: 3\n", ("config.invalid_value", "calibration", "3")),
    ],
)
def test_problems_of_measured_nodes_are_errors(tmp_path: Path, text: str, refused: tuple[str, ...]) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with raises_code(*refused):
        find_machine(str(tmp_path / "mine.yaml"))
