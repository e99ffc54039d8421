"""The work of each process in the tests in dist: it runs jobs one after another and writes their results.

A job is plain data. All ranks, and the single process with which they are compared, run the same function.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
import torch.multiprocessing
from safetensors.torch import load_file, save_file
from tiny import tiny_config, tiny_masked_lm, tiny_model
from tiny_data import tiny_choices, tiny_collator, tiny_masking, tiny_pairs, tiny_tags
from tiny_questions import tiny_qa_model, tiny_windows
from transformers import BertForMultipleChoice, BertForTokenClassification, BertModel

from paratune import checkpoint
from paratune.batch import Batch
from paratune.config.optional_sections import Distil
from paratune.config.permission import NamedCode, allow
from paratune.config.sections import BaseKind, LoraOptions, Train
from paratune.config.task_sections import EmbeddingTask
from paratune.config.traits import strategy_traits
from paratune.data.loader import Collate, PackedCollator, TrainBatches, eval_batches
from paratune.engine.evaluate import evaluate
from paratune.engine.optim import OptimizerFactory, seed_step
from paratune.engine.stop import StopRequest
from paratune.models.adapters import add_adapter
from paratune.models.blocks import checkpoint_blocks, compile_blocks
from paratune.models.distillation import distilled, teacher_targets
from paratune.models.embedding import embedding
from paratune.models.objectives import OBJECTIVES, pooled
from paratune.models.packed import enable_packed_batches
from paratune.models.quantized import quantize_base
from paratune.models.task_model import TaskModel, find_blocks, freeze_encoder
from paratune.models.trained_weights import layer_rate_factors
from paratune.precision import POLICIES
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group
from paratune.strategies.protocol import ShardedState, gather_texts

CPU = torch.device("cpu")
SPAWN_LIMIT_S = 1100
Task = Literal[
    "classification", "regression", "mlm", "qa", "token_classification", "multiple_choice", "text_windows", "embedding"
]
NUM_CLASSES = {"classification": 3, "regression": 0, "mlm": 0}
"""Number of classes, as an argument of `tiny_collator`."""
DISTIL = Distil(teacher="none", weight=0.5)


@dataclass(frozen=True)
class Job:
    """One training, which is the same for any number of ranks."""

    name: str
    task: Task = "classification"
    whole_words: bool = False
    distils: bool = False
    """Whether a classification also learns from the outputs of a teacher."""
    strategy: str = "single"
    options: dict[str, Any] = field(default_factory=dict)
    accumulation: int = 1
    """Micro-batches per step and rank; fewer if the rank has fewer samples."""
    num_samples: int = 27
    """With 8 per step: the fourth step has 3 samples; two ranks get 2 and 1."""
    num_steps: int = 10
    """Steps of the whole training, for the learning-rate schedule."""
    until: int | None = None
    """The step after which the job saves and ends; by default the last one."""
    max_grad_norm: float | None = 0.5
    num_evaluated: int = 11
    seed: int = 7
    violation: str = ""
    """An error of VIOLATIONS, which the contract has to detect."""
    save_at: int | None = None
    load_from: str | None = None
    dropout: float = 0.0
    activation_checkpointing: int | None = None
    freeze: bool = False
    """Whether only the head is trained."""
    lora: bool = False
    """Whether only an adapter and the head are trained."""
    quantize_base: BaseKind | None = None
    """As `model.quantize_base`."""
    layer_decay: float = 1.0
    """As `train.layer_decay`."""
    scales_loss: bool = False
    """Whether the loss is scaled as for fp16; the arithmetic is float64 in any case."""
    overflow_at: int | None = None
    """The step in which the gradients of only the last rank overflow."""
    infinite_at: int | None = None
    """The step in which the loss of only the last rank is infinite, and its gradients are finite."""
    packed: bool = False
    """Whether rows are packed if the strategy supports it; a single process always pads them."""
    compiles: bool = False
    """Whether blocks are compiled; token counts of packed batches are then rounded up."""
    leave_out: int | None = None
    """A step that is left out."""


GLOBAL_BATCH_SIZE = 8
GROUP_SIZE = 2
"""Samples of a group; within it, each text is a negative of the other samples."""
VIOLATIONS = ("mean of means", "order", "lost tie", "doubled batch")


def train(job: Job, rank: int, world_size: int, folder: Path) -> None:
    """Run a job and write its results to `folder`: losses and scores of every rank, tensors of the first."""
    allow([NamedCode("strategy.kind", job.strategy)])  # as the command does for the strategy of a configuration
    strategy = strategy_class(job.strategy)(
        device=CPU,
        precision=replace(POLICIES["fp64"], scales_loss=job.scales_loss),
        rank=rank,
        world_size=world_size,
        **job.options,
    )
    model = _model(job).double()
    enable_packed_batches(model)
    if job.freeze:
        freeze_encoder(model)
    if job.lora:
        add_adapter(model.hf, LoraOptions(kind="lora", rank=2))
    if job.quantize_base:
        quantize_base(model.hf, job.quantize_base)
    if job.compiles:
        torch._dynamo.reset()  # graphs of earlier jobs
        torch._dynamo.utils.counters.clear()
        compile_blocks(model)
    if job.activation_checkpointing:
        checkpoint_blocks(find_blocks(model), job.activation_checkpointing)
    # With a first decay rate of 0 the first moment after a step is its gradient, so the states contain gradients.
    settings = Train(learning_rate=2e-3, betas=[0.0, 0.99], warmup_steps=2)
    factory = OptimizerFactory(settings, job.num_steps, layer_rate_factors(model, job.layer_decay))
    strategy.prepare(model, find_blocks(model), factory)
    begin = 0
    if job.load_from:
        reader = saved(folder.parent / job.load_from)
        strategy.state().load(reader.read, reader.keys())
        begin = reader.step
    outcome: dict[str, Any] = {"losses": [], "norms": [], "indices": [], "data_rank": strategy.layout.data_rank}
    batches = _batches(job, strategy)
    for step in range(begin, job.until or job.num_steps):
        if step == job.leave_out:
            continue
        if job.dropout:
            seed_step(job.seed, step, rank)
        micro_batches = _spoil(job, batches.step(step), world_size)
        if step == job.overflow_at and rank == world_size - 1:
            # The loss and the scaled loss fit in float64, the square of the scaled loss does not.
            micro_batches = [replace(batch, row_weight=batch.row_weight.double() * 1e300) for batch in micro_batches]
        with _infinite_loss(model) if step == job.infinite_at and rank == world_size - 1 else nullcontext():
            loss = strategy.forward_backward(micro_batches, _no_clock)
        factory.set_learning_rate(step)
        # The gradients of the first step are not clipped, so that they can be compared.
        norm = strategy.optimizer_step(None if step == 0 else job.max_grad_norm)
        outcome["losses"].append(float(strategy.reduce(loss.double(), "sum")))
        outcome["norms"].append(float(norm))
        outcome["indices"].append([int(i) for batch in micro_batches for i in batch.index if i >= 0])
        if step == 0:
            _write_tensors(folder / "first.safetensors", strategy.state().tensors())
        if step + 1 in (job.save_at, job.until):
            save(strategy, folder, step + 1)
    outcome["evaluation"] = _evaluation(job, strategy, model)
    if job.compiles:
        outcome["num_graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    # After the evaluation, as for checkpoints: an evaluation must not change the states.
    _write_tensors(folder / "last.safetensors", strategy.state().tensors())
    (folder / f"rank{rank}.json").write_text(json.dumps(outcome))
    strategy.close()


@contextmanager
def _infinite_loss(model: TaskModel) -> Iterator[None]:
    """Add infinity, a constant, to the loss of a model."""
    model.loss_sum = lambda *given: type(model).loss_sum(model, *given) + math.inf  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.loss_sum


def saved(folder: Path) -> checkpoint.CheckpointReader:
    """Return the sharded checkpoint of a job if it has one: the tests compare its bits with those of the other form."""
    return checkpoint.CheckpointReader(folder / ("sharded" if (folder / "sharded").exists() else "checkpoint"))


def save(strategy: Any, folder: Path, step: int) -> None:
    """Save a checkpoint, and a sharded one if the strategy can, each in files of about two tensors."""
    rank, state = strategy.layout.rank, strategy.state()
    with mock.patch.object(checkpoint, "SHARD_BYTES", 20_000):
        checkpoint.save(folder / "checkpoint", state.tensors(), {}, step=step, is_writer=rank == 0)
        if strategy.traits.writes_shards:

            def gather(value: Any) -> list[Any]:
                return [json.loads(text) for text in gather_texts(strategy.reduce, json.dumps(value))]

            assert isinstance(state, ShardedState)
            checkpoint.save_sharded(folder / "sharded", state.pieces(), {}, step=step, rank=rank, gather=gather)


def _model(job: Job) -> Any:
    if job.task == "mlm":
        return TaskModel(tiny_masked_lm(tied=job.violation != "lost tie", num_layers=4), "mlm")
    if job.task == "qa":
        return TaskModel(tiny_qa_model(tiny_config(dropout=job.dropout, num_layers=4)), "qa")
    if job.task == "text_windows":
        model = tiny_model(num_labels=3, dropout=job.dropout, num_layers=4)
        return TaskModel(model, "classification", objective=pooled(OBJECTIVES["classification"], "mean"))
    if job.task == "embedding":
        torch.manual_seed(0)
        hf = BertModel(tiny_config(dropout=job.dropout, num_layers=4), add_pooling_layer=False)
        return TaskModel(hf, "embedding", objective=embedding(EmbeddingTask(kind="embedding", group_size=GROUP_SIZE)))
    if job.task == "multiple_choice":
        torch.manual_seed(0)
        config = tiny_config(dropout=job.dropout, num_layers=4)
        return TaskModel(BertForMultipleChoice(config), "multiple_choice")
    if job.task == "token_classification":
        torch.manual_seed(0)
        config = tiny_config(3, dropout=job.dropout, num_layers=4)
        return TaskModel(BertForTokenClassification(config), "token_classification")
    model = tiny_model(num_labels=max(1, NUM_CLASSES[job.task]), dropout=job.dropout, num_layers=4)
    objective = distilled(OBJECTIVES[job.task], DISTIL, job.task) if job.distils else None
    return TaskModel(model, job.task, objective=objective)


def _batches(job: Job, strategy: Any) -> TrainBatches:
    data_rank, data_world_size = strategy.layout.data_rank, strategy.layout.data_world_size
    traits = strategy_traits(job.strategy, job.options) or strategy.traits
    num_micro_steps = min(max(job.accumulation, traits.num_micro_batches), GLOBAL_BATCH_SIZE // data_world_size)
    # As if each rank used the global batch size as its own.
    size = GLOBAL_BATCH_SIZE * (2 if job.violation == "doubled batch" else 1)
    return TrainBatches(
        _collator(job, strategy, job.num_samples, seed=0),
        seed=job.seed + (data_world_size if job.violation == "order" else 0),
        global_batch_size=size,
        micro_batch_size=size // data_world_size // num_micro_steps,
        num_micro_steps=num_micro_steps,
        data_rank=data_rank,
        data_world_size=data_world_size,
        equal_shapes=traits.equal_shapes,
        group_size=_group_size(job),
    )


def _group_size(job: Job) -> int:
    return GROUP_SIZE if job.task == "embedding" else 1


def _collator(job: Job, strategy: Any, num_samples: int, *, seed: int) -> Collate:
    padded = _padded(job, num_samples, seed=seed)
    is_packed = job.packed and job.strategy != "single" and not strategy.traits.equal_shapes
    return PackedCollator(padded, rounds=job.compiles) if is_packed else padded


def _padded(job: Job, num_samples: int, *, seed: int) -> Collate:
    if job.task == "mlm":
        if job.whole_words:
            return tiny_masking(num_samples, whole_words=True, seed=seed)
        counts = np.random.default_rng(seed).integers(1, 4, num_samples)  # windows of separate documents
        sequences = tiny_masking(int(counts.sum()), seed=seed)
        return replace(sequences, store=sequences.store.grouped(counts))
    if job.task == "qa":
        return tiny_windows(num_samples, seed=seed)
    if job.task == "text_windows":
        return replace(tiny_choices(num_samples, seed=seed), labels=np.arange(num_samples) % 3, row_size=0)
    if job.task == "multiple_choice":
        return tiny_choices(num_samples, seed=seed)
    if job.task == "embedding":
        return tiny_pairs(num_samples, seed=seed)
    if job.task == "token_classification":
        return tiny_tags(num_samples, seed=seed)
    collator = tiny_collator(num_samples, num_classes=NUM_CLASSES[job.task], seed=seed)
    if not job.distils:
        return collator
    logits = np.random.default_rng(seed).normal(size=(num_samples, NUM_CLASSES[job.task]))
    return replace(collator, teacher=teacher_targets([logits], DISTIL, job.task))


def _spoil(job: Job, batches: list[Batch], world_size: int) -> list[Batch]:
    if job.violation != "mean of means":
        return batches
    # Each rank computes the mean over its own samples or tokens; the ranks average these means.
    own = sum(_num_labelled(job, batch) for batch in batches)
    return [replace(batch, loss_denominator=float(max(1, own) * world_size)) for batch in batches]


def _num_labelled(job: Job, batch: Batch) -> int:
    return int((batch.labels >= 0).sum()) if job.task == "mlm" else batch.num_samples


def _evaluation(job: Job, strategy: Any, model: TaskModel) -> dict[str, Any]:
    layout = strategy.layout
    result = evaluate(
        strategy,
        model,
        eval_batches(
            _collator(job, strategy, job.num_evaluated, seed=1),
            batch_size=2,
            data_rank=layout.data_rank,
            data_world_size=layout.data_world_size,
            group_size=_group_size(job),
        ),
        device=CPU,
        should_stop=lambda: StopRequest().agreed(strategy),
    )
    return {"outputs": result.outputs.tolist(), "loss": result.loss}


def reduce_all(rank: int, world_size: int, folder: Path) -> None:
    """Call the collectives of each strategy with several ranks, and record their results."""
    strategy = strategy_class("ddp")(device=CPU, precision=POLICIES["fp64"], rank=rank, world_size=world_size)
    value = torch.tensor([1.0 + rank, 10.0 * rank], dtype=torch.float64)
    outcome: dict[str, Any] = {op: strategy.reduce(value, op).tolist() for op in ("sum", "max", "min", "concat")}
    outcome["left alone"] = value.tolist()
    rows = torch.arange(6).reshape(3, 2)[: 3 if rank == 0 else 1] + 100 * rank
    outcome["rows"] = strategy.reduce(rows, "concat").tolist()
    outcome["one is empty"] = strategy.reduce(rows if rank == 1 else rows[:0], "concat").tolist()
    stop = StopRequest()
    outcome["no rank stops"] = stop.agreed(strategy)
    stop.signal = "SIGTERM" if rank == 1 else None
    outcome["one stops"] = stop.agreed(strategy)
    outcome["one stops, called twice"] = [stop.was_agreed(strategy), stop.was_agreed(strategy), stop.settle()]
    (folder / f"rank{rank}.json").write_text(json.dumps(outcome))


def _write_tensors(path: Path, tensors: Iterator[tuple[str, torch.Tensor | None]]) -> None:
    whole = {key: value.clone().contiguous() for key, value in tensors if value is not None}
    if whole:
        save_file(whole, path)


class _NoClock:
    def __call__(self, phase: str) -> "_NoClock":
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_no_clock = _NoClock()


@dataclass(frozen=True)
class Meeting:
    """Jobs that the first `world_size` processes run one after another; other processes wait for the next meeting."""

    world_size: int
    jobs: list[Job]


def one_rank(rank: int, folder: str, meetings: Sequence[dict[str, Any]]) -> None:
    """Take part in the meetings as one of several processes that connect through a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    for number, meeting in enumerate(meetings):
        world_size = meeting["world_size"]
        if rank >= world_size:
            continue
        os.environ[RENDEZVOUS_VARIABLE] = str(Path(folder) / f"rendezvous{number}")
        open_process_group(Place(rank, rank, world_size), CPU)
        try:
            for values in meeting["jobs"]:
                _run(Job(**values), rank, world_size, Path(folder))
            if number == 0:
                reduce_all(rank, world_size, Path(folder) / "reduce")
        finally:
            close_process_group()


def _run(job: Job, rank: int, world_size: int, folder: Path) -> None:
    try:
        train(job, rank, world_size, folder / job.name)
    except Exception as error:
        error.add_note(f"in the job: {job.name}")
        raise


def run_meetings(folder: Path, meetings: Sequence[Meeting], *, limit_s: float = SPAWN_LIMIT_S) -> None:
    """Run meetings one after another in the same processes: most of the time of a process is spent on imports."""
    for name in ("reduce", *(job.name for meeting in meetings for job in meeting.jobs)):
        (folder / name).mkdir(parents=True)
    num_processes = max(meeting.world_size for meeting in meetings)
    context = torch.multiprocessing.spawn(
        one_rank, (str(folder), [asdict(meeting) for meeting in meetings]), nprocs=num_processes, join=False
    )
    deadline = time.monotonic() + limit_s
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{num_processes} processes did not finish within {limit_s} s")


@dataclass(frozen=True)
class Outcome:
    """The results that a job wrote."""

    folder: Path

    def rank(self, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"rank{rank}.json").read_text())

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.folder / f"{name}.safetensors")
