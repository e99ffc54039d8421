"""Runs that fit a linear model on TF-IDF features of words: same rows, metrics and record as other runs, but no steps.

Dimensions: `N` rows, `V` features, `C` classes, `K` outputs: 1 for a number, C for classes.
"""

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from paratune import hardware, records
from paratune.base.units import utc_now
from paratune.config.glue import headline_metrics
from paratune.config.optional_sections import TfidfOptions
from paratune.config.sections import run_path
from paratune.console import log_to_file
from paratune.data.columns import Samples
from paratune.data.duplicates import write_text_hashes
from paratune.engine.memory import peak_memory
from paratune.engine.stop import StopRequest
from paratune.errors import DataError, coded
from paratune.metrics.values import is_better
from paratune.processes.progress import RankProgress, working
from paratune.records.run_folder import Mode, take_folder
from paratune.tasks.baseline import constant_baseline
from paratune.tasks.own_metrics import own_scores
from paratune.trackers.adapters import TrackedRun
from paratune.trackers.session import TrackerSession
from paratune.training.evaluations import sliced_scores
from paratune.training.prepare import Prepared
from paratune.training.record import run_kind, run_record, session_facts

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
Scores = dict[str, float | None]
_TIMES = ("startup_s", "tokenize_s", "train_s", "evaluate_s", "checkpoint_s", "total_s")
ABSENT: Final = -1e4
"""Output of a class without a training row: its softmax is 0."""
_MAX_ITERATIONS = 10_000


@dataclass(frozen=True)
class FittedTfidf:
    """A fitted baseline."""

    vectorizer: Any
    """Fitted TfidfVectorizer of scikit-learn."""
    estimator: Any
    """Fitted Ridge, LogisticRegression, LinearSVR or LinearSVC of scikit-learn."""
    mean: float | None
    """Mean of the training targets; the estimator learns the difference from it. None for classes."""
    num_classes: int
    """C; 0 for a number."""
    converged: bool
    """Whether the optimization converged before the largest number of iterations."""

    @property
    def name(self) -> str:
        return f"TF-IDF + {type(self.estimator).__name__}"

    @property
    def num_parameters(self) -> int:
        return int(np.size(self.estimator.coef_) + np.size(self.estimator.intercept_))

    def outputs(self, texts: Sequence[str]) -> Array:
        """Return outputs like those of a model, (N, K) float64.

        For a number, the prediction; for classes, log probabilities of logistic regression, or decision values of a
        support vector machine, whose softmax is no probability. A class without a training row has `ABSENT`.
        """
        features = self.vectorizer.transform(texts)
        if self.mean is not None:
            return np.asarray(self.estimator.predict(features) + self.mean, dtype=np.float64)[:, None]
        if hasattr(self.estimator, "predict_log_proba"):
            class_outputs = np.maximum(self.estimator.predict_log_proba(features), ABSENT)
        else:
            class_outputs = np.asarray(self.estimator.decision_function(features))
            if class_outputs.ndim == 1:  # for two classes, only the value of the second
                class_outputs = np.stack([np.zeros_like(class_outputs), class_outputs], axis=1)
        outputs_NC = np.full((len(texts), self.num_classes), ABSENT)
        outputs_NC[:, self.estimator.classes_] = class_outputs
        return outputs_NC

    def loss(self, outputs: Array, labels: Array) -> float | None:
        """Return the mean loss of a split from outputs, (N, K), and targets or class ids, (N,).

        It is the mean squared error, or the cross-entropy of logistic regression; None for a support vector machine,
        which has no probabilities, and where a class does not occur in training.
        """
        if self.mean is not None:
            return float(np.square(outputs[:, 0] - labels.astype(np.float64)).mean())
        own = outputs[np.arange(len(labels)), labels]
        if not hasattr(self.estimator, "predict_log_proba") or (own <= ABSENT).any():
            return None
        return float(-own.mean())


def texts_with_pairs(samples: Samples) -> list[str]:
    """Return the whole text of each row, (N,); the two texts of a pair are joined by a line break."""
    if samples.text_pairs is None:
        return samples.texts
    return [f"{text}\n{pair}" for text, pair in zip(samples.texts, samples.text_pairs, strict=True)]


