"""Runs that fit a baseline: what the validation set chooses, and the record; expected values are scikit-learn's."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raised import raises_code
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, root_mean_squared_error

from paratune import records
from paratune.config.load import LoadedConfig, load_config
from paratune.config.optional_sections import TfidfOptions, refuse_baseline
from paratune.engine.stop import StopRequest
from paratune.infer.trained import NamedColumns, load_trained
from paratune.records.run_folder import Mode
from paratune.reports import make
from paratune.reports.runs.read import read_runs
from paratune.reports.runs.sameness import compare
from paratune.training.run import train

RNG = np.random.default_rng(11)
WORDS = ["good", "bad", "dull", "fine", "long", "short", "plot", "acting", "scene", "music", "light", "dark"]
ROWS = [" ".join(RNG.choice(WORDS, size=9)) for _ in range(90)]
NUMBERS = [6.0 + text.count("good") - 0.5 * text.count("bad") for text in ROWS]
PARTS = {"train": slice(0, 50), "validation": slice(50, 70), "test": slice(70, 90)}
CS = [0.1, 100.0]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name, rows in PARTS.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "band", "side"])
            writer.writerows(
                [text, number, "high" if number > 6 else "low"]
                for text, number in zip(ROWS[rows], NUMBERS[rows], strict=True)
            )
    files = "".join(f"  {name}: {tmp_path / name}.csv\n" for name in PARTS)
    path = tmp_path / "numbers.yaml"
    path.write_text(
        f"run: {{folder: {tmp_path}/runs}}\n"
        "task: regression\n"
        f"data:\n{files}  columns: {{text: text, label: band}}\n  cache_dir: {tmp_path}/cache\n"
        "model: {name: demo:minilm}\n"
        "train: {epochs: 1}\n"
        "batch: {global: 8}\n"
        f"baseline: {{kind: tfidf, inverse_regularization: {CS}}}\n"
    )
    return path


def fit(loaded: LoadedConfig, mode: Mode = "new") -> dict[str, Any]:
    return train(loaded, mode=mode, stop=StopRequest())


def features():
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, max_features=50_000, sublinear_tf=True)
    matrices = {"train": vectorizer.fit_transform(ROWS[PARTS["train"]])}
    return matrices | {name: vectorizer.transform(ROWS[PARTS[name]]) for name in ("validation", "test")}


def test_a_baseline_has_scores_by_slice(config: Path):
    summary = fit(load_config(config, ["evaluate.slices=[side]"]))
    entries = {entry["value"]: entry for entry in summary["slices"]["test"]["side"]}
    num_high = sum(number > 6 for number in NUMBERS[PARTS["test"]])
    assert {value: entry["num_rows"] for value, entry in entries.items()} == {"high": num_high, "low": 20 - num_high}
    # The mean square over all rows is that of the slices, by their rows.
    squares = sum(entry["num_rows"] * entry["scores"]["mse"]["value"] for entry in entries.values())
    assert squares / 20 == pytest.approx(summary["scores"]["test"]["loss"], abs=1e-5)


def test_the_validation_set_chooses_c_and_scores_equal_scikit_learns(config: Path):
    matrices, targets = features(), {name: np.array(NUMBERS[rows]) for name, rows in PARTS.items()}
    models = [Ridge(alpha=1 / (2 * c)).fit(matrices["train"], targets["train"]) for c in CS]
    errors = [root_mean_squared_error(targets["validation"], model.predict(matrices["validation"])) for model in models]
    best = int(np.argmin(errors))
    summary = fit(load_config(config, []))
    assert summary["fitted"]["c"] == CS[best]
    assert [candidate["score"] for candidate in summary["fitted"]["candidates"]] == pytest.approx(errors, abs=1e-5)
    assert summary["fitted"]["chosen_by"] == {"split": "validation", "metric": "rmse"}
    expected = root_mean_squared_error(targets["test"], models[best].predict(matrices["test"]))
    assert summary["scores"]["test"]["rmse"] == pytest.approx(expected, abs=1e-5)
    assert summary["scores"]["test"]["loss"] == pytest.approx(expected**2, abs=1e-5)
    assert summary["time"]["train_s"] > 0
    assert summary["memory"]["largest_bytes"] > 0


def test_test_rows_do_not_influence_the_choice(config: Path):
    first = fit(load_config(config, ["run.name=first"]))
    lines = (config.parent / "test.csv").read_text().splitlines()
    (config.parent / "test.csv").write_text(
        "\n".join([lines[0], *(f"{line.split(',')[0]},1.0,low" for line in lines[1:])])
    )
    second = fit(load_config(config, ["run.name=second"]))
    assert second["fitted"] == first["fitted"]
    assert second["scores"]["validation"] == first["scores"]["validation"]
    assert second["scores"]["test"] != first["scores"]["test"]


def test_a_baseline_writes_confusion_and_predictions_like_a_model(config: Path):
    path = config.with_name("classes.yaml")
    labels = "task: {kind: classification, labels: [low, high]}"
    path.write_text(config.read_text().replace("task: regression", labels).replace("label: band", "label: side"))
    summary = fit(load_config(path, ["evaluate.best=accuracy"]))
    classes = {name: np.array([int(number > 6) for number in NUMBERS[rows]]) for name, rows in PARTS.items()}
    matrices = features()
    model = LogisticRegression(C=summary["fitted"]["c"], max_iter=10_000).fit(matrices["train"], classes["train"])
    predicted = model.predict(matrices["test"])
    assert summary["scores"]["test"]["accuracy"] == pytest.approx(accuracy_score(classes["test"], predicted))
    assert np.sum(summary["confusion"]["test"]) == 20
    run = config.parent / "runs" / "classes"
    assert {path.name for path in run.iterdir()} >= {"predictions.test.parquet", "predictions.validation.parquet"}


def test_a_baseline_is_not_the_same_experiment_as_a_model(config: Path):
    fit(load_config(config, ["run.name=ridge"]))
    fit(load_config(config, ["run.name=svm", "baseline.estimator=svm"]))
    runs = read_runs([config.parent / "runs" / name for name in ("ridge", "svm")]).runs
    comparison = compare(runs)
    assert comparison.verdict == "different"
    assert [difference.key for difference in comparison.differ] == ["initial_weights"]
    record = json.loads((config.parent / "runs" / "ridge" / records.RUN_FILE).read_text())
    assert record["kind"] == "baseline"
    assert record["model"]["architecture"] == "TF-IDF + Ridge"
    assert record["batch"]["global_batch_size"] is record["model"]["init_fingerprint"] is None


def test_the_page_of_a_baseline_has_no_section_of_steps(config: Path):
    fit(load_config(config, []))
    make([config.parent / "runs" / "numbers"], config.parent / "out")
    page = (config.parent / "out" / "index.html").read_text()
    assert "TF-IDF + Ridge" in page
    assert 'id="quality"' in page
    assert 'id="loss"' not in page
    assert 'id="phases"' not in page


def test_a_baseline_is_not_applied_as_a_model(config: Path):
    fit(load_config(config, []))
    with raises_code("baseline.no_model", target=str(config.parent / "runs" / "numbers")):
        load_trained(str(config.parent / "runs" / "numbers"), NamedColumns(), "cpu")


def test_an_unfinished_baseline_is_fitted_from_the_start(config: Path):
    first = fit(load_config(config, []))
    (config.parent / "runs" / "numbers" / records.SUMMARY_FILE).unlink()
    again = fit(load_config(config, []), mode="resume")
    assert again["scores"] == first["scores"]


def test_one_process_fits_a_baseline(config: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    with raises_code("strategy.too_many_ranks"):
        fit(load_config(config, []))


def test_commands_that_need_steps_refuse_a_baseline():
    refuse_baseline(None, "paratune plan predicts")
    with raises_code("baseline.no_model", "tfidf", "baseline=null"):
        refuse_baseline(TfidfOptions(kind="tfidf"), "paratune plan predicts")
