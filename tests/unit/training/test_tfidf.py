"""The TF-IDF baseline; expected values come from direct calls of scikit-learn."""

from types import SimpleNamespace

import numpy as np
import pytest
from raised import raises_code
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC, LinearSVR

from paratune.config.optional_sections import TfidfOptions
from paratune.training.baseline import ABSENT, TfidfFitter, texts_with_pairs

RNG = np.random.default_rng(7)
WORDS = ["good", "bad", "dull", "fine", "long", "short", "plot", "acting", "scene", "music", "light", "dark"]
TEXTS = [" ".join(RNG.choice(WORDS, size=8)) for _ in range(60)]
TARGETS = np.array([text.count("good") - text.count("bad") + 6.5 for text in TEXTS], dtype=np.float32)
BINARY = (TARGETS > 6.5).astype(np.int64)
THREE = np.array([text.count("music") % 3 for text in TEXTS], dtype=np.int64)
TRAIN, REST = slice(0, 40), slice(40, 60)


def fitter(labels, num_classes, **options):
    received = TfidfOptions(kind="tfidf", **options)
    return TfidfFitter(received, TEXTS[TRAIN], labels[TRAIN], num_classes=num_classes, seed=3)


def sklearn_model(estimator, **options):
    features = TfidfVectorizer(ngram_range=(1, 2), min_df=2, max_features=50_000, sublinear_tf=True, **options)
    return make_pipeline(features, estimator)


def test_ridge_regression_equals_scikit_learn():
    # C = 5 is alpha = 1 / (2 * 5); the mean of the targets is no matter to ridge regression with an intercept.
    model = sklearn_model(Ridge(alpha=0.1)).fit(TEXTS[TRAIN], TARGETS[TRAIN].astype(float))
    fitted = fitter(TARGETS, 0).fit(5.0)
    outputs = fitted.outputs(TEXTS[REST])
    assert outputs.shape == (20, 1)
    assert outputs[:, 0] == pytest.approx(model.predict(TEXTS[REST]), abs=1e-6)
    expected = float(np.mean((model.predict(TEXTS[REST]) - TARGETS[REST]) ** 2))
    assert fitted.loss(outputs, TARGETS[REST]) == pytest.approx(expected, abs=1e-6)
    assert fitted.name == "TF-IDF + Ridge"


def test_a_support_vector_machine_for_numbers_learns_differences_from_the_mean():
    mean = TARGETS[TRAIN].mean(dtype=np.float64)
    model = sklearn_model(LinearSVR(C=10.0, random_state=3, max_iter=10_000)).fit(
        TEXTS[TRAIN], TARGETS[TRAIN].astype(float) - mean
    )
    outputs = fitter(TARGETS, 0, estimator="svm").fit(10.0).outputs(TEXTS[REST])
    assert outputs[:, 0] == pytest.approx(model.predict(TEXTS[REST]) + mean, abs=1e-9)


def test_logistic_regression_has_the_probabilities_of_scikit_learn():
    for labels, num_classes in ((BINARY, 2), (THREE, 3)):
        model = sklearn_model(LogisticRegression(C=10.0, max_iter=10_000)).fit(TEXTS[TRAIN], labels[TRAIN])
        fitted = fitter(labels, num_classes).fit(10.0)
        outputs = fitted.outputs(TEXTS[REST])
        expected = model.predict_proba(TEXTS[REST])
        assert softmax(outputs, axis=1) == pytest.approx(expected, abs=1e-6)
        assert fitted.loss(outputs, labels[REST]) == pytest.approx(log_loss(labels[REST], expected), abs=1e-6)


def test_a_support_vector_machine_for_classes_equals_scikit_learn_and_has_no_loss():
    for labels, num_classes in ((BINARY, 2), (THREE, 3)):
        model = sklearn_model(LinearSVC(C=1.0, random_state=3, max_iter=10_000)).fit(TEXTS[TRAIN], labels[TRAIN])
        fitted = fitter(labels, num_classes, estimator="svm").fit(1.0)
        outputs = fitted.outputs(TEXTS[REST])
        assert outputs.argmax(axis=1).tolist() == model.predict(TEXTS[REST]).tolist()
        assert fitted.loss(outputs, labels[REST]) is None


def test_a_class_without_a_training_row_is_never_predicted():
    labels = BINARY * 2  # classes 0 and 2 of three
    fitted = fitter(labels, 3).fit(1.0)
    outputs = fitted.outputs(TEXTS[REST])
    assert outputs[:, 1].tolist() == [ABSENT] * 20
    assert fitted.loss(outputs, np.ones(20, dtype=np.int64)) is None


def test_rows_that_cannot_be_fitted_are_an_error():
    with raises_code("baseline.not_fitted", "min_rows"):
        fitter(TARGETS, 0, min_rows=41)
    with raises_code("baseline.not_fitted"):
        fitter(np.zeros(60, dtype=np.int64), 2).fit(1.0)


def test_missing_convergence_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("paratune.training.baseline._MAX_ITERATIONS", 1)
    assert not fitter(THREE, 3, estimator="svm").fit(100.0).converged
    assert fitter(TARGETS, 0).fit(1.0).converged


def test_both_texts_of_a_pair_are_used():
    assert texts_with_pairs(SimpleNamespace(texts=["a", "b"], text_pairs=["c", "d"])) == ["a\nc", "b\nd"]
    assert texts_with_pairs(SimpleNamespace(texts=["a", "b"], text_pairs=None)) == ["a", "b"]
