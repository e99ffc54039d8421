"""What a run leaves at its end: the kept model, its scores and predictions, and, last, the summary."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paratune import records
from paratune.config.batch_size import ResolvedBatch
from paratune.data.duplicates import write_text_hashes
from paratune.data.loader import TrainBatches
from paratune.engine.evaluate import Evaluation
from paratune.engine.keeper import RunKeeper
from paratune.engine.loop import Progress
from paratune.engine.memory import peak_memory_of
from paratune.engine.recorder import Recorder
from paratune.engine.summary import summarise
from paratune.errors import CheckpointError, DataError
from paratune.hangs.pulse import working
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel
from paratune.strategies.protocol import Strategy
from paratune.tasks.baseline import constant_baseline
from paratune.train.evaluations import SplitEvaluations
from paratune.train.flops import WorkCount, flops_record
from paratune.train.measured import why_no_communication, why_no_profile
from paratune.train.prediction import prediction_record
from paratune.train.prepare import Prepared
from paratune.train.record import device_name, gather_texts, kind_of, num_requeued, num_restarts, task_record
from paratune.train.sliced import sliced_scores

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finish:
    """What one process does when all steps are taken; all its methods are collective."""

    prepared: Prepared
    strategy: Strategy
    folder: Path
    model: TaskModel
    sizes: ResolvedBatch
    batches: TrainBatches
    """Of the training."""
    evaluations: SplitEvaluations
    keeper: RunKeeper
    recorder: Recorder
    num_steps: int
    steps_per_epoch: int
    work: WorkCount | None
    """On rank 0, which writes."""
    noise_reason: str | None
    """Why the noise scale was not measured."""
    begins: Callable[[str], None]
    """Told what is done from now on."""

    def write(self, progress: Progress) -> dict[str, Any]:
        """Write model, predictions and scores, which a probe has not, and, last, the summary, which is returned.

        Raises:
            Interrupted: A signal asks for the end; nothing is written.
        """
        is_probe = self.prepared.config.measure.probe
        results, kept_step = ({}, progress.step) if is_probe else self._evaluated(progress)
        peaks = self._peaks()
        devices = gather_texts(self.strategy, device_name(self.prepared.device))
        if not is_probe:
            self._write_model(results, kept_step)
        summary: dict[str, Any] = {}
        if self.work is not None:
            with working("compute the summary"):
                summary = self._summary(results, progress, peaks)
                summary["flops"] = flops_record(
                    self.work,
                    self.folder,
                    self.batches,
                    tokens_per_s=summary["throughput"]["tokens_per_s"],
                    precision=self.prepared.config.precision,
                    devices=devices,
                    is_masked_lm=self.prepared.config.task.kind == "mlm",
                )
            self.begins("comparing with the plan")
            with working("predict what was measured"):
                summary["prediction"] = prediction_record(self.prepared, self.model, self.sizes)
            records.write_json(self.folder / records.SUMMARY_FILE, summary)
            self._drop_best_snapshots()
        self.strategy.reduce(torch.zeros(1), "max")
        self.strategy.close()
        return summary

    def _evaluated(self, progress: Progress) -> tuple[dict[str, Any], int]:
        """Load the best weights and evaluate them; return the results, and the step that the weights are from."""
        kept_step = self.keeper.load_best(progress)
        if self.prepared.labelled.keys() - {"train"}:
            self.keeper.import_scorers(progress)
        begin = time.perf_counter()
        results = self._final_evaluations(kept_step)
        progress.seconds["evaluate"] += time.perf_counter() - begin
        return results, kept_step

    def _write_model(self, results: Mapping[str, Any], kept_step: int) -> None:
        """Write predictions and the model, which all ranks have weights of."""
        self.begins("writing the model")
        weights = {key.removeprefix("model/"): value for key, value in self.strategy.state().tensors("model/")}
        if self.work is None:
            return
        tokenizer = self.prepared.tokenizer
        try:
            for split, (evaluation, _) in results.items():
                part = self.prepared.splits[split]
                with working(f"write the predictions of {split}"):
                    self.evaluations.recipe.write_predictions(self.folder, part, evaluation.outputs, tokenizer)
            with working(f"write {records.TRAIN_TEXTS_FILE}"):
                write_text_hashes(self.folder / records.TRAIN_TEXTS_FILE, self.prepared.splits["train"].samples)
        except DataError as error:
            raise CheckpointError(
                f"{error}; make room there or make it writable, then continue with --resume", code="run.not_writable"
            ) from error
        save_model(
            self.folder / records.MODEL_FOLDER,
            self.model,
            tokenizer,
            {name: value for name, value in weights.items() if value is not None},
            {**task_record(self.prepared, self.evaluations.recipe.task), "kept_step": kept_step},
        )

    def _final_evaluations(self, kept_step: int) -> dict[str, tuple[Evaluation, dict[str, float | None]]]:
        """Evaluate the kept model, and let its validation set decide what the recipe leaves to it."""
        found: dict[str, Evaluation] = {}
        for split in self.prepared.splits:
            kept = self.keeper.evaluation_at(kept_step) if split == "validation" else None
            if split != "train":
                found[split] = kept if kept is not None else self.keeper.evaluate_split(split)[0]
        self.evaluations.settle(found.get("validation"))
        return {split: (evaluation, self.evaluations.score(split, evaluation)) for split, evaluation in found.items()}

    def _peaks(self) -> list[dict[str, Any]]:
        peak = peak_memory_of(self.prepared.device)
        peaks = self.strategy.reduce(torch.tensor([-1 if peak is None else peak]), "concat").tolist()
        device = str(self.prepared.device.type)
        return [
            {"rank": rank, "peak_memory_bytes": None if value < 0 else value, "device": device}
            for rank, value in enumerate(peaks)
        ]

    def _summary(self, results: Mapping[str, Any], progress: Progress, peaks: Any) -> dict[str, Any]:
        recorder, prepared = self.recorder, self.prepared
        cost_ms = 1000 * recorder.cost_s / recorder.num_steps if recorder.num_steps else None
        summary = summarise(
            self.folder,
            run_id=self.folder.name,
            progress=progress,
            world_size=self.strategy.layout.world_size,
            num_steps=self.num_steps,
            steps_per_epoch=self.steps_per_epoch,
            peaks=peaks,
            memory_kind="cuda_allocated" if self.prepared.device.type == "cuda" else "rss",
            recorder={"cost_ms_per_step": cost_ms},
            noise_reason=self.noise_reason,
            profile_reason=why_no_profile(self.prepared.config.measure),
            communication_reason=why_no_communication(self.prepared.config.measure, self.strategy.layout),
            traits=self.prepared.traits,
            global_batch_size=self.sizes.global_batch_size,
        )
        median = summary["step_ms"]["median"]
        summary["recorder"]["cost_share"] = cost_ms / median if cost_ms is not None and median else None
        summary["scores"] = {split: values for split, (_, values) in results.items() if split in prepared.labelled}
        summary["kind"] = kind_of(self.prepared.config)
        summary["num_requeued"] = num_requeued(self.folder)
        summary["num_restarts"] = num_restarts(self.folder)
        kind, is_probe = prepared.config.task.kind, prepared.config.measure.probe
        summary["baseline"] = None if is_probe else constant_baseline(kind, prepared.recipe, prepared.splits)
        summary["pipeline"]["ideal_bubble_share"] = self.prepared.traits.ideal_bubble_share(self.sizes.grad_accum_steps)
        for split, (evaluation, _) in results.items():
            if split not in prepared.labelled:
                continue
            details = self.evaluations.recipe.details(self.prepared.splits[split], evaluation.outputs)
            for key, value in details.items():
                summary.setdefault(key, {})[split] = value
        return {**summary, **sliced_scores(prepared, self.evaluations.recipe, self.folder, results)}

    def _drop_best_snapshots(self) -> None:
        for folder in (self.folder / records.CHECKPOINTS_FOLDER).glob("best_*"):
            shutil.rmtree(folder, ignore_errors=True)
