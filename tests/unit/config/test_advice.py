"""Advice before the first step, by arithmetic: 16 bytes a parameter, bytes moved, bubbles."""

from dataclasses import replace
from typing import Any

import pytest

from paratune.config.advice import JobSizes, advice, moved_bytes
from paratune.config.traits import TRAITS, strategy_traits

# BERT-base in fp32 on four GPUs of 80 GiB: 110e6 x 16 bytes = 1.64 GiB.
BERT = JobSizes(
    num_parameters=110_000_000,
    num_trainable=110_000_000,
    bytes_per_value=4,
    world_size=4,
    share=32,
    num_micro_batches=2,
    device_bytes=80 * 2**30,
    device_name="NVIDIA X",
    link_bytes_per_s=None,
)
OFFLOADED = replace(TRAITS["zero3"], states_on="cpu")
LARGE = replace(BERT, num_parameters=7_500_000_000, num_trainable=7_500_000_000)
"""The model of figure 1 of the ZeRO paper: 120e9 bytes of states, more than there is room for."""


def test_bytes_of_model_states():
    assert BERT.states_bytes == 16 * 110_000_000
    assert LARGE.states_bytes == 120e9
    assert replace(BERT, bytes_per_value=8).states_bytes == 32 * 110_000_000
    # Of frozen parameters there are only the weights.
    assert replace(BERT, num_trainable=10_000_000).states_bytes == 4 * 110_000_000 + 12 * 10_000_000


@pytest.mark.parametrize("kind", ["single", "ddp"])
def test_no_advice_for_strategies_without_shards(kind: str):
    assert advice(TRAITS[kind], BERT) == []


@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        ("zero1", "629 MiB"),  # 3/4 of 8 bytes x 110e6
        ("zero2", "944 MiB"),  # 3/4 of 12
        ("zero3", "1.23 GiB"),  # 3/4 of 16
    ],
)
def test_advice_against_sharding_when_memory_is_sufficient(kind: str, saved: str):
    (line,) = advice(TRAITS[kind], BERT)
    assert f"strategy.kind: {kind} saves at most {saved} per rank" in line
    # 80 GiB / 1.76e9 = 48.8
    assert "of 110 M parameters take 1.64 GiB and would fit 48 times in the 80 GiB of NVIDIA X" in line


@pytest.mark.parametrize(
    ("ranks", "workers", "cores", "expected"),
    [
        (4, 3, 16, None),
        (1, 1, None, None),
        (4, 0, 2, None),
        # 4 ranks and 4 x 4 workers are 20 processes; 16 / 4 leaves each rank 4 cores, its own among them.
        (4, 4, 16, "makes 16 worker processes in addition to 4 training processes, and this machine has 16 cores"),
        (1, 2, 2.5, "makes 2 worker processes in addition to 1 training process, and this machine has 2.5 cores"),
        (1, 1, 1, "makes 1 worker process in addition to 1 training process, and this machine has 1 core"),
    ],
)
def test_advice_about_workers_that_share_cores(ranks: int, workers: int, cores: float | None, expected: str | None):
    job = replace(BERT, num_local_ranks=ranks, num_workers=workers, num_cores=cores)
    lines = advice(TRAITS["ddp"], job)
    assert len(lines) == (expected is not None)
    if expected is not None:
        assert f"data.num_workers: {workers} {expected}" in lines[0]
        most = {16: 3, 2.5: 1, 1: 0}[cores or 0]
        assert f"take turns; data.num_workers: {most} " in lines[0]


def test_no_sharding_advice_when_memory_is_short_or_unknown():
    assert advice(TRAITS["zero3"], LARGE) == []
    assert advice(TRAITS["zero3"], replace(BERT, device_bytes=None)) == []
    # 4 x 1.76e9 bytes is where the limit lies.
    assert advice(TRAITS["zero3"], replace(BERT, device_bytes=4 * 1_760_000_000 - 1)) == []
    assert len(advice(TRAITS["zero3"], replace(BERT, device_bytes=4 * 1_760_000_000))) == 1


def test_advice_against_sharding_in_one_process():
    (line,) = advice(TRAITS["zero2"], replace(BERT, world_size=1))
    assert "strategy.kind: zero2" in line
    assert "gradients and optimizer" in line
    assert "single" in line


def test_advice_against_offload_when_memory_is_sufficient():
    (line,) = advice(OFFLOADED, BERT)
    assert "would fit 48 times in the 80 GiB" in line
    assert advice(OFFLOADED, LARGE) == []
    assert len(advice(OFFLOADED, replace(BERT, world_size=1))) == 2


def test_groups_of_hybrid_sharding_share_less():
    (line,) = advice(strategy_traits("hsdp", {"shard_size": 2}), BERT)
    assert "saves at most 839 MiB" in line  # half of 16 bytes x 110e6