class TfidfFitter:
    """The features of the training rows, on which estimators are fitted."""

    def __init__(
        self, options: TfidfOptions, texts: Sequence[str], labels: Array, *, num_classes: int, seed: int
    ) -> None:
        """Learn the words of the training rows and their idf.

        Args:
            options: Those of the configuration.
            texts: Training rows, (N,).
            labels: Their float targets or int64 class ids, (N,).
            num_classes: C, or 0 for a number.
            seed: Of the order of rows in support vector machines.

        Raises:
            DataError: No word occurs in enough rows.

        Source: sklearn.feature_extraction.text.TfidfVectorizer, with sublinear term frequencies (1 + log tf).
        """
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._options, self._labels, self._num_classes, self._seed = options, labels, num_classes, seed
        self._vectorizer = TfidfVectorizer(
            ngram_range=(1, options.max_ngram),
            min_df=options.min_rows,
            max_features=options.max_features,
            sublinear_tf=True,
        )
        try:
            self._features = self._vectorizer.fit_transform(texts)
        except ValueError as error:
            raise _fit_error(error) from error

    def fit(self, c: float) -> FittedTfidf:
        """Fit with one value of C.

        Raises:
            DataError: scikit-learn cannot fit the rows, for example where all have one class.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.svm import LinearSVC, LinearSVR

        mean = None if self._num_classes else float(self._labels.mean(dtype=np.float64))
        targets = self._labels if mean is None else self._labels.astype(np.float64) - mean
        if self._options.estimator == "svm":
            kind = LinearSVC if mean is None else LinearSVR
            estimator = kind(C=c, max_iter=_MAX_ITERATIONS, random_state=self._seed)
        elif mean is None:
            estimator = LogisticRegression(C=c, max_iter=_MAX_ITERATIONS)
        else:
            estimator = Ridge(alpha=1 / (2 * c))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            try:
                estimator.fit(self._features, targets)
            except ValueError as error:
                raise _fit_error(error) from error
        converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        fitted = FittedTfidf(self._vectorizer, estimator, mean, self._num_classes, converged)
        if not converged:
            log.warning(
                "baseline: %s with C = %g did not converge; its scores are those of the last iteration",
                fitted.name,
                c,
                extra=coded("baseline.not_converged", key="baseline.inverse_regularization", value=c),
            )
        return fitted


def _fit_error(error: ValueError) -> DataError:
    return DataError(
        f"baseline: scikit-learn cannot fit the training rows: {error}; give more rows, or a lower baseline.min_rows",
        code="baseline.not_fitted",
        key="baseline",
    )


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
        records.write_json(folder / records.RUN_FILE, record)
        about = TrackedRun(folder.name, folder, 0, {"baseline": options.kind, "estimator": options.estimator})
        with TrackerSession(prepared.config.trackers, about) as trackers:
            startup_s = time.perf_counter() - began - prepared.tokenize_s
            begin = time.perf_counter()
            fitted, facts = choose(prepared, options, stop)
            train_s = time.perf_counter() - begin
            records.write_json(folder / records.RUN_FILE, {**record, "model": _model_facts(options, fitted)})
            begin = time.perf_counter()
            results = _results(prepared, fitted, folder)
            evaluate_s = time.perf_counter() - begin
            times = (startup_s, prepared.tokenize_s, train_s, evaluate_s, 0.0, time.perf_counter() - began)
            summary = _summary(prepared, fitted, facts, folder, results, dict(zip(_TIMES, times, strict=True)))
            records.write_json(folder / records.SUMMARY_FILE, summary)
            trackers.log_summary(summary)
            return summary
    finally:
        lock.release()


def choose(prepared: Prepared, options: TfidfOptions, stop: StopRequest) -> tuple[FittedTfidf, dict[str, Any]]:
    """Fit the training rows with each value of C; return the first one with the best score on the validation set, and
    `fitted` of the summary.

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
        with working(f"fit the baseline with C = {c:g}"):
            fitted = fitter.fit(c)
        score = None
        if validation is not None and texts is not None:
            score = _scores(prepared, "validation", fitted, fitted.outputs(texts)).get(metric)
        candidates.append({"c": c, "score": score, "converged": fitted.converged})
        if best is None or is_better(metric, score, best[2]):
            best = fitted, c, score
    assert best is not None
    chosen, c, _ = best
    facts = {
        "kind": "tfidf",
        "estimator": chosen.name,
        "num_features": len(chosen.vectorizer.vocabulary_),
        "c": c,
        "chosen_by": {"split": "validation", "metric": metric},
        "candidates": candidates,
    }
    return chosen, facts


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
    prepared: Prepared, fitted: FittedTfidf, facts: Mapping[str, Any], folder: Path, results: Mapping[str, Array],
    times: Mapping[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Return the content of summary.json, where all values of steps are None."""
    peak = peak_memory(prepared.device)
    labelled = {name: outputs for name, outputs in results.items() if name in prepared.labelled}
    summary: dict[str, Any] = {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": folder.name,
        "status": "finished",
        "finished": utc_now(),
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
        "fitted": facts,
        "scores": {name: _scores(prepared, name, fitted, outputs) for name, outputs in labelled.items()},
        "baseline": constant_baseline(prepared.config.task.kind, prepared.recipe, prepared.splits),
    }
    for name, outputs in labelled.items():
        for key, value in prepared.recipe.details(prepared.splits[name], outputs).items():
            summary.setdefault(key, {})[name] = value
    return {**summary, **sliced_scores(prepared, prepared.recipe, folder, results)}
