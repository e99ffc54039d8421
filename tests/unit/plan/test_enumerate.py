"""Which ways there are, and why others are none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raised import raises_code
from tiny import tiny_config

from paratune.config.load import load_config
from paratune.config.traits import Traits
from paratune.models.task_model import PackedEntry
from paratune.plan.enumerate import ALL, USUAL, Asked, Impossible, JobOption, enumerate_options, own_name, resized
from paratune.plan.job import PlannedJob
from paratune.plan.lengths import lengths_of_rows
from paratune.plan.machine import Machine, machine_of

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"
CPU = Machine("a CPU", None, is_cuda=False, memory_bytes=16 * 2**30, constants=None, num_cores=4)


def ways(*overrides: str, machine: Machine | None = None, **asked: Any) -> tuple[list[JobOption], list[Impossible]]:
    loaded = load_config(CONFIG, overrides)
    job = PlannedJob(
        loaded.config, tiny_config(num_layers=4), lengths_of_rows(np.array([8, 30])), 2, PackedEntry(), None
    )
    wanted = {"num_ranks": (1, 2, 4), "strategies": USUAL, "precisions": ("fp32",), "are_named": False} | asked
    return enumerate_options(job, loaded, machine or machine_of("a100-40gb"), Asked(**wanted), _no_traits)


def _no_traits(kind: str) -> Traits:
    raise AssertionError(kind)


def described(options: list[JobOption]) -> list[tuple[str, int, int, int]]:
    return [
        (each.name, each.setup.num_ranks, each.setup.micro_batch_size, each.setup.grad_accum_steps) for each in options
    ]


def test_single_is_for_one_device_and_the_others_for_several() -> None:
    options, impossible = ways(strategies=("single", "ddp"))
    assert described(options) == [("single", 1, 32, 1), ("ddp", 2, 16, 1), ("ddp", 4, 8, 1)]
    assert impossible == []
    assert all(each.is_open for each in options)


def test_what_is_named_is_looked_at_everywhere() -> None:
    options, impossible = ways(strategies=("single", "ddp"), are_named=True)
    assert ("ddp", 1, 32, 1) in described(options)
    assert [(each.name, each.num_ranks) for each in impossible] == [("single", 2), ("single", 4)]
    assert impossible[0].codes == ("strategy.too_many_ranks",)


def test_all_there_is_can_be_named() -> None:
    options, impossible = ways(strategies=ALL, num_ranks=(4,))
    named = {each.name for each in options} | {each.name for each in impossible}
    assert named == set(ALL) - {"single"}
    assert [each.codes for each in impossible] == [("strategy.single_group",)]


def test_a_batch_that_cannot_be_shared_is_none() -> None:
    _, impossible = ways("batch.global=30", strategies=("ddp",))
    assert [(each.num_ranks, "batch.global is 30, which 4 ranks" in each.reason) for each in impossible] == [(4, True)]
    _, impossible = ways(strategies=("ddp",), num_ranks=(2,), micro_batch_sizes=(3,))
    assert "batch.micro_batch_size is 3, which does not divide the 16 samples" in impossible[0].reason


def test_micro_batches_that_come_to_the_same_are_one_way() -> None:
    options, _ = ways(strategies=("ddp",), num_ranks=(4,), micro_batch_sizes=(4, 8, 16))
    assert described(options) == [("ddp", 4, 4, 2), ("ddp", 4, 8, 1)]
    assert not any(each.is_open for each in options)


def test_a_pipeline_needs_layers_and_excludes_packing() -> None:
    _, impossible = ways(strategies=("pipeline:8",), num_ranks=(8,))
    assert "cuts the model into 8 parts, and it has 4 blocks" in impossible[0].reason
    _, impossible = ways("batch.layout=packed", strategies=("pipeline",))
    assert [each.num_ranks for each in impossible] == [None]
    assert "batch.layout: packed cannot be combined with strategy.kind: pipeline" in impossible[0].reason
    options, _ = ways(strategies=("pipeline",), num_ranks=(2,))
    assert options[0].setup.layout == "padded"


def test_nodes_share_the_devices_evenly() -> None:
    options, impossible = ways(strategies=("ddp", "hsdp"), num_ranks=(2, 3), num_nodes=2)
    assert [(each.name, each.setup.ranks_per_node) for each in options] == [("ddp", 1), ("hsdp", 1)]
    assert [each.codes for each in impossible] == [("ranks.uneven_nodes",)] * 2


@pytest.mark.parametrize(
    ("machine", "precision", "code"),
    [
        ("v100-16gb", "bf16", "precision.needs_newer_gpu"),
        ("t4", "tf32", "precision.needs_newer_gpu"),
        (None, "fp16", "precision.needs_gpu"),
    ],
)
def test_precisions_that_the_device_has_not_are_none(machine: str | None, precision: str, code: str) -> None:
    _, impossible = ways(
        machine=CPU if machine is None else machine_of(machine), strategies=("ddp",), precisions=(precision,)
    )
    assert impossible
    assert {each.codes for each in impossible} == {(code,)}


def test_weights_of_16_bits_are_a_way_of_their_own_in_one_precision() -> None:
    names = ("zero3", "zero3:param_dtype=bf16", "deepspeed:2:param_dtype=bf16")
    options, impossible = ways(strategies=names, precisions=("bf16", "fp32"), num_ranks=(4,))
    found = {(each.name, each.setup.precision.name): each.setup.precision.pass_dtype for each in options}
    half = torch.bfloat16
    assert found == {(names[0], "bf16"): None, (names[0], "fp32"): None, **{(n, "bf16"): half for n in names[1:]}}
    assert [each.name for each in impossible] == list(names[1:])
    assert all("strategy.param_dtype: bf16 needs precision: bf16" in each.reason for each in impossible)


def test_offload_needs_something_to_take_away_from() -> None:
    options, impossible = ways(machine=CPU, strategies=("zero3:cpu_offload=true",), num_ranks=(2,))
    assert (options, impossible[0].codes) == ([], ("strategy.needs_accelerator",))


def test_a_wrong_name_is_an_error_for_all() -> None:
    with raises_code("strategy.unknown", "zreo3", "zero3"):
        ways(strategies=("zreo3",))
    with raises_code("strategy.candidates", "stage"):
        ways(strategies=("deepspeed:9",))


def test_the_configurations_own_options_are_kept() -> None:
    loaded = load_config(CONFIG, ["strategy={kind: zero3, cpu_offload: true}"])
    assert own_name(loaded) == "zero3"
    options, _ = ways("strategy={kind: zero3, cpu_offload: true}", strategies=("zero3",), num_ranks=(2,))
    assert options[0].setup.traits.states_on == "cpu"


def test_a_step_can_be_cut_smaller() -> None:
    options, _ = ways(strategies=("ddp",), num_ranks=(2,))
    assert described([resized(options[0], 5)]) == [("ddp", 2, 4, 4)]
