"""Evaluates and saves between steps: evaluations find the best model, checkpoints make the run resumable."""

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import torch

from paratune import checkpoint
from paratune.batch import Batch, BatchModel
from paratune.config.sections import Config
from paratune.console import Display
from paratune.engine.evaluate import Evaluation, evaluate
from paratune.engine.loop import Progress, Reason
from paratune.engine.recorder import Recorder
from paratune.engine.stop import StopRequest
from paratune.errors import CheckpointError, coded
from paratune.metrics.values import import_scorers, is_better
from paratune.models.locate import saved_weights
from paratune.records import MODEL_FOLDER
from paratune.records.scores import evaluation_text
from paratune.strategies.protocol import Read, ShardedState, State, Strategy, gather_texts, raise_on_all_ranks

log = logging.getLogger(__name__)
Scores = dict[str, float | None]
Weights = tuple[Read, Sequence[str]]
"""A function that reads a tensor by its name, and the names; see `protocol.State.load`."""
T = TypeVar("T")
MODEL_PREFIX = "model/"


@dataclass(kw_only=True, eq=False, repr=False)
class RunKeeper:
    """See `loop.Keeper`."""

    config: Config
    """Its sections `evaluate` and `checkpoint` are used."""
    strategy: Strategy
    model: BatchModel
    device: torch.device
    checkpoints: Path
    split_batches: Callable[[str], tuple[int, Iterator[Batch]]]
    """Returns the number of this rank's batches of a split, and the batches."""
    score: Callable[[str, Evaluation], Scores]
    """Metrics of a split by its name, the loss among them."""
    recorder: Recorder
    stop: StopRequest
    """Checked between batches."""
    display: Display
    num_steps: int
    steps_per_epoch: int
    set_activity: Callable[[str], None] = lambda doing: None
    """Called with the current activity of the process."""
    _last: tuple[int, Evaluation] | None = field(default=None, init=False)

    @property
    def _is_writer(self) -> bool:
        return self.strategy.layout.rank == 0

    def evaluate(self, progress: Progress) -> None:
        self.import_scorers(progress)
        begin = time.perf_counter()
        evaluation, scores = self.evaluate_split("validation")
        self._last = (progress.step, evaluation)
        is_best = self._note_best(progress, scores)
        progress.evaluated_step = progress.step
        seconds = time.perf_counter() - begin
        progress.seconds["evaluate"] += seconds
        event = {
            "step": progress.step,
            "epoch": progress.step / self.steps_per_epoch,
            "split": "validation",
            "scores": scores,
            "num_samples": len(evaluation.outputs),
            "time_s": round(seconds, 4),
            "is_best": is_best,
        }
        self.recorder.add("evaluation", **event)
        if is_best:
            self._save_best(progress)
        if self._is_writer:
            metric = self.config.evaluate.best
            log.info("%s", evaluation_text(event, num_steps=self.num_steps, metric=metric, best=progress.best))

    def import_scorers(self, progress: Progress) -> None:
        """Import the libraries for scores, late, so that training starts sooner; the time counts as start-up."""
        begin = time.perf_counter()
        import_scorers(self.config.task.kind)
        progress.seconds["startup"] += time.perf_counter() - begin

    def evaluate_split(self, split: str) -> tuple[Evaluation, Scores]:
        """Evaluate the current model on a split. Collective."""
        self.set_activity("evaluating")
        num_batches, batches = self.split_batches(split)
        with self.display.bar(f"evaluate {split}", num_batches) as bar:
            evaluation = evaluate(
                self.strategy,
                self.model,
                batches,
                device=self.device,
                should_stop=lambda: self.stop.was_agreed(self.strategy),
                on_batch=bar.update,
            )
        self.stop.settle()  # a signal during the last batch is seen by the next check
        return evaluation, self.score(split, evaluation)

    def evaluation_at(self, step: int) -> Evaluation | None:
        """Return the validation outputs of a step, if they are still in memory."""
        return self._last[1] if self._last is not None and self._last[0] == step else None

    def save(self, progress: Progress, reason: Reason) -> None:
        begin = time.perf_counter()
        before = progress.saved_step
        progress.saved_step = progress.step
        folder = checkpoint.step_folder(self.checkpoints, progress.step)
        try:
            num_bytes = self._write(folder, "", progress)
        except CheckpointError:
            progress.saved_step = before
            raise
        seconds = time.perf_counter() - begin
        progress.seconds["checkpoint"] += seconds
        if self._is_writer:
            checkpoint.prune(self.checkpoints, self.config.checkpoint.keep, step=progress.step)
            self._drop_old_best(progress)
        self.recorder.add(
            "checkpoint", step=progress.step, time_s=round(seconds, 4), num_bytes=num_bytes, reason=reason
        )

    def load_best(self, progress: Progress) -> int:
        """Load the weights of the best evaluation, if `evaluate.best` is set; return the step of the weights.

        If their snapshot is damaged or missing, they are read from the checkpoint of that step, or from the model that
        the run wrote before. If there is none of these, the weights of the last step stay, and the event log records
        it. Collective.

        Raises:
            CheckpointError: The weights exist, but a rank cannot read them.
        """
        if progress.best is None or progress.best["step"] == progress.step:
            return progress.step
        step: int = progress.best["step"]
        reasons: list[str] = []
        for find in (self._snapshot, self._checkpoint, self._written_model):
            weights, reason, is_unreadable = _try_to_find(find, step, progress.step)
            # The maxima of x and of -x over ranks: whether any rank has no weights, and whether no rank has them.
            is_lost = torch.tensor([float(weights is None), -float(weights is None), float(is_unreadable)])
            on_any, on_all, unreadable = self.strategy.reduce(is_lost, "max").tolist()
            # All ranks must take the same source, because loading is collective.
            if unreadable or on_any != -on_all:
                raise CheckpointError(
                    f"the weights of the best evaluation, of step {step}, cannot be read by all ranks "
                    f"({reason or 'this rank can'}); check the file system, then continue with --resume",
                    code="checkpoint.unreadable",
                    step=step,
                )
            if not on_any:
                assert weights is not None
                self.strategy.state().load(*weights)
                return step
            reasons.append(str(reason))
        log.warning(
            "the weights of the best evaluation, of step %d, are lost (%s): the model of step %d is kept",
            step,
            "; ".join(reasons),
            progress.step,
            extra=coded("checkpoint.best_lost", step=step),
        )
        self.recorder.add("best_lost", step=progress.step, best=progress.best, reasons=reasons)
        progress.best = None
        return progress.step

    def _snapshot(self, step: int, _last: int) -> Weights:
        return _weights_in(best_folder(self.checkpoints, step))

    def _checkpoint(self, step: int, _last: int) -> Weights:
        return _weights_in(checkpoint.step_folder(self.checkpoints, step))

    def _written_model(self, step: int, last: int) -> Weights:
        """Return the weights of `model/`, of a run that lost its summary; their names are those of a checkpoint."""
        names = checkpoint.CheckpointReader(checkpoint.step_folder(self.checkpoints, last)).keys(MODEL_PREFIX)
        return saved_weights(self.checkpoints.parent / MODEL_FOLDER, step, names)

    def _note_best(self, progress: Progress, scores: Scores) -> bool:
        metric = self.config.evaluate.best
        if metric is None:
            return False
        value = self._agreed(scores[metric]) if self.config.evaluate.metrics else scores[metric]
        old = progress.best["value"] if progress.best else None
        # Any improvement makes a new best; `min_delta` is only the improvement that resets the patience.
        is_gain = is_better(metric, value, old, self.config.evaluate.min_delta)
        progress.num_without_gain = 0 if is_gain else progress.num_without_gain + 1
        patience = self.config.evaluate.patience
        progress.is_stopped_early = patience is not None and progress.num_without_gain >= patience
        if not is_better(metric, value, old, 0.0):
            return False
        progress.best = {"step": progress.step, "metric": metric, "value": value}
        return True

    def _agreed(self, value: float | None) -> float | None:
        """Return the value of rank 0: an own metric may differ between ranks, and all must keep the same model."""
        number = torch.tensor([math.nan if value is None else value], dtype=torch.float64)
        first = float(self.strategy.reduce(number, "concat")[0])
        return None if math.isnan(first) else first

    def _save_best(self, progress: Progress) -> None:
        begin = time.perf_counter()
        self._write(best_folder(self.checkpoints, progress.step), MODEL_PREFIX, progress)
        if self._is_writer:
            self._drop_old_best(progress)
        progress.seconds["checkpoint"] += time.perf_counter() - begin

    def _write(self, folder: Path, prefix: str, progress: Progress) -> int:
        """Write the tensors under `prefix`; if a writer fails, every rank raises."""
        self.set_activity("writing a checkpoint")
        error: CheckpointError | None = None
        num_bytes, step, state = 0, progress.step, self.strategy.state()
        if self._is_sharded(state, prefix):
            pieces, rank = self._with_heartbeats(state.pieces(prefix)), self.strategy.layout.rank
            return checkpoint.save_sharded(
                folder, pieces, progress.as_dict(), step=step, rank=rank, gather=self._gather
            )
        try:
            tensors = self._with_heartbeats(state.tensors(prefix))
            num_bytes = checkpoint.save(folder, tensors, progress.as_dict(), step=step, is_writer=self._is_writer)
        except CheckpointError as problem:
            error = problem
        # Only rank 0 writes, so only it sees a full disk; without this the other ranks would train on alone.
        message = f"rank 0 could not write {folder}; its log has the reason"
        other = CheckpointError(message, code="output.not_writable", folder=folder)
        raise_on_all_ranks(self.strategy.reduce, error, other)
        return num_bytes

    def _is_sharded(self, state: State, prefix: str) -> TypeGuard[ShardedState]:
        """Return whether each rank writes its own part. Collective."""
        sharded = self.config.checkpoint.sharded
        if sharded is False or not isinstance(state, ShardedState) or not self.strategy.traits.writes_shards:
            return False
        num_bytes = torch.tensor([sum(values.nbytes for _, _, values in state.pieces(prefix))])
        return sharded is True or int(self.strategy.reduce(num_bytes, "sum")) >= checkpoint.SHARDED_FROM_BYTES

    def _gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks. Collective."""
        return [json.loads(text) for text in gather_texts(self.strategy.reduce, json.dumps(value))]

    def _with_heartbeats(self, tensors: Iterable[T]) -> Iterator[T]:
        """Yield the same items; each one is a sign of progress for the hang watchdog."""
        for tensor in tensors:
            self.set_activity("writing a checkpoint")
            yield tensor

    def _drop_old_best(self, progress: Progress) -> None:
        """Delete snapshots of best models that neither this run nor a checkpoint to resume from refers to."""
        wanted = {progress.best["step"]} if progress.best else set()
        for folder in checkpoint.list_checkpoints(self.checkpoints):
            best = checkpoint.read_progress(folder).get("best")
            step = best.get("step") if isinstance(best, dict) else None
            if isinstance(step, int):  # in a damaged checkpoint it may be anything
                wanted.add(step)
        for folder in self.checkpoints.glob("best_*"):
            number = folder.name.removeprefix("best_")
            if not number.isdigit() or int(number) not in wanted:
                shutil.rmtree(folder, ignore_errors=True)


def _try_to_find(find: Callable[[int, int], Weights], step: int, last: int) -> tuple[Weights | None, str | None, bool]:
    """Return weights, or the reason why there are none, and whether they may exist; raise nothing."""
    try:
        return find(step, last), None, False
    except checkpoint.UnreadableError as error:
        return None, str(error), True
    except CheckpointError as error:
        return None, str(error), False
    except Exception as error:  # the other ranks wait for the result of this rank
        return None, f"{type(error).__name__}: {error}", True


def _weights_in(folder: Path) -> Weights:
    """Return a function that reads the weights of a checkpoint, and their names.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    checkpoint.verify(folder)
    reader = checkpoint.CheckpointReader(folder)
    return reader.read, reader.keys(MODEL_PREFIX)


def best_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"best_{step:06d}"