def test_advice_about_slow_links_when_their_speed_is_known():
    # ZeRO-3 gathers 30e9 bytes of weights twice in each of 2 micro-batches and reduces 30e9 of gradients once; 3/4 of
    # it leaves a rank: 112.5e9 bytes. Over 450e9 a second (18 NVLinks of 25) that is 0.25 s. DDP: 2 x 30e9 x 3/4.
    (line,) = advice(TRAITS["zero3"], replace(LARGE, link_bytes_per_s=450e9))
    assert "gathers the weights 4 times a step and reduces the gradients once (2 micro-batches): 105 GiB a rank" in line
    assert "0.25 s or more over links of 450 GB/s; ddp moves 41.9 GiB" in line
    assert advice(TRAITS["zero3"], replace(LARGE, link_bytes_per_s=1200e9)) == []  # 0.094 s
    assert advice(TRAITS["zero2"], replace(LARGE, link_bytes_per_s=1e9)) == []


@pytest.mark.parametrize(
    ("kind", "options", "num_bytes"),
    [
        # With Psi = 4 x 7.5e9 bytes, 4 ranks and 2 micro-batches. An all-reduce is 2 Psi x 3/4.
        ("ddp", {}, 2 * 30e9 * 3 / 4),
        ("zero1", {}, 2 * 30e9 * 3 / 4),
        ("zero2", {}, 2 * 30e9 * 3 / 4),
        ("zero3", {}, (4 + 1) * 30e9 * 3 / 4),
        # DeepSpeed reduces with each micro-batch from stage 2 on; stage 2 gathers the updated weights once.
        ("deepspeed", {"stage": 1}, 2 * 30e9 * 3 / 4),
        ("deepspeed", {"stage": 2}, (1 + 2) * 30e9 * 3 / 4),
        ("deepspeed", {"stage": 3}, (4 + 2) * 30e9 * 3 / 4),
        # Half of everything lies on the other rank of the group; an all-reduce of half the gradients between 2 groups.
        ("hsdp", {"shard_size": 2}, (4 + 1) * 30e9 / 2 + 2 * 15e9 / 2),
    ],
)
def test_bytes_moved_follow_the_zero_paper(kind: str, options: dict[str, Any], num_bytes: float):
    traits = strategy_traits(kind, {"stage": 2, **options})
    assert traits is not None
    assert moved_bytes(traits, LARGE) == pytest.approx(num_bytes)


def test_without_accumulation_sharded_weights_cost_half_as_much_again():
    # Section 7 of the paper: 3 Psi against 2 Psi.
    job = replace(LARGE, num_micro_batches=1)
    assert moved_bytes(TRAITS["zero3"], job) / moved_bytes(TRAITS["ddp"], job) == 1.5


def test_frozen_weights_are_gathered_for_forward_and_reduce_nothing():
    # 2 micro-batches of (30e9 + 4e9) bytes, and 4e9 of gradients.
    frozen = replace(LARGE, num_trainable=1_000_000_000)
    assert moved_bytes(TRAITS["zero3"], frozen) == pytest.approx((2 * 34e9 + 4e9) * 3 / 4)


def test_advice_about_reductions_in_each_micro_step_of_deepspeed():
    stage_2, stage_3 = (strategy_traits("deepspeed", {"stage": stage}) for stage in (2, 3))
    assert stage_2 is not None
    assert stage_3 is not None
    (line,) = advice(stage_2, replace(LARGE, link_bytes_per_s=450e9))
    assert "gathers the weights once a step and reduces the gradients 2 times (2 micro-batches): 62.9 GiB" in line
    (line,) = advice(stage_3, replace(LARGE, link_bytes_per_s=450e9))
    assert "4 times a step and reduces the gradients 2 times (2 micro-batches): 126 GiB a rank, 0.30 s or more" in line
    # With one micro-batch a step it moves what ddp does.
    assert advice(stage_2, replace(LARGE, link_bytes_per_s=1e9, num_micro_batches=1)) == []


def test_advice_about_the_bubble_with_few_micro_batches():
    pipeline = replace(TRAITS["pipeline"], ranks_per_replica=4)
    (line,) = advice(pipeline, replace(LARGE, num_micro_batches=4))
    # (4 - 1) / (4 + 4 - 1) = 43%; 16 micro-batches of 2: 3 / 19 = 16%.
    assert "4 micro-batches in 4 stages leave each device idle for (p-1)/(m+p-1) = 43%" in line
    assert "batch.micro_batch_size: 2 makes 16 and leaves 16%" in line
    assert advice(pipeline, replace(LARGE, num_micro_batches=16)) == []
    # With the options as a configuration has them.
    interleaved = strategy_traits("pipeline", {"stages": 4, "schedule": "interleaved", "chunks": None})
    assert interleaved is not None
    # Two stages a rank: 3 / (2 x 4 + 3) = 27%, and 3 / 35 = 9%.
    (line,) = advice(interleaved, replace(LARGE, num_micro_batches=4))
    assert "idle for (p-1)/(2m+p-1) = 27%" in line
    assert "makes 16 and leaves 9%" in line
    # batch.micro_batch_size is no option beside batch.per_device.
    (line,) = advice(pipeline, replace(LARGE, num_micro_batches=4, is_per_device=True))
    assert line.endswith("; batch.grad_accum_steps: 16 and batch.per_device: 2 makes 16 and leaves 16%")
    # A share of 4 cannot be cut finer.
    (line,) = advice(pipeline, replace(LARGE, share=4, num_micro_batches=4))
    assert line.endswith("of forward and backward")
    fits, bubble = advice(pipeline, BERT)
    assert "is for models that do not fit" in fits
    assert "2 micro-batches in 4 stages" in bubble
    assert "= 60%" in bubble
