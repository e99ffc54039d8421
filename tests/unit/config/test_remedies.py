"""What to change after memory ran out: ordered by bytes that are worked out here."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from paratune.config.batch_size import ResolvedBatch
from paratune.config.hints import remedies
from paratune.config.traits import TRAITS, Traits

GIB = 2**30
USE = {
    "weights_bytes": 1 * GIB,
    "gradients_bytes": 1 * GIB,
    "optimizer_bytes": 2 * GIB,
    "rest_bytes": 60 * GIB,
    "unallocated_bytes": None,
    "others_bytes": 0,
}
SIZES, HALVED = ResolvedBatch(128, 32, 1), ResolvedBatch(128, 16, 4)
SHORT = {"doing": "training", "num_blocks": 12, "world_size": 4, "is_gpu": True}


def remedy_texts(
    traits: Traits,
    *,
    use: dict[str, Any] | None = None,
    smaller: ResolvedBatch | None = HALVED,
    per_device: int | None = None,
    checkpointing: int | None = None,
    sizes: ResolvedBatch = SIZES,
    strategy: Any = None,
    adapter: Any = None,
    **changed: Any,
) -> list[str]:
    config: Any = SimpleNamespace(
        batch=SimpleNamespace(per_device=per_device),
        evaluate=SimpleNamespace(batch_size=64),
        model=SimpleNamespace(adapter=adapter),
        train=SimpleNamespace(activation_checkpointing=checkpointing, freeze_encoder=False),
        strategy=strategy,
    )
    return remedies(USE | (use or {}), config, traits, sizes, smaller, **SHORT | changed)


DDP, ZERO3 = TRAITS["ddp"], replace(TRAITS["zero3"], offload_option=None)
DONE: dict[str, Any] = {"checkpointing": 1, "smaller": None}


def test_the_three_changes_that_save_the_most():
    # Checkpointing 12 blocks keeps 1/12 of 60 GiB; half the micro-batch half of it; zero3 on 4 ranks 1/4 of 4 GiB.
    assert remedy_texts(DDP) == [
        "train.activation_checkpointing: 1 (saves up to 55 GiB)",
        "batch.micro_batch_size: 16 instead of 32 (saves up to 30 GiB)",
        "strategy.kind: zero3 on the 4 processes (saves up to 3 GiB)",
    ]


def test_changes_that_are_made_already_or_impossible_are_left_out():
    assert remedy_texts(ZERO3, **DONE) == []
    assert remedy_texts(TRAITS["zero3"], **DONE) == ["strategy.cpu_offload: true (saves up to 4 GiB)"]
    assert remedy_texts(TRAITS["zero3"], **DONE, is_gpu=False) == []
    # ZeRO-1 shards the optimizer states already; on a CPU all ranks share one memory.
    assert remedy_texts(TRAITS["zero1"], **DONE) == ["strategy.kind: zero3 on the 4 processes (saves up to 3 GiB)"]
    assert remedy_texts(DDP, **DONE, is_gpu=False) == []
    assert remedy_texts(TRAITS["single"], **DONE, world_size=1) == [
        "strategy.kind: zero3 on 2 GPUs (saves up to 2 GiB)",
        "strategy.kind: zero1 on 2 GPUs (saves up to 1 GiB)",
    ]


def test_gradients_can_be_reduced_in_each_micro_step():
    # 1 GiB of weights on each of 4 ranks: whole gradients have 4 GiB, their shards 1 GiB; in groups of 2 ranks 2 and 1.
    options: dict[str, Any] = {"sizes": HALVED, **DONE}
    plain, reducing = (SimpleNamespace(reduce_each_micro_step=value) for value in (False, True))
    line = "strategy.reduce_each_micro_step: true (saves up to {} GiB)"
    assert remedy_texts(ZERO3, strategy=plain, **options) == [line.format(3)]
    assert remedy_texts(replace(ZERO3, shard_size=2), strategy=plain, **options) == [line.format(1)]
    assert remedy_texts(ZERO3, strategy=reducing, **options) == []
    assert remedy_texts(ZERO3, strategy=plain, **DONE) == [], "one micro-batch"
    assert remedy_texts(ZERO3, strategy=plain, adapter="lora", **options) == [], "few gradients"
    assert remedy_texts(ZERO3, strategy=plain, **options, doing="placing the model") == [], "no gradients yet"


def test_fragments_and_other_processes_count_on_a_gpu():
    assert remedy_texts(DDP, use={"unallocated_bytes": 40 * GIB, "others_bytes": 70 * GIB}) == [
        "end the other processes on this GPU (nvidia-smi) (saves up to 70 GiB)",
        "train.activation_checkpointing: 1 (saves up to 55 GiB)",
        "PYTORCH_ALLOC_CONF=expandable_segments:True in the environment (saves up to 40 GiB)",
    ]


def test_an_evaluation_has_its_own_batch_size():
    assert remedy_texts(DDP, doing="evaluating")[0] == "evaluate.batch_size: 32 instead of 64 (saves up to 30 GiB)"
    assert remedy_texts(DDP, doing="placing the model")[0].startswith("strategy.kind: zero3")


def test_a_smaller_batch_per_device_comes_with_more_accumulation():
    lines = remedy_texts(DDP, per_device=32)
    assert any("batch.per_device: 16 instead of 32 and batch.grad_accum_steps: 4 (saves" in line for line in lines)
    assert not any("grad_accum_steps" in line for line in remedy_texts(DDP))
