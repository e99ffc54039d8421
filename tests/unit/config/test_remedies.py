"""What to change after memory ran out: ordered by bytes that are worked out here."""

from dataclasses import replace

from paratune.config.hints import Shortage, remedies
from paratune.config.traits import TRAITS

GIB = 2**30
SHORT = Shortage(
    doing="training",
    weights_bytes=1 * GIB,
    gradients_bytes=1 * GIB,
    optimizer_bytes=2 * GIB,
    rest_bytes=60 * GIB,
    unallocated_bytes=0,
    others_bytes=0,
    micro_batch_size=32,
    smaller_micro_batch_size=16,
    batch_key="batch.micro_batch_size",
    smaller_grad_accum_steps=None,
    evaluate_batch_size=64,
    num_blocks=12,
    checkpoints_activations=False,
    offload_option=None,
    world_size=4,
    is_gpu=True,
)


def remedy_texts(shortage: Shortage, kind: str = "ddp") -> list[str]:
    return remedies(shortage, TRAITS[kind])


def test_the_three_changes_that_save_the_most():
    # Checkpointing 12 blocks keeps 1/12 of 60 GiB; half the micro-batch half of it; zero3 on 4 ranks 1/4 of 4 GiB.
    assert remedy_texts(SHORT) == [
        "train.activation_checkpointing: 1 (saves up to 55 GiB)",
        "batch.micro_batch_size: 16 instead of 32 (saves up to 30 GiB)",
        "strategy.kind: zero3 on the 4 processes (saves up to 3 GiB)",
    ]


def test_changes_that_are_made_already_or_impossible_are_left_out():
    done = replace(SHORT, checkpoints_activations=True, smaller_micro_batch_size=None)
    assert remedy_texts(done, "zero3") == []
    can_offload = replace(done, offload_option="cpu_offload")
    assert remedy_texts(can_offload, "zero3") == ["strategy.cpu_offload: true (saves up to 4 GiB)"]
    assert remedy_texts(replace(can_offload, is_gpu=False), "zero3") == []
    # ZeRO-1 shards the optimizer states already; on a CPU all ranks share one memory.
    assert remedy_texts(done, "zero1") == ["strategy.kind: zero3 on the 4 processes (saves up to 3 GiB)"]
    assert remedy_texts(replace(done, is_gpu=False)) == []
    alone = replace(done, world_size=1)
    assert remedy_texts(alone, "single") == [
        "strategy.kind: zero3 on 2 GPUs (saves up to 2 GiB)",
        "strategy.kind: zero1 on 2 GPUs (saves up to 1 GiB)",
    ]


def test_fragments_and_other_processes_count_on_a_gpu():
    crowded = replace(SHORT, unallocated_bytes=40 * GIB, others_bytes=70 * GIB)
    assert remedy_texts(crowded) == [
        "end the other processes on this GPU (nvidia-smi) (saves up to 70 GiB)",
        "train.activation_checkpointing: 1 (saves up to 55 GiB)",
        "PYTORCH_ALLOC_CONF=expandable_segments:True in the environment (saves up to 40 GiB)",
    ]


def test_an_evaluation_has_its_own_batch_size():
    assert (
        remedy_texts(replace(SHORT, doing="evaluating"))[0]
        == "evaluate.batch_size: 32 instead of 64 (saves up to 30 GiB)"
    )
    placing = replace(SHORT, doing="placing the model")
    assert remedy_texts(placing)[0].startswith("strategy.kind: zero3")


def test_a_smaller_batch_per_device_comes_with_more_accumulation():
    short = replace(SHORT, batch_key="batch.per_device", smaller_grad_accum_steps=4)
    assert any(
        "batch.per_device: 16 instead of 32 and batch.grad_accum_steps: 4 (saves" in line
        for line in remedy_texts(short)
    )
    assert not any("grad_accum_steps" in line for line in remedy_texts(SHORT))
