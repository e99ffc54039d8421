"""Advice before the first step, by arithmetic: 16 bytes a parameter, bubbles."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paratune.config.batch_size import ResolvedBatch
from paratune.config.hints import advice
from paratune.config.traits import TRAITS, Traits, strategy_traits

# BERT-base in fp32 on four GPUs of 80 GiB: 110e6 x 16 bytes = 1.64 GiB.
BERT: dict[str, Any] = {
    "num_parameters": 110_000_000,
    "num_trainable": 110_000_000,
    "bytes_per_value": 4,
    "world_size": 4,
    "device_bytes": 80 * 2**30,
    "device_name": "NVIDIA X",
}
OFFLOADED = replace(TRAITS["zero3"], states_on="cpu")
LARGE = BERT | {"num_parameters": 7_500_000_000, "num_trainable": 7_500_000_000}
"""The model of figure 1 of the ZeRO paper: 120e9 bytes of states, more than there is room for."""


def lines_for(
    traits: Traits | None,
    job: dict[str, Any],
    *,
    share: int = 32,
    num_micro_batches: int = 2,
    per_device: int | None = None,
    num_workers: int = 0,
    **changed: Any,
) -> list[str]:
    assert traits is not None
    config: Any = SimpleNamespace(
        batch=SimpleNamespace(per_device=per_device), data=SimpleNamespace(num_workers=num_workers)
    )
    batch = ResolvedBatch(4 * share, share // num_micro_batches, num_micro_batches)
    return advice(traits, config, batch, **job | changed)


def test_bytes_of_model_states():
    # 16 bytes a parameter; 32 in fp64; of frozen parameters there are only the weights.
    assert "take 1.64 GiB" in lines_for(TRAITS["zero3"], BERT)[0]
    assert "take 3.28 GiB" in lines_for(TRAITS["zero3"], BERT, bytes_per_value=8)[0]
    assert "take 534 MiB" in lines_for(TRAITS["zero3"], BERT, num_trainable=10_000_000)[0]


@pytest.mark.parametrize("kind", ["single", "ddp"])
def test_no_advice_for_strategies_without_shards(kind: str):
    assert lines_for(TRAITS[kind], BERT) == []


@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        ("zero1", "629 MiB"),  # 3/4 of 8 bytes x 110e6
        ("zero2", "944 MiB"),  # 3/4 of 12
        ("zero3", "1.23 GiB"),  # 3/4 of 16
    ],
)
def test_advice_against_sharding_when_memory_is_sufficient(kind: str, saved: str):
    (line,) = lines_for(TRAITS[kind], BERT)
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
    lines = lines_for(TRAITS["ddp"], BERT, num_local_ranks=ranks, num_workers=workers, num_cores=cores)
    assert len(lines) == (expected is not None)
    if expected is not None:
        assert f"data.num_workers: {workers} {expected}" in lines[0]
        most = {16: 3, 2.5: 1, 1: 0}[cores or 0]
        assert f"take turns; set data.num_workers: {most}" in lines[0]


def test_no_sharding_advice_when_memory_is_short_or_unknown():
    assert lines_for(TRAITS["zero3"], LARGE) == []
    assert lines_for(TRAITS["zero3"], BERT, device_bytes=None) == []
    # 4 x 1.76e9 bytes is where the limit lies.
    assert lines_for(TRAITS["zero3"], BERT, device_bytes=4 * 1_760_000_000 - 1) == []
    assert len(lines_for(TRAITS["zero3"], BERT, device_bytes=4 * 1_760_000_000)) == 1


def test_advice_against_sharding_in_one_process():
    (line,) = lines_for(TRAITS["zero2"], BERT, world_size=1)
    assert "strategy.kind: zero2" in line
    assert "gradients and optimizer" in line
    assert "single" in line


def test_advice_against_offload_when_memory_is_sufficient():
    (line,) = lines_for(OFFLOADED, BERT)
    assert "would fit 48 times in the 80 GiB" in line
    assert lines_for(OFFLOADED, LARGE) == []
    assert len(lines_for(OFFLOADED, BERT, world_size=1)) == 2


def test_groups_of_hybrid_sharding_share_less():
    (line,) = lines_for(strategy_traits("hsdp", {"shard_size": 2}), BERT)
    assert "saves at most 839 MiB" in line  # half of 16 bytes x 110e6


def test_advice_about_the_bubble_with_few_micro_batches():
    pipeline = replace(TRAITS["pipeline"], ranks_per_replica=4)
    (line,) = lines_for(pipeline, LARGE, num_micro_batches=4)
    # (4 - 1) / (4 + 4 - 1) = 43%; 16 micro-batches of 2: 3 / 19 = 16%.
    assert "4 micro-batches in 4 stages leave each device idle for (p-1)/(m+p-1) = 43%" in line
    assert "batch.micro_batch_size: 2 makes 16 and leaves 16%" in line
    assert lines_for(pipeline, LARGE, num_micro_batches=16) == []
    # With the options as a configuration has them.
    interleaved = strategy_traits("pipeline", {"stages": 4, "schedule": "interleaved", "chunks": None})
    assert interleaved is not None
    # Two stages a rank: 3 / (2 x 4 + 3) = 27%, and 3 / 35 = 9%.
    (line,) = lines_for(interleaved, LARGE, num_micro_batches=4)
    assert "idle for (p-1)/(2m+p-1) = 27%" in line
    assert "makes 16 and leaves 9%" in line
    # batch.micro_batch_size is no option beside batch.per_device.
    (line,) = lines_for(pipeline, LARGE, num_micro_batches=4, per_device=8)
    assert line.endswith("; batch.grad_accum_steps: 16 and batch.per_device: 2 makes 16 and leaves 16%")
    # A share of 4 cannot be cut finer.
    (line,) = lines_for(pipeline, LARGE, share=4, num_micro_batches=4)
    assert line.endswith("of forward and backward")
    fits, bubble = lines_for(pipeline, BERT)
    assert "is for models that do not fit" in fits
    assert "2 micro-batches in 4 stages" in bubble
    assert "= 60%" in bubble
