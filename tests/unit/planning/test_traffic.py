"""The bytes that the plan takes for a step against those that the ranks of a real one send.

Real ones are recorded by `thread_ranks`, from the strategies themselves. Both sides are counted by the formulas of a
ring, written out here once more.
"""

from collections import Counter
from dataclasses import replace

import pytest
from recorded_training import Record, Training, record
from thread_ranks import Operation
from tiny import tiny_config

from paratune.config import strategy_sections as sections
from paratune.config.sections import Train
from paratune.config.task_sections import ClassificationTask, MaskedLMTask, Task
from paratune.config.traits import strategy_traits
from paratune.planning.kinds import step_transfers
from paratune.planning.profile import Profile, Shape, profile
from paratune.planning.states import PredictionSetup
from paratune.planning.work import Transfer, ring_bytes
from paratune.precision import POLICIES

SECTIONS = {
    "ddp": sections.DDPOptions,
    "zero1": sections.Zero1Options,
    "zero2": sections.Zero2Options,
    "zero3": sections.Zero3Options,
    "hsdp": sections.HSDPOptions,
    "pipeline": sections.PipelineOptions,
}
TRAININGS = [
    Training("ddp", {"bucket_cap_mb": 0.02}, 2),
    Training("ddp", {}, 4, freeze=True),
    Training("zero1", {}, 4, task="mlm"),
    Training("zero1", {}, 2, freeze=True),
    Training("zero2", {}, 4, num_micro_steps=3),
    Training("zero2", {}, 2, precision="bf16"),
    Training("zero3", {}, 4, task="mlm"),
    Training("zero3", {}, 2, freeze=True, num_layers=3),
    Training("hsdp", {"shard_size": 2}, 4),
    *(Training(kind, {"reduce_each_micro_step": True}, 4, num_micro_steps=3) for kind in ("zero2", "zero3")),
    Training("hsdp", {"shard_size": 2, "reduce_each_micro_step": True}, 4, num_micro_steps=3),
    Training("pipeline", {"stages": 2, "schedule": "gpipe"}, 4, num_micro_steps=4),
    Training("pipeline", {"stages": 4}, 4, task="mlm", num_layers=4, num_micro_steps=5),
    Training("pipeline", {"stages": 2, "schedule": "interleaved"}, 2, num_layers=4, num_micro_steps=4),
]


def sent_bytes(transfer: Transfer) -> float:
    """Return what a rank sends in all calls; of broadcasts with different roots, the mean over ranks."""
    return transfer.num_calls * ring_bytes(transfer.collective, transfer.num_bytes, transfer.num_ranks)


def _sent_bytes(operation: Operation) -> float:
    """Return what a rank sends; of a broadcast, whose roots differ, the mean over ranks."""
    num_ranks, num_bytes = len(operation.ranks), operation.num_bytes
    others = num_ranks - 1
    if operation.kind == "all_gather":
        return others * num_bytes  # of its own shard
    factors = {"all_reduce": 2 * others / num_ranks, "send": 1, "recv": 0}
    return num_bytes * factors.get(operation.kind, others / num_ranks)


def _is_counted(part: str, operation: Operation) -> bool:
    """Return whether the plan counts it: no single number, no norms of gradients, no tables of DDP's buckets."""
    (dtype,) = operation.dtypes
    is_norm = part.startswith("update") and operation.kind == "all_reduce"
    is_single = operation.num_bytes == dtype.itemsize
    return operation.kind != "recv" and dtype.is_floating_point and not is_norm and not is_single


def _recorded(training: Training, recorded: Record, rank: int) -> Counter[str]:
    sent: Counter[str] = Counter()
    for part in ("step 1", "update 1"):
        for operation in (each.operation for each in recorded.of_part(part, rank)):
            if _is_counted(part, operation):
                sent[operation.kind] += _sent_bytes(operation)
    return sent


def _setup(training: Training) -> PredictionSetup:
    traits = strategy_traits(training.kind, training.options)
    assert traits is not None
    return PredictionSetup(
        strategy=SECTIONS[training.kind](kind=training.kind, **training.options),
        traits=traits,
        precision=POLICIES[training.precision],
        num_ranks=training.size,
        ranks_per_node=training.size,
        micro_batch_size=1,
        grad_accum_steps=training.num_micro_steps,
    )


def _profile(training: Training, length: int) -> Profile:
    task: Task = MaskedLMTask(kind="mlm")
    if training.task == "classification":
        task = ClassificationTask(kind="classification", labels=["a", "b", "c"])
    return profile(
        tiny_config(num_labels=3, num_layers=training.num_layers),
        task,
        Shape((length,)),
        POLICIES[training.precision],
        on_cuda=False,
        train=Train(freeze_encoder=training.freeze),
        with_division=training.kind == "pipeline",
    )


def _length(recorded: Record) -> int:
    """Return the padded length of the recorded step of a pipeline; other strategies send no hidden states."""
    shapes = [each.operation.shapes[0] for each in recorded.of_part("step 1") if each.operation.kind == "send"]
    return max((shape[1] for shape in shapes if len(shape) == 3), default=5)


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.name)
def test_a_step_sends_the_planned_bytes(training: Training):
    recorded = record(training)
    planned, setup = _profile(training, _length(recorded)), _setup(training)
    for rank in range(training.size):
        transfers: Counter[str] = Counter()
        for transfer in step_transfers(planned, setup, rank):
            transfers[transfer.collective] += sent_bytes(transfer)
        assert _recorded(training, recorded, rank) == pytest.approx(transfers), f"rank {rank}"
        assert transfers


def test_one_rank_sends_nothing():
    training = replace(TRAININGS[0], size=1)
    assert step_transfers(_profile(training, 5), _setup(training)) == []


def test_bytes_of_bert_base_by_hand():
    # Devlin et al.: 109.5 M weights with a head of two classes. ZeRO, section 7: data parallelism sends 2 Psi, ZeRO-3
    # 3 Psi, here times (N - 1) / N and 4 bytes.
    from transformers import AutoConfig

    task = ClassificationTask(kind="classification", labels=["no", "yes"])
    base = profile(AutoConfig.for_model("bert"), task, Shape((8,)), POLICIES["fp32"])
    psi = 4 * 109_483_778
    for kind, times in [("ddp", 2.0), ("zero2", 2.0), ("zero3", 3.0)]:
        setup = _setup(Training(kind, {}, 8, num_micro_steps=1))
        sent = sum(map(sent_bytes, step_transfers(base, setup)))
        assert sent == pytest.approx(times * 7 / 8 * psi, rel=1e-3)
