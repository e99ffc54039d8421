from pathlib import Path

import numpy as np
import pytest
from fake_run import FakeRun

from paratune.config.metric_names import METRICS
from paratune.metrics.classification import classification_scores
from paratune.metrics.masked_lm import masked_lm_scores
from paratune.metrics.multi_label import multi_label_scores
from paratune.metrics.ordinal import ordinal_scores
from paratune.metrics.regression import regression_scores
from paratune.metrics.squad import RawScores, squad_scores
from paratune.records.predictions import joined_names, predicted_ranks, predicted_sets
from paratune.verdicts.rows import CannotTell, PredictionRows
from paratune.verdicts.scoring import score_again

RNG = np.random.default_rng(11)
NUM = 80
NAMES = ["a", "b", "c"]


def classification(num_classes):
    labels = RNG.integers(0, num_classes, NUM)
    logits = RNG.normal(size=(NUM, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    names = [f"class {number}" for number in range(num_classes)]
    columns = {"label": [names[i] for i in labels], "prediction": [names[i] for i in logits.argmax(axis=1)]}
    return {"run.task.labels": names}, columns, lambda keep: classification_scores(logits[keep], labels[keep])


def ordinal():
    labels = RNG.integers(0, 3, NUM)
    logits = (labels[:, None] > np.arange(2)) * 3.0 - 1.5 + RNG.normal(size=(NUM, 2))
    columns = {"label": [NAMES[i] for i in labels], "prediction": [NAMES[i] for i in predicted_ranks(logits)]}
    return {"run.task.labels": NAMES}, columns, lambda keep: ordinal_scores(logits[keep], labels[keep])


def multi_label():
    labels = RNG.integers(0, 2, (NUM, 3))
    logits = RNG.normal(size=(NUM, 3)) + labels
    columns = {
        "label": joined_names(labels, NAMES, "|"),
        "prediction": joined_names(predicted_sets(logits, 0.5), NAMES, "|"),
    }
    record = {"run.task.labels": NAMES, "run.config.task.separator": "|"}
    return record, columns, lambda keep: multi_label_scores(logits[keep], labels[keep])


def regression():
    targets = np.round(RNG.uniform(1, 5, NUM) * 2) / 2
    predictions = targets + RNG.normal(size=NUM)
    columns = {"label": targets, "prediction": predictions}
    return {}, columns, lambda keep: regression_scores(predictions[keep], targets[keep])


def qa():
    has_answer = RNG.random(NUM) < 0.6
    f1 = RNG.random(NUM)
    exact = (f1 > 0.5).astype(float)
    columns = {"label": ["x" if has else "" for has in has_answer], "exact": exact, "f1": f1}

    def scores(keep):
        raw = RawScores(exact[keep], f1[keep], has_answer[keep], np.zeros(len(keep), dtype=bool))
        return squad_scores(raw, None, 0.0)

    return {}, columns, scores


def mlm():
    hidden = RNG.integers(1, 20, NUM)
    found = RNG.integers(0, hidden + 1)
    losses = hidden * RNG.uniform(1, 3, NUM)
    outputs = np.stack([losses, hidden, found], axis=1)
    columns = {"loss_sum": losses, "num_hidden": hidden, "num_found": found}
    return {}, columns, lambda keep: masked_lm_scores(outputs[keep])


CASES = {
    "classification": classification(3),
    "classification of two": classification(2),
    "classification of many": classification(20),
    "ordinal": ordinal(),
    "multi_label": multi_label(),
    "regression": regression(),
    "qa": qa(),
    "mlm": mlm(),
}
NOT_HAD = {"loss", "roc_auc", "average_precision", "best_exact", "best_f1"}


def run_of(kind, record, recorded):
    values = {
        "run.task.kind": kind,
        **record,
        **{f"summary.scores.test.{key}": value for key, value in recorded.items()},
    }
    return FakeRun("r", Path("r"), values)


def rows_of(columns):
    return PredictionRows("r", {name: np.asarray(values) for name, values in columns.items()})


@pytest.mark.parametrize("case", CASES)
def test_scores_and_pseudovalues_are_those_of_the_metrics_without_each_sample(case):
    kind = case.split()[0]
    record, columns, scores = CASES[case]
    everything = np.arange(NUM)
    whole = scores(everything)
    some = (0, 17, NUM - 1)
    without = {place: scores(np.delete(everything, place)) for place in some}
    block_of = np.random.default_rng(0).permutation(NUM)
    for metric in METRICS[kind]:
        if metric in NOT_HAD:
            continue
        scored = score_again(run_of(kind, record, whole), rows_of(columns), "test", metric)
        assert scored.score == pytest.approx(whole[metric]), metric
        in_blocks = metric == "spearman" or case == "classification of many"
        for place in some:
            expected = NUM * whole[metric] - (NUM - 1) * without[place][metric]
            at = block_of[place] if in_blocks and metric != "accuracy" else place
            assert scored.pseudovalues[at] == pytest.approx(expected, abs=1e-7), metric


@pytest.mark.parametrize("kind", METRICS)
def test_what_predictions_do_not_tell_says_so(kind):
    record, columns, scores = CASES[kind]
    for metric in NOT_HAD & set(METRICS[kind]):
        with pytest.raises(CannotTell, match=f"{metric} cannot be computed again"):
            score_again(run_of(kind, record, scores(np.arange(NUM))), rows_of(columns), "test", metric)


def test_predictions_that_do_not_fit_the_record_are_refused():
    record, columns, _ = CASES["classification of two"]
    with pytest.raises(CannotTell, match=r"the predictions of r give accuracy 0\..*, its record 0\.123"):
        score_again(run_of("classification", record, {"accuracy": 0.123}), rows_of(columns), "test", "accuracy")
    with pytest.raises(CannotTell, match="its record none"):
        score_again(run_of("classification", record, {}), rows_of(columns), "test", "accuracy")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": ["class 0"] * (NUM - 1) + ["?"]}, "have a label that is not a class of its task"),
        ({"prediction": None}, "have no column prediction"),
    ],
)
def test_damaged_columns_are_named(change, said):
    record, columns, _ = CASES["classification of two"]
    changed = {name: values for name, values in {**columns, **change}.items() if values is not None}
    with pytest.raises(CannotTell, match=said):
        score_again(run_of("classification", record, {"f1": 1.0}), rows_of(changed), "test", "f1")


def test_numbers_that_are_none_are_named():
    with pytest.raises(CannotTell, match="column prediction in the predictions of r holds no number in some rows"):
        score_again(
            run_of("regression", {}, {}), rows_of({"label": [1.0, 2.0], "prediction": [1.0, np.nan]}), "test", "rmse"
        )
    with pytest.raises(CannotTell, match="holds no numbers"):
        score_again(
            run_of("regression", {}, {}), rows_of({"label": [1.0, 2.0], "prediction": ["x", "y"]}), "test", "rmse"
        )
