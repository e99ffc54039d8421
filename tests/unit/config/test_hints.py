"""Advice before the first step, by arithmetic: 16 bytes a parameter, bubbles."""

from dataclasses import replace

import pytest

from paratune.config.hints import JobSizes, advice
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
)
OFFLOADED = replace(TRAITS["zero3"], states_on="cpu")
LARGE = replace(BERT, num_parameters=7_500_000_000, num_trainable=7_500_000_000)
"""The model of figure 1 of the ZeRO paper: 120e9 bytes of states, more than there is room for."""


def test_bytes_of_model_states():
    assert BERT.states_bytes() == 16 * 110_000_000
    assert LARGE.states_bytes() == 120e9
    assert replace(BERT, bytes_per_value=8).states_bytes() == 32 * 110_000_000
    # Of frozen parameters there are only the weights.
    assert replace(BERT, num_trainable=10_000_000).states_bytes() == 4 * 110_000_000 + 12 * 10_000_000


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
        (1, 2, 2.5, "makes 2 worker processes in addition to 1 training processes, and this machine has 2.5 cores"),
        (1, 1, 1, "makes 1 worker processes in addition to 1 training processes, and this machine has 1 cores"),
    ],
)
def test_advice_about_workers_that_share_cores(ranks: int, workers: int, cores: float | None, expected: str | None):
    job = replace(BERT, num_local_ranks=ranks, num_workers=workers, num_cores=cores)
    lines = advice(TRAITS["ddp"], job)
    assert len(lines) == (expected is not None)
    if expected is not None:
        assert f"data.num_workers: {workers} {expected}" in lines[0]
        most = {16: 3, 2.5: 1, 1: 0}[cores or 0]
        assert f"take turns; set data.num_workers: {most}" in lines[0]


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
