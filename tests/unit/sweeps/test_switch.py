"""An axis takes the place of the base's rule of the batch, or of its strategy, and does not stand beside it."""

from pathlib import Path

import pytest

from paratune.sweeps.cell import invalid
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix


def _configs(path: Path, axes: str, batch: str, strategy: str = "") -> list:
    text = path.read_text().replace("batch: {global: 4}", f"batch: {batch}{strategy}")
    path.write_text(text[: text.index("axes:")] + f"axes:\n{axes}")
    matrix = read_matrix(path)
    cells = cells_of(matrix)
    error = invalid(matrix, cells)
    assert error is None, str(error)
    return [cell.config for cell in cells]


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        # global, per_device, micro_batch_size, grad_accum_steps of "total" and of "each"
        ("{global: 8, micro_batch_size: 2}", [(16, None, 2, None), (None, 4, None, None)]),
        ("{per_device: 8, grad_accum_steps: 2}", [(16, None, None, None), (None, 4, None, 2)]),
    ],
)
def test_the_rule_of_the_batch(base: str, expected: list, matrix_file: Path):
    axes = "  rule: {total: {batch.global: 16}, each: {batch: {per_device: 4}}}\n"
    found = [config.batch for config in _configs(matrix_file, axes, base)]
    assert [(b.global_, b.per_device, b.micro_batch_size, b.grad_accum_steps) for b in found] == expected


def test_a_value_may_say_both_parts_of_its_rule(matrix_file: Path):
    axes = "  rule: {a: {batch: {per_device: 4, grad_accum_steps: 3}}, b: {batch: {global: 6, micro_batch_size: 3}}}\n"
    a, b = (config.batch for config in _configs(matrix_file, axes, "{global: 8}"))
    assert (a.global_, a.per_device, a.grad_accum_steps) == (None, 4, 3)
    assert (b.global_, b.micro_batch_size) == (6, 3)


def test_options_of_another_strategy_go_and_those_of_the_same_stay(matrix_file: Path):
    axes = "  strategy: [{kind: zero1}, {kind: ddp, find_unused_parameters: true}]\n"
    strategy = "\n  strategy: {kind: ddp, bucket_cap_mb: 5}"
    zero1, ddp = (config.strategy for config in _configs(matrix_file, axes, "{global: 4}", strategy))
    assert (zero1.kind, zero1.bucket_cap_mb) == ("zero1", 25.0)
    assert (ddp.kind, ddp.bucket_cap_mb, ddp.find_unused_parameters) == ("ddp", 5, True)


def test_a_file_of_an_axis_switches_too(matrix_file: Path):
    Path("each.yaml").write_text("batch: {per_device: 2}\nstrategy: ddp\n")
    Path("base.yaml").write_text("batch: {global: 4}\nstrategy: {kind: pipeline, stages: 2}\n")
    text = matrix_file.read_text().replace("  batch: {global: 4}\n", "  extends: base.yaml\n")
    matrix_file.write_text(text[: text.index("axes:")] + "axes:\n  x: {a: {extends: each.yaml}}\n")
    (cell,) = cells_of(read_matrix(matrix_file))
    assert (cell.config.batch.global_, cell.config.batch.per_device, cell.config.strategy.kind) == (None, 2, "ddp")
