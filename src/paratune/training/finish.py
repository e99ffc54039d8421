"""Writes the results of a trained run: the kept model, its scores and predictions, and, last, the summary."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paratune import records
from paratune.checkpoint import CheckpointReader, verify
from paratune.config.batch_size import ResolvedBatch
from paratune.config.feasibility import DEMO_MODEL
from paratune.config.load import load_values
from paratune.data.duplicates import write_text_hashes
from paratune.data.loader import TrainBatches
from paratune.engine.evaluate import Evaluation
from paratune.engine.keeper import MODEL_PREFIX, RunKeeper
from paratune.engine.loop import Loop, Progress
from paratune.engine.summary import rank_peaks, summarise
from paratune.errors import CheckpointError, DataError
from paratune.models.config import token_limit
from paratune.models.load import QUANTIZED_BASE
from paratune.models.locate import base_model_name
from paratune.models.save import save_model
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES
from paratune.processes.progress import working
from paratune.records.neighbours import NEIGHBOURS_VARIABLE, neighbours_of
from paratune.strategies.protocol import gather_texts
from paratune.tasks import make_recipe
from paratune.tasks.baseline import constant_baseline, outcome_record
from paratune.training.evaluations import Scores, SplitEvaluations, sliced_scores
from paratune.training.flops import flops_record
from paratune.training.memory import MemoryGuard
from paratune.training.model_card import write_card
from paratune.training.prediction import prediction_record
from paratune.training.prepare import Prepared
from paratune.training.record import device_name, num_requeued, num_restarts, run_kind, task_record
from paratune.training.values import PlacedRun

log = logging.getLogger(__name__)
Results = Mapping[str, tuple[Evaluation, Scores]]
"""Evaluation and scores of the kept model, by split."""
MakeBatches = Callable[[ResolvedBatch], TrainBatches]
"""Returns the training batches of this rank for given sizes."""


def write_results(
    run: PlacedRun, loop: Loop, keeper: RunKeeper, guard: MemoryGuard, make_batches: MakeBatches, progress: Progress
) -> dict[str, Any]:
    """Write model, predictions and scores (not of a probe), then the summary, which is returned. Collective.

    Raises:
        Interrupted: A signal came during an evaluation; nothing is written.
    """
    prepared, strategy, folder = run.prepared, run.strategy, run.folder
    results: Results
    kept_step: int | None
    results, kept_step = {}, None
    if not prepared.config.measure.probe:
        results, kept_step = _evaluate_best(prepared, keeper, run.evaluations, progress)
    peaks = rank_peaks(prepared.device, strategy.reduce)
    devices = gather_texts(strategy.reduce, device_name(prepared.device))
    baseline = None
    if kept_step is not None:
        guard.activity.set("writing the model")
        if run.is_writer:
            baseline = constant_baseline(prepared.config.task.kind, prepared.recipe, prepared.splits)
        _write_model(run, results, kept_step, baseline)
    summary: dict[str, Any] = {}
    if run.work is not None:
        with working("compute the summary"):
            summary = {**_summary(run, loop, results, progress, peaks, kept_step), "baseline": baseline}
            summary["flops"] = flops_record(
                run.work,
                folder,
                make_batches(run.batch),
                tokens_per_s=summary["throughput"]["tokens_per_s"],
                precision=prepared.config.precision,
                devices=devices,
                is_masked_lm=run.model.head_reads == "labelled",
            )
        guard.activity.set("comparing with the plan")
        with working("predict what was measured"):
            # The guard has the sizes of the last step: smaller than those of the first if memory ran out.
            summary["prediction"] = prediction_record(prepared, run.model, guard.sizes)
        if kept_step is not None:
            with working("write the model card"):
                write_card(folder, records.read_json(folder / records.RUN_FILE), summary)
        records.write_json(folder / records.SUMMARY_FILE, summary)
        for best in (folder / records.CHECKPOINTS_FOLDER).glob("best_*"):
            shutil.rmtree(best, ignore_errors=True)
    # A barrier: no rank closes its strategy before rank 0 has written everything.
    strategy.reduce(torch.zeros(1), "max")
    strategy.close()
    return summary


def _evaluate_best(
    prepared: Prepared, keeper: RunKeeper, evaluations: SplitEvaluations, progress: Progress
) -> tuple[Results, int]:
    """Load the best weights and evaluate them; return the results, and the step of the weights."""
    kept_step = keeper.load_best(progress)
    if prepared.labelled.keys() - {"train"}:
        keeper.import_scorers(progress)
    begin = time.perf_counter()
    by_split: dict[str, Evaluation] = {}
    for split in prepared.splits:
        if split != "train":
            earlier = keeper.evaluation_at(kept_step) if split == "validation" else None
            by_split[split] = earlier if earlier is not None else keeper.evaluate_split(split)[0]
    evaluations.choose_on_validation(by_split.get("validation"))
    results = {split: (evaluation, evaluations.score(split, evaluation)) for split, evaluation in by_split.items()}
    progress.seconds["evaluate"] += time.perf_counter() - begin
    return results, kept_step


def _write_model(run: PlacedRun, results: Results, kept_step: int, baseline: dict[str, Any] | None) -> None:
    """Write predictions and the model on rank 0; every rank takes part in gathering the weights."""
    prepared, folder, recipe = run.prepared, run.folder, run.evaluations.recipe
    dtype = prepared.precision.param_dtype
    weights = {  # frozen ones may be in 16 bits
        key.removeprefix("model/"): value.to(dtype) if value is not None and value.is_floating_point() else value
        for key, value in run.strategy.state().tensors("model/")
    }
    if not run.is_writer:
        return
    try:
        for split, (evaluation, _) in results.items():
            with working(f"write the predictions of {split}"):
                recipe.write_predictions(folder, prepared.splits[split], evaluation.outputs, prepared.tokenizer)
        with working(f"write {records.TRAIN_TEXTS_FILE}"):
            write_text_hashes(folder / records.TRAIN_TEXTS_FILE, prepared.splits["train"].samples)
    except DataError as error:
        raise CheckpointError(
            f"{error}; free some space there or make it writable, then continue with --resume",
            code="output.not_writable",
        ) from error
    options, base_model = prepared.config.model, None
    if options.adapter is not None and options.adapter.save == "adapter":
        base_model = base_model_name(options.name)
    # The demo model has another folder on another machine.
    adapter_record = {"base_model": options.name if options.name == DEMO_MODEL else base_model} if base_model else {}
    if base_model and options.quantize_base is not None:
        adapter_record[QUANTIZED_BASE] = options.quantize_base
    scores = {split: scores for split, (_, scores) in results.items() if split in prepared.labelled}
    outcome = outcome_record(prepared.config.task, scores, baseline, prepared.splits["train"].labels)
    save_model(
        folder / records.MODEL_FOLDER,
        run.model,
        prepared.tokenizer,
        {name: value for name, value in weights.items() if value is not None},
        {**task_record(prepared, recipe.task), **adapter_record, **outcome, "kept_step": kept_step},
        adapter_base_model=base_model,
    )


def _summary(
    run: PlacedRun, loop: Loop, results: Results, progress: Progress, peaks: list[int | None], kept_step: int | None
) -> dict[str, Any]:
    prepared, folder, recipe, recorder = run.prepared, run.folder, run.evaluations.recipe, loop.recorder
    layout = run.strategy.layout
    profile_reason = None if run.config.measure.profile_steps else "no step was profiled; set measure.profile_steps"
    cost_ms = 1000 * recorder.cost_s / recorder.num_steps if recorder.num_steps else None
    summary = summarise(
        folder,
        progress,
        kept_step=kept_step,
        world_size=layout.world_size,
        num_steps=run.num_steps,
        steps_per_epoch=run.steps_per_epoch,
        peaks=peaks,
        device=prepared.device.type,
        cost_ms=cost_ms,
        noise_reason=loop.noise.reason,
        why_not_preconditioned=loop.noise.why_not_preconditioned,
        profile_reason=profile_reason,
        communication_reason="a single process does not communicate" if layout.world_size == 1 else profile_reason,
        traits=prepared.traits,
        global_batch_size=run.batch.global_batch_size,
    )
    summary["scores"] = {split: scores for split, (_, scores) in results.items() if split in prepared.labelled}
    summary["kind"] = run_kind(run.config)
    summary["num_requeued"] = num_requeued(folder)
    summary["num_restarts"] = num_restarts(folder)
    summary["neighbours"] = None
    if log_of_sweep := os.environ.get(NEIGHBOURS_VARIABLE):
        neighbours = neighbours_of(Path(log_of_sweep), folder.name)
        summary["neighbours"] = None if neighbours is None else asdict(neighbours)
    summary["pipeline"]["ideal_bubble_share"] = prepared.traits.ideal_bubble_share(run.batch.grad_accum_steps)
    for split, (evaluation, _) in results.items():
        if split in prepared.labelled:
            for key, value in recipe.details(prepared.splits[split], evaluation.outputs).items():
                summary.setdefault(key, {})[split] = value
    return {**summary, **sliced_scores(prepared, recipe, folder, results)}


def write_checkpoint_model(source: Path, checkpoint: Path, folder: Path) -> None:
    """Write the model of a checkpoint of the run `source` as a model folder, from which another run can start.

    Raises:
        CheckpointError: The checkpoint is damaged or was deleted.
    """
    config = load_values(records.read_json(source / records.RUN_FILE)["config"]).config
    verify(checkpoint)
    reader = CheckpointReader(checkpoint)
    weights = {key.removeprefix(MODEL_PREFIX): reader.read(key) for key in reader.keys(MODEL_PREFIX)}
    tokenizer = load_tokenizer(config.model, config.data.truncation_side)
    model = make_recipe(config.task).load_model(config.model, tokenizer, POLICIES["fp32"], config.run.seed)
    task = {"schema_version": records.SCHEMA_VERSION, "task": config.task.model_dump(mode="json")}
    save_model(folder, model, tokenizer, weights, {**task, "max_length": token_limit(config, tokenizer)})
