"""Runs that fit a baseline instead of a model: same rows, metrics and record as other runs, but no steps."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paratune import hardware, records
from paratune.config.glue import headline_metrics
from paratune.config.optional_sections import TfidfOptions
from paratune.config.sections import run_path
from paratune.console import log_to_file
from paratune.data.duplicates import write_text_hashes
from paratune.engine.memory import peak_memory
from paratune.engine.stop import StopRequest
from paratune.errors import coded
from paratune.metrics.values import is_better
from paratune.processes.progress import RankProgress, working
from paratune.records.run_folder import Mode, take_folder
from paratune.tasks.baseline import constant_baseline
from paratune.tasks.own_metrics import own_scores
from paratune.tasks.tfidf import FittedTfidf, TfidfFitter, texts_with_pairs
from paratune.trackers.adapters import TrackedRun
from paratune.trackers.session import TrackerSession
from paratune.training.evaluations import sliced_scores
from paratune.training.prepare import Prepared
from paratune.training.record import run_kind, run_record, session_facts

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
Scores = dict[str, float | None]
_TIMES = ("startup_s", "tokenize_s", "train_s", "evaluate_s", "checkpoint_s", "total_s")


@dataclass(frozen=True)
class Chosen:
    """The baseline with the best score on the validation set."""

    fitted: FittedTfidf
    c: float
    metric: str
    candidates: list[dict[str, Any]]
    """For each value of C: c; score on validation, None without a validation set; converged."""


def fit_baseline(
    prepared: Prepared, options: TfidfOptions, mode: Mode, stop: StopRequest, rank_progress: RankProgress, began: float
) -> dict[str, Any]:
    """Fit, evaluate and record a baseline; return the content of summary.json.

    An unfinished baseline is fitted from the start. `began` is `time.perf_counter()` at the start of the command.

    Raises:
        DataError: scikit-learn cannot fit the rows.
        Stopped: A signal came; the record stays unfinished.
    """
    prepared = replace(prepared, device=torch.device("cpu"))
    folder = run_path(prepared.config)
    lock = take_folder(folder, mode)
    try:
        rank_progress.set_run_folder(folder)
        log_to_file(folder, 0)
        session = session_facts(prepared, nodes=[hardware.describe_node(folder)], step=0)
        session["batch"] = {"global_batch_size": None}
        record = run_record(prepared, folder, session=session, model=_model_facts(options, None), plan={})
        records.write_run(folder, record)
        about = TrackedRun(folder.name, folder, 0, {"baseline": options.kind, "estimator": options.estimator})
        with TrackerSession(prepared.config.trackers, about) as trackers:
            startup_s = time.perf_counter() - began - prepared.tokenize_s
            begin = time.perf_counter()
            chosen = choose(prepared, options, stop)
            train_s = time.perf_counter() - begin
            records.write_run(folder, {**record, "model": _model_facts(options, chosen.fitted)})
            begin = time.perf_counter()
            results = _results(prepared, chosen.fitted, folder)
            evaluate_s = time.perf_counter() - begin
            times = (startup_s, prepared.tokenize_s, train_s, evaluate_s, 0.0, time.perf_counter() - began)
            summary = _summary(prepared, folder, chosen, results, dict(zip(_TIMES, times, strict=True)))
            records.write_json(folder / records.SUMMARY_FILE, summary)
            trackers.log_summary(summary)
            return summary
    finally:
        lock.release()


def choose(prepared: Prepared, options: TfidfOptions, stop: StopRequest) -> Chosen:
    """Fit the training rows with each value of C; return the first one with the best score on the validation set.

    The metric is `evaluate.best`, or the first metric of the task. Test rows are not used.

    Raises:
        DataError: scikit-learn cannot fit the rows.
        Stopped: A signal came.
    """
    config, splits = prepared.config, prepared.splits
    train, validation = splits["train"], splits.get("validation")
    assert train.labels is not None
    metric = config.evaluate.best or headline_metrics(config.task)[0]
    with working("learn the words of the training rows"):
        fitter = TfidfFitter(
            options,
            texts_with_pairs(train.samples),
            train.labels,
            num_classes=len(prepared.recipe.names),
            seed=config.run.seed,
        )
    texts = None if validation is None else texts_with_pairs(validation.samples)
    best: tuple[FittedTfidf, float, float | None] | None = None
    candidates = []
    for c in options.inverse_regularization:
        stop.raise_if_came("fitting the baseline")
        fitted = _fit(fitter, c)
        score = None
        if validation is not None and texts is not None:
            score = _scores(prepared, "validation", fitted, fitted.outputs(texts)).get(metric)
        candidates.append({"c": c, "score": score, "converged": fitted.converged})
        if best is None or is_better(metric, score, best[2]):
            best = fitted, c, score
    assert best is not None
    return Chosen(best[0], best[1], metric, candidates)


def _fit(fitter: TfidfFitter, c: float) -> FittedTfidf:
    with working(f"fit the baseline with C = {c:g}"):
        fitted = fitter.fit(c)
    if not fitted.converged:
        log.warning(
            "baseline: %s with C = %g did not converge; its scores are those of the last iteration",
            fitted.name,
            c,
            extra=coded("baseline.not_converged", key="baseline.inverse_regularization", value=c),
        )
    return fitted


def _scores(prepared: Prepared, split: str, fitted: FittedTfidf, outputs: Array) -> Scores:
    """Return the scores of a split, computed like those of a model, and the loss."""
    part = prepared.splits[split]
    assert part.labels is not None
    own = own_scores(prepared.config.evaluate.metrics, prepared.recipe, part, outputs)
    return {**prepared.recipe.scores(part, outputs), **own, "loss": fitted.loss(outputs, part.labels)}


def _results(prepared: Prepared, fitted: FittedTfidf, folder: Path) -> dict[str, Array]:
    """Write the predictions of all splits except the training rows; return the outputs of each split, (N, K)."""
    results = {}
    for name, part in prepared.splits.items():
        if name != "train":
            with working(f"predict {name}"):
                results[name] = fitted.outputs(texts_with_pairs(part.samples))
                prepared.recipe.write_predictions(folder, part, results[name], prepared.tokenizer)
    write_text_hashes(folder / records.TRAIN_TEXTS_FILE, prepared.splits["train"].samples)
    return results


def _model_facts(options: TfidfOptions, fitted: FittedTfidf | None) -> dict[str, Any]:
    """Return the facts of the model for run.json: there is no encoder, and there are no initial weights."""
    size = None if fitted is None else fitted.num_parameters
    return {
        "name": options.kind,
        "architecture": None if fitted is None else fitted.name,
        "num_parameters": size,
        "num_trainable": size,
        "init_fingerprint": None,
    }


def _summary(
    prepared: Prepared, folder: Path, chosen: Chosen, results: Mapping[str, Array], times: Mapping[str, float]
) -> dict[str, Any]:
    """Return the content of summary.json, where all values of steps are None."""
    peak = peak_memory(prepared.device)
    labelled = {name: outputs for name, outputs in results.items() if name in prepared.labelled}
    summary: dict[str, Any] = {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": folder.name,
        "status": "finished",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "kind": run_kind(prepared.config),
        "num_steps": None,
        "num_epochs": None,
        "stop_reason": "completed",
        "world_size": 1,
        "num_interruptions": 0,
        "num_lost_events": 0,
        "time": dict(times),
        "ranks": [{"rank": 0, "peak_memory_bytes": peak, "device": "cpu"}],
        "memory": {"kind": "rss", "largest_bytes": peak, "sum_bytes": peak},
        "best": None,
        "kept_step": None,
        "evaluations": [],
        "fitted": {
            "kind": "tfidf",
            "estimator": chosen.fitted.name,
            "num_features": len(chosen.fitted.vectorizer.vocabulary_),
            "c": chosen.c,
            "chosen_by": {"split": "validation", "metric": chosen.metric},
            "candidates": chosen.candidates,
        },
        "scores": {name: _scores(prepared, name, chosen.fitted, outputs) for name, outputs in labelled.items()},
        "baseline": constant_baseline(prepared.config.task.kind, prepared.recipe, prepared.splits),
    }
    for name, outputs in labelled.items():
        for key, value in prepared.recipe.details(prepared.splits[name], outputs).items():
            summary.setdefault(key, {})[name] = value
    return {**summary, **sliced_scores(prepared, prepared.recipe, folder, results)}
