"""Which ways there are, and why others are none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raised import raises_code
from tiny import tiny_config

from paratune.config.load import load_config
from paratune.models.task_model import PackedEntry
from paratune.planning.enumerate import (
    ALL,
    ALL_STRATEGIES,
    DEFAULT_STRATEGIES,
    REMEDIES,
    Impossible,
    JobOption,
    PlanRequest,
    list_options,
    remedied,
    usual_precision,
)
from paratune.planning.job import PlannedJob, lengths_of_rows
from paratune.planning.machine import Machine, find_machine

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"
CPU = Machine("a CPU", None, is_cuda=False, memory_bytes=16 * 2**30, constants=None, num_cores=4)


def ways(*overrides: str, machine: Machine | None = None, **asked: Any) -> tuple[list[JobOption], list[Impossible]]:
    loaded = load_config(CONFIG, overrides)
    job = PlannedJob(
        loaded.config, tiny_config(num_layers=4), lengths_of_rows(np.array([8, 30])), 2, PackedEntry(), None
    )
    wanted = {
        "num_ranks": (1, 2, 4),
        "precisions": ("fp32",),
    } | asked
    return list_options(job, loaded, machine or find_machine("a100-40gb"), PlanRequest(**wanted))


def described(options: list[JobOption]) -> list[tuple[str, int, int, int]]:
    return [
        (option.name, option.setup.num_ranks, option.setup.micro_batch_size, option.setup.grad_accum_steps)
        for option in options
    ]


def test_single_is_for_one_device_and_the_others_for_several() -> None:
    options, _ = ways()
    assert described(options)[:3] == [("single", 1, 32, 1), ("ddp", 2, 16, 1), ("ddp", 4, 8, 1)]
    assert list(dict.fromkeys(option.name for option in options)) == list(DEFAULT_STRATEGIES)
    assert all(option.is_open for option in options)


def test_named_strategies_are_tried_with_all_numbers_of_devices() -> None:
    options, impossible = ways(strategies=("single", "ddp"))
    assert ("ddp", 1, 32, 1) in described(options)
    assert [(rejected.strategy, rejected.num_ranks) for rejected in impossible] == [("single", 2), ("single", 4)]
    assert impossible[0].codes == ("strategy.too_many_ranks",)


def test_all_strategies_can_be_named() -> None:
    options, impossible = ways(strategies=(ALL,), num_ranks=(4,))
    named = {option.name for option in options} | {rejected.strategy for rejected in impossible}
    assert named == set(ALL_STRATEGIES) - {"single"}
    assert [rejected.codes for rejected in impossible] == [("strategy.single_group",)]


def test_batch_that_cannot_be_divided_is_impossible() -> None:
    _, impossible = ways("batch.global=30", strategies=("ddp",))
    assert [
        (rejected.num_ranks, "batch.global is 30, which 4 ranks" in rejected.reason) for rejected in impossible
    ] == [(4, True)]
    _, impossible = ways("batch.micro_batch_size=3", strategies=("ddp",), num_ranks=(2,))
    assert "batch.micro_batch_size is 3, which does not divide 16" in impossible[0].reason


def test_equal_options_are_one() -> None:
    options, _ = ways("batch.micro_batch_size=4", strategies=("ddp", "ddp:bucket_cap_mb=25"), num_ranks=(4,))
    assert described(options) == [("ddp", 4, 4, 2)]
    assert not any(option.is_open for option in options)


def test_a_pipeline_needs_layers_and_excludes_packing() -> None:
    _, impossible = ways(strategies=("pipeline:8",), num_ranks=(8,))
    assert "strategy.stages: 8" in impossible[0].reason
    _, impossible = ways("batch.layout=packed", strategies=("pipeline",))
    assert [rejected.num_ranks for rejected in impossible] == [None]
    assert "batch.layout: packed cannot be combined with strategy.kind: pipeline" in impossible[0].reason
    options, _ = ways(strategies=("pipeline",), num_ranks=(2,))
    assert options[0].setup.layout == "padded"


def test_nodes_share_the_devices_evenly() -> None:
    options, impossible = ways(strategies=("ddp", "hsdp"), num_ranks=(2, 3), nodes=(2,))
    assert [(option.name, option.setup.ranks_per_node) for option in options] == [("ddp", 1), ("hsdp", 1)]
    assert [rejected.codes for rejected in impossible] == [("ranks.uneven_nodes",)] * 2


def test_devices_need_as_few_nodes_as_divide_them_evenly() -> None:
    # At most 8 devices per node; ranks on a CPU share one.
    fewest = {1: 1, 8: 1, 12: 2, 9: 3, 11: 11, 128: 16}
    options, _ = ways("batch.global=12672", strategies=("ddp",), num_ranks=tuple(fewest))
    assert {option.setup.num_ranks: option.setup.num_nodes for option in options} == fewest
    options, _ = ways("batch.global=64", strategies=("ddp",), num_ranks=(64,), machine=CPU)
    assert options[0].setup.num_nodes == 1


def test_one_plan_compares_numbers_of_nodes() -> None:
    options, _ = ways(strategies=("ddp",), num_ranks=(8, 16), nodes=(1, 2))
    sizes = [(option.setup.num_ranks, option.setup.num_nodes) for option in options]
    assert sizes == [(8, 1), (8, 2), (16, 1), (16, 2)]
    options, _ = ways(strategies=("ddp",), num_ranks=(8, 16))  # 8 devices per node
    assert [option.setup.num_nodes for option in options] == [1, 2]


@pytest.mark.parametrize(
    ("machine", "precision", "code"),
    [
        ("v100-16gb", "bf16", "precision.needs_newer_gpu"),
        ("t4", "tf32", "precision.needs_newer_gpu"),
        (None, "fp16", "precision.needs_gpu"),
    ],
)
def test_precisions_that_the_device_lacks_are_impossible(machine: str | None, precision: str, code: str) -> None:
    _, impossible = ways(
        machine=CPU if machine is None else find_machine(machine), strategies=("ddp",), precisions=(precision,)
    )
    assert impossible
    assert {rejected.codes for rejected in impossible} == {(code,)}


def test_weights_of_16_bits_are_a_separate_option() -> None:
    names = ("zero3", "zero3:param_dtype=bf16", "deepspeed:2:param_dtype=bf16")
    options, impossible = ways(strategies=names, precisions=("bf16", "fp32"), num_ranks=(4,))
    pass_dtypes = {(option.name, option.setup.precision.name): option.setup.precision.pass_dtype for option in options}
    half = torch.bfloat16
    assert pass_dtypes == {(names[0], "bf16"): None, (names[0], "fp32"): None, **{(n, "bf16"): half for n in names[1:]}}
    assert [rejected.strategy for rejected in impossible] == list(names[1:])
    assert all("strategy.param_dtype: bf16 needs precision: bf16" in rejected.reason for rejected in impossible)


def test_offload_needs_a_device_with_its_own_memory() -> None:
    options, impossible = ways(machine=CPU, strategies=("zero3:cpu_offload=true",), num_ranks=(2,))
    assert (options, impossible[0].codes) == ([], ("strategy.needs_accelerator",))


def test_wrong_strategy_name_is_an_error() -> None:
    with raises_code("strategy.unknown", "zreo3", "zero3"):
        ways(strategies=("zreo3",))
    with raises_code("cli.invalid_value", "stage"):
        ways(strategies=("deepspeed:9",))


def test_the_configurations_own_options_are_kept() -> None:
    options, _ = ways("strategy={kind: zero3, cpu_offload: true}", strategies=("zero3",), num_ranks=(2,))
    assert options[0].setup.traits.states_on == "cpu"


def test_micro_batch_can_be_reduced() -> None:
    options, _ = ways(strategies=("ddp",), num_ranks=(2,))
    assert described([options[0].resized(5)]) == [("ddp", 2, 4, 4)]


@pytest.mark.parametrize(
    ("device", "overrides", "model_type", "planned"),
    [
        ("v100-16gb", (), "bert", "fp16"),
        ("t4", (), "bert", "fp16"),
        ("rtx-2080-ti", (), "bert", "fp16"),
        ("p100-16gb", (), "bert", "fp32"),  # twice as fast in fp16, without matrix units
        ("a100-40gb", (), "bert", "bf16"),
        ("v100-16gb", (), "deberta-v2", "fp32"),  # overflows in fp16
        ("a100-40gb", (), "deberta-v2", "bf16"),
        ("v100-16gb", ("precision=fp32",), "bert", "fp32"),
        ("v100-16gb", ("precision=bf16",), "bert", "fp16"),  # not on this device
        ("v100-16gb", ("precision=tf32",), "bert", "fp16"),
        ("t4", ("precision=fp64",), "bert", "fp64"),
    ],
)
def test_the_usual_precision_is_the_fastest_of_16_bits(
    device: str, overrides: tuple[str, ...], model_type: str, planned: str
) -> None:
    loaded = load_config(CONFIG, overrides)
    precision, why = usual_precision(loaded, find_machine(device), model_type)
    assert precision == planned
    assert bool(why) == (precision != loaded.config.precision or model_type == "deberta-v2")
    assert usual_precision(loaded, CPU, model_type)[0] == loaded.config.precision


def test_remedies_are_settings_that_training_accepts() -> None:
    loaded = load_config(CONFIG, ["batch.micro_batch_size=8"])
    request = PlanRequest(num_ranks=(2,), precisions=("bf16",))
    tried = list(remedied(loaded, request, "bf16"))
    assert [remedy.name for remedy, *_ in tried] == [remedy.name for remedy in REMEDIES]
    assert [remedy.name for remedy, *_ in tried if remedy.changes] == ["16-bit weights", "LoRA", "LoRA on nf4"]
    for remedy, changed, own in tried:
        again = load_config(CONFIG, ["batch.micro_batch_size=8", *remedy.settings]).config
        assert again == changed.config
        job = PlannedJob(again, tiny_config(num_layers=4), lengths_of_rows(np.array([8, 30])), 2, PackedEntry(), None)
        options, _ = list_options(job, changed, find_machine("a100-40gb"), own)
        assert options
        assert all(option.is_open for option in options)


@pytest.mark.parametrize(
    ("overrides", "precision", "left_out"),
    [
        ((), "bf16", {"smaller micro-batches"}),
        ((), "fp32", {"smaller micro-batches", "16-bit weights"}),
        (("model.adapter={kind: lora, rank: 4}",), "bf16", {"smaller micro-batches", "LoRA"}),
        (("batch={per_device: 4}",), "bf16", {"smaller micro-batches"}),
    ],
)
def test_remedies_that_change_nothing_are_left_out(
    overrides: tuple[str, ...], precision: str, left_out: set[str]
) -> None:
    loaded = load_config(CONFIG, overrides)
    names = {remedy.name for remedy, *_ in remedied(loaded, PlanRequest(), precision)}
    assert {remedy.name for remedy in REMEDIES} - names == left_out
