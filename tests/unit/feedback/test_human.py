"""Which essays a person should read."""

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from paratune.feedback import human
from paratune.feedback.human import Scored, choose_signal, make_rule, share_table, signals
from paratune.records.predictions import NumberScale

BANDS = NumberScale(1.0, (0.0, 4.0))


def scored(noise: np.ndarray) -> Scored:
    labels = np.tile(np.arange(5.0), 20)
    return Scored(labels + noise, labels)


def test_agreement_of_a_share_is_the_kappa_with_their_labels():
    rng = np.random.default_rng(0)
    rows = scored(rng.normal(0, 1, 100))
    signal = np.abs(rows.residuals)  # the best signal there is
    table = share_table(rows, signal, BANDS)
    sent = np.argsort(-signal, kind="stable")[:30]
    given = rows.predicted.copy()
    given[sent] = rows.labels[sent]
    rounded = np.floor(np.clip(given, 0, 4) + 0.5)
    line = table[3]
    assert (line.share, line.num_sent) == (0.3, 30)
    assert line.qwk == pytest.approx(cohen_kappa_score(rows.labels, rounded, weights="quadratic"))
    assert line.random is not None
    assert line.random[1] < line.random[0] < line.random[2] < line.qwk
    assert line.is_better
    assert (table[0].num_sent, table[0].random, table[0].is_better) == (0, None, False)


def test_a_signal_without_information_is_not_better_than_chance():
    rng = np.random.default_rng(1)
    table = share_table(scored(rng.normal(0, 1, 100)), rng.permutation(100).astype(float), BANDS)
    assert sum(line.is_better for line in table) <= 1


def test_the_signal_that_follows_the_errors_is_chosen():
    labels = np.arange(50.0) % 5
    predicted = labels + np.where(np.arange(50) % 2, 0.45, 0.0)  # wrong where the prediction is near a border
    name, correlation = choose_signal(Scored(predicted, labels), BANDS, 2.0)
    assert name == "border"
    assert correlation == pytest.approx(1.0)


def test_signals_of_numbers_and_of_classes():
    step = NumberScale(0.5, (0.0, 9.0))
    found = signals(np.asarray([6.0, 6.25, 6.6]), None, step, 6.0)
    assert found["extreme"] == pytest.approx([0, 0.25, 0.6])
    # In steps of 0.5: 12 (on a band), 12.5 (on a border), 13.2.
    assert found["border"] == pytest.approx([0, 0.5, 0.2])
    assert set(signals(np.zeros(2), np.asarray([0.1, 0.6]), NumberScale(1.0), 0.0)) == {"extreme", "probability"}
    assert set(signals(np.zeros(2), None, NumberScale(), 0.0)) == {"extreme"}


def test_the_rule_is_chosen_on_validation_and_reported_on_test(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(human, "NUM_RANDOM", 20)
    rng = np.random.default_rng(2)
    splits = {"validation": scored(rng.normal(0, 1, 100)), "test": scored(rng.normal(0, 1, 100))}
    plain = make_rule(splits, BANDS, BANDS, None)
    assert (plain.share, plain.threshold) == (None, None)
    assert plain.is_known
    wanted = plain.tables["validation"][2].qwk
    rule = make_rule(splits, BANDS, BANDS, wanted)
    assert rule.share is not None
    assert rule.share <= 0.2
    centre = float(np.median(splits["validation"].predicted))
    values = signals(splits["validation"].predicted, None, BANDS, centre)[rule.signal]
    assert (values >= rule.threshold).sum() == round(100 * rule.share)
    assert make_rule(splits, BANDS, BANDS, 0.9999).share is None
    assert make_rule(splits, BANDS, BANDS, 0.01).share == 0.0


def test_a_signal_that_does_not_follow_the_errors_marks_nothing():
    labels = np.tile(np.arange(5.0), 20)
    predicted = labels + np.where(labels == 2, 1.0, 0.0)  # wrong in the middle alone, and never near a border
    rule = make_rule({"validation": Scored(predicted, labels)}, NumberScale(None, (0.0, 4.0)), BANDS, 0.01)
    assert not rule.is_known
    assert not rule.beats_chance
    assert (rule.share, rule.threshold) == (None, None)
