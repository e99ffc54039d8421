from pathlib import Path

import numpy as np
import pytest
from fake_run import fake_run
from sklearn.metrics import average_precision_score, roc_auc_score

from paratune.config.metric_names import METRICS
from paratune.metrics.classification import OF_RANKING, choice_scores, classification_scores, multi_label_scores
from paratune.metrics.embeddings import ranking_scores, retrieval_scores, similarity_scores, triplet_scores
from paratune.metrics.entities import COUNTS, TaggedSentences, entity_scores, sentence_counts
from paratune.metrics.regression import ordinal_scores, regression_scores
from paratune.metrics.squad import RawScores, squad_scores
from paratune.records.predictions import NumberScale, predicted_ranks, softmax
from paratune.tasks.masked_lm import masked_lm_scores
from paratune.verdicts.scoring import CannotTell, PredictionRows, score_again

RNG = np.random.default_rng(11)
NUM = 80
NAMES = ["a", "b", "c"]


def classification(num_classes):
    labels = RNG.integers(0, num_classes, NUM)
    logits = RNG.normal(size=(NUM, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    names = [f"class {number}" for number in range(num_classes)]
    columns = {"label": [names[i] for i in labels], "prediction": [names[i] for i in logits.argmax(axis=1)]}
    columns |= {f"score_{number}": shares for number, shares in enumerate(softmax(logits).T)}
    return {"run.task.labels": names}, columns, lambda keep: classification_scores(logits[keep], labels[keep])


def ordinal():
    labels = RNG.integers(0, 3, NUM)
    logits = (labels[:, None] > np.arange(2)) * 3.0 - 1.5 + RNG.normal(size=(NUM, 2))
    columns = {"label": [NAMES[i] for i in labels], "prediction": [NAMES[i] for i in predicted_ranks(logits)]}
    return {"run.task.labels": NAMES}, columns, lambda keep: ordinal_scores(logits[keep], labels[keep])


def joined_names(sets, names, separator):
    return [separator.join(names[at] for at in np.flatnonzero(row)) for row in sets]


def multi_label():
    labels = RNG.integers(0, 2, (NUM, 3))
    logits = RNG.normal(size=(NUM, 3)) + labels
    columns = {
        "label": joined_names(labels, NAMES, "|"),
        "prediction": joined_names(logits >= 0, NAMES, "|"),
    }
    record = {"run.task.labels": NAMES, "run.config.task.separator": "|"}
    return record, columns, lambda keep: multi_label_scores(logits[keep], labels[keep])


def regression():
    targets = np.round(RNG.uniform(1, 5, NUM) * 2) / 2
    predictions = targets + RNG.normal(size=NUM)
    columns = {"label": targets, "prediction": predictions}
    scale = NumberScale(0.5, (1.0, 5.0))
    return {"run.grades": [1, 5, 0.5]}, columns, lambda keep: regression_scores(predictions[keep], targets[keep], scale)


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


def tagged():
    tags = ["O", "B-A", "I-A", "B-B"]
    true = [[tags[i] for i in RNG.integers(0, 4, RNG.integers(1, 9))] for _ in range(NUM)]
    given = [[tag if RNG.random() < 0.7 else "O" for tag in sentence] for sentence in true]
    columns = dict(zip(COUNTS, sentence_counts(TaggedSentences(true, given)).T, strict=True))

    def scores(keep):
        return entity_scores(TaggedSentences([true[i] for i in keep], [given[i] for i in keep]))

    return {}, columns, scores


def multiple_choice():
    logits, labels = RNG.normal(size=(NUM, 4)), RNG.integers(0, 4, NUM)
    columns = {"label": labels, "prediction": logits.argmax(axis=1)}
    return {}, columns, lambda keep: choice_scores(logits[keep], labels[keep])


def embedding(loss):
    cosines, others, numbers = RNG.normal(size=NUM), RNG.normal(size=NUM), RNG.integers(1, 4, NUM)
    labels = numbers % 2 if loss == "contrastive" else numbers.astype(float)
    columns = {"prediction": cosines, "negative": others, "rank": numbers, "label": labels}

    def scores(keep):
        if loss == "multiple_negatives_ranking":
            return retrieval_scores(numbers[keep]) | triplet_scores(cosines[keep], others[keep])
        return (ranking_scores if loss == "contrastive" else similarity_scores)(cosines[keep], labels[keep])

    return {"run.config.task.loss": loss}, columns, scores


CASES = {
    "token_classification": tagged(),
    "classification": classification(3),
    "classification of two": classification(2),
    "classification of many": classification(20),
    "ordinal": ordinal(),
    "multi_label": multi_label(),
    "regression": regression(),
    "qa": qa(),
    "multiple_choice": multiple_choice(),
    "mlm": mlm(),
    "embedding": embedding("cosine_similarity"),
    "embedding of pairs": embedding("multiple_negatives_ranking"),
    "embedding with labels": embedding("contrastive"),
}
NOT_HAD = {"loss", "roc_auc", "average_precision", "best_exact", "best_f1"}


def is_not_had(kind, metric):
    return metric in NOT_HAD and not (kind in ("classification", "embedding") and metric in OF_RANKING)


def test_pseudovalues_of_rankings_with_ties_and_in_clusters():
    """Expected: scikit-learn's scores without a sample, and the sum over a cluster (`by_cluster`)."""
    labels = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    shares = np.array([0.2, 0.8, 0.4, 0.4, 0.4, 0.1, 0.8, 0.9])
    columns = {"label": labels.astype(str), "score_0": 1 - shares, "score_1": shares}
    record = {"run.task.labels": ["0", "1"]}
    clusters = np.array([0, 0, 1, 2, 3, 3, 4, 4])
    for metric, score in (("roc_auc", roc_auc_score), ("average_precision", average_precision_score)):
        whole = score(labels, shares)
        run = run_of("classification", record, {metric: whole})
        values = score_again(run, rows_of(columns), "test", metric).pseudovalues
        for place in range(8):
            without = score(np.delete(labels, place), np.delete(shares, place))
            assert values[place] == pytest.approx(8 * whole - 7 * without)
        clustered = score_again(run, rows_of({**columns, "cluster": clusters}), "test", metric)
        wanted = [whole + (values[clusters == number] - whole).sum() * 5 / 8 for number in range(5)]
        assert clustered.pseudovalues == pytest.approx(wanted)


def test_a_class_with_one_sample_has_no_interval():
    columns = {"label": ["0", "1", "0"], "score_0": [0.8, 0.3, 0.6], "score_1": [0.2, 0.7, 0.4]}
    run = run_of("classification", {"run.task.labels": ["0", "1"]}, {"roc_auc": 1.0})
    with pytest.raises(CannotTell):
        score_again(run, rows_of(columns), "test", "roc_auc")


def run_of(kind, record, recorded):
    values = {
        "run.task.kind": kind,
        **record,
        **{f"summary.scores.test.{key}": value for key, value in recorded.items()},
    }
    return fake_run("r", Path("r"), values)


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
        if is_not_had(kind, metric) or (case == "classification of many" and metric in OF_RANKING):
            continue  # of 20 classes, some have one sample
        if kind == "embedding" and metric not in whole:
            continue  # a metric of another loss
        scored = score_again(run_of(kind, record, whole), rows_of(columns), "test", metric)
        assert scored.score == pytest.approx(whole[metric]), metric
        in_blocks = metric == "spearman" or case == "classification of many"
        for place in some:
            expected = NUM * whole[metric] - (NUM - 1) * without[place][metric]
            at = block_of[place] if in_blocks and metric not in ("accuracy", *OF_RANKING) else place
            assert scored.pseudovalues[at] == pytest.approx(expected, abs=1e-7), metric


@pytest.mark.parametrize("kind", [kind for kind in METRICS if kind != "own"])
def test_what_predictions_do_not_tell_says_so(kind):
    record, columns, scores = CASES[kind]
    for metric in filter(lambda metric: is_not_had(kind, metric), METRICS[kind]):
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
    with pytest.raises(CannotTell, match="column prediction in the predictions of r has rows without a number"):
        score_again(
            run_of("regression", {}, {}), rows_of({"label": [1.0, 2.0], "prediction": [1.0, np.nan]}), "test", "rmse"
        )
    with pytest.raises(CannotTell, match="has no numbers"):
        score_again(
            run_of("regression", {}, {}), rows_of({"label": [1.0, 2.0], "prediction": ["x", "y"]}), "test", "rmse"
        )
