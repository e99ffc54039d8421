"""The result of a run: a Hugging Face folder with the outputs of `predict`, and scores that `evaluate` reproduces."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from harness import Cli
from hooks import RefuseNetwork
from huggingface_hub import ModelCard
from outcome import steps_of
from raised import check_shown
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
from world import CONFIG, REGRESSION, write_data

from paratune.errors import EXIT_OK
from paratune.records import read_events, read_json

DOCS = Path(__file__).parents[2] / "docs"

COMMON = ("--set", "data.split=", "--set", "data.validation=valid.csv", "--set", "train.epochs=6")
LEARNS = ("--set", "train.learning_rate=5e-3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A folder with a run of each task, with separate training and validation files."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "model").symlink_to(tiny_folder / "model")
    write_data(folder / "data.csv")
    write_data(folder / "valid.csv", num_rows=60, seed=1)
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "r.yaml").write_text(CONFIG)
    cli = Cli(folder, {"PARATUNE_CACHE": str(folder / "cache")})
    for arguments in (("c.yaml",), ("r.yaml", *REGRESSION)):
        result = cli("train", *arguments, *COMMON, *LEARNS)
        assert result.code == EXIT_OK, result.stderr
        assert "Traceback" not in result.stderr
    return folder


@pytest.fixture
def in_trained(trained: Path) -> Cli:
    return Cli(trained, {"PARATUNE_CACHE": str(trained / "cache")})


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file)]


def test_the_model_has_learned(trained: Path):
    assert read_json(trained / "runs/c/summary.json")["scores"]["validation"]["accuracy"] > 0.95
    assert read_json(trained / "runs/r/summary.json")["scores"]["validation"]["rmse"] < 0.6


def test_the_model_has_a_card_without_paths(trained: Path):
    for run in ("c", "r"):
        card = trained / "runs" / run / "model" / "README.md"
        assert ModelCard.load(card).data.pipeline_tag == "text-classification"
        assert str(trained) not in card.read_text()
        # Users edit the card, so it is not among the files that must not change.
        assert card.name not in read_json(card.with_name("paratune.json"))["files"]


def test_the_model_folder_has_the_comparison_with_a_constant_answer(trained: Path):
    with (trained / "data.csv").open(encoding="utf-8") as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    for run, metric, deviation in (("c", "accuracy", None), ("r", "rmse", pytest.approx(np.std(scores)))):
        summary = read_json(trained / "runs" / run / "summary.json")
        known = read_json(trained / "runs" / run / "model" / "paratune.json")
        baseline = summary["baseline"]
        assert known["constant"] == {
            "predicts": baseline["predicts"], "split": "validation", "metric": metric,
            "model": summary["scores"]["validation"][metric], "constant": baseline["scores"]["validation"][metric],
        }  # fmt: skip
        assert known["label_deviation"] == deviation


FREE_KEYS = ("config", "config_origin", "versions", "environment", "options", "setup")
"""Mappings of a record whose keys are options, packages or variables."""


def _keys(value: Any) -> set[str]:
    """Return all keys of a record's value, at any depth."""
    if isinstance(value, list):
        return set().union(*map(_keys, value))
    if not isinstance(value, dict):
        return set()
    return set(value) | set().union(*(_keys(inner) for key, inner in value.items() if key not in FREE_KEYS))


def test_every_field_of_a_record_is_in_the_reference(trained: Path):
    pages = [(DOCS / "reference" / name).read_text(encoding="utf-8") for name in ("records.md", "record_fields.md")]
    documented = set(re.findall(r"\w+", " ".join(pages)))
    for run in ("c", "r"):
        folder = trained / "runs" / run
        records = [read_json(folder / "run.json"), read_json(folder / "summary.json"), *read_events(folder)]
        assert _keys(records) - documented == set(), run


def test_transformers_reproduces_the_scores_of_predict(trained: Path, in_trained: Cli, tmp_path: Path):
    output = tmp_path / "out.parquet"
    assert in_trained("predict", "runs/c", "--input", "valid.csv", "--out", output).code == EXIT_OK
    table = pyarrow.parquet.read_table(output)
    texts = _texts(trained / "valid.csv")
    assert table.column("text").to_pylist() == texts

    model = AutoModelForSequenceClassification.from_pretrained(trained / "runs/c/model")
    tokenizer = AutoTokenizer.from_pretrained(trained / "runs/c/model")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits
    expected = logits.softmax(-1).numpy()
    predicted = np.stack([table.column(f"score_{name}").to_numpy() for name in ("negative", "positive")], axis=1)
    # Batches are padded to other lengths, so the order of sums differs.
    np.testing.assert_allclose(predicted, expected, atol=1e-5)


def test_the_pipeline_names_labels(trained: Path, in_trained: Cli, tmp_path: Path):
    classify = pipeline("text-classification", model=str(trained / "runs/c/model"), device="cpu")
    assert in_trained("predict", "runs/c", "--input", "valid.csv", "--out", tmp_path / "out.csv").code == EXIT_OK
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))[:10]

    for row, answer in zip(rows, classify([row["text"] for row in rows]), strict=True):
        assert answer["label"] == row["prediction"]
        assert answer["score"] == pytest.approx(float(row[f"score_{answer['label']}"]), abs=1e-5)


def test_regression_in_transformers(trained: Path, in_trained: Cli, tmp_path: Path):
    output = tmp_path / "out.jsonl"
    assert in_trained("predict", "runs/r", "--input", "valid.csv", "--out", output).code == EXIT_OK
    predicted = [json.loads(line)["prediction"] for line in output.read_text().splitlines()]

    regress = pipeline("text-classification", model=str(trained / "runs/r/model"), device="cpu")
    answers = regress(_texts(trained / "valid.csv"), function_to_apply="none")
    assert predicted == pytest.approx([answer["score"] for answer in answers], abs=1e-5)
    assert regress.model.config.num_labels == 1


@pytest.mark.parametrize("run", ["runs/c", "runs/r", "runs/c/model"])
def test_evaluate_reproduces_the_scores_of_the_summary(run: str, trained: Path, in_trained: Cli):
    result = in_trained("evaluate", run, "--data", "valid.csv", "--json", "--batch-size", "7")

    assert result.code == EXIT_OK, result.stderr
    summary = read_json(trained / run.removesuffix("/model") / "summary.json")
    # Other batches pad to other lengths: rows with nearly equal scores may swap ranks, which changes Spearman's
    # coefficient by 2e-5 for each swap of neighbours.
    assert result.json["scores"] == pytest.approx(summary["scores"]["validation"], abs=1e-3)
    assert result.json["num_samples"] == 60
    if "c" in run.split("/"):
        assert result.json["confusion"] == summary["confusion"]["validation"]


def test_training_texts_in_the_file_are_counted(trained: Path, in_trained: Cli):
    known = set(_texts(trained / "data.csv"))
    shared = sum(text in known for text in _texts(trained / "valid.csv"))
    for target, data, count in (("runs/c", "data.csv", 200), ("runs/c/model", "data.csv", 200)):
        result = in_trained("evaluate", target, "--data", data, "--json")
        assert result.code == EXIT_OK, result.stderr
        assert result.json["num_trained_on"] == count
        check_shown(result.stderr, "data.trained_on", "200 of 200", "data.csv")
    other = in_trained("evaluate", "runs/c", "--data", "valid.csv", "--json")
    assert other.json["num_trained_on"] == shared
    assert ("was trained on" in other.stderr) == (shared > 0)


def test_the_predictions_of_the_run_are_those_of_predict(trained: Path, in_trained: Cli, tmp_path: Path):
    assert in_trained("predict", "runs/c", "--input", "valid.csv", "--out", tmp_path / "o.parquet").code == EXIT_OK
    written = pyarrow.parquet.read_table(trained / "runs/c/predictions.validation.parquet")
    predicted = pyarrow.parquet.read_table(tmp_path / "o.parquet")

    assert written.column("id").to_pylist() == predicted.column("id").to_pylist()
    assert written.column("label").to_pylist() == predicted.column("label").to_pylist()
    assert written.column("prediction").to_pylist() == predicted.column("prediction").to_pylist()
    assert written.column("score_1").to_pylist() == pytest.approx(
        predicted.column("score_positive").to_pylist(), abs=1e-5
    )


def test_predict_skips_rows_without_text_and_needs_no_labels(trained: Path, in_trained: Cli, tmp_path: Path):
    (tmp_path / "in.csv").write_text("text\na good film\n   \n42\n")
    # The run had ids and refused missing values; both settings have no effect here.
    result = in_trained("predict", "runs/c", "--input", tmp_path / "in.csv", "--out", tmp_path / "out.jsonl", "--json")

    assert result.code == EXIT_OK, result.stderr
    output = {"output": str(tmp_path / "out.jsonl"), "num_rows": 3, "num_predicted": 2, "rows_without_prediction": [1]}
    output |= {"share_unknown_tokens": 0.0}
    assert result.json == output
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["a good film", "   ", "42"]
    assert [row["prediction"] is None for row in rows] == [False, True, False]


JSON_COMMANDS = {
    "train": (
        "train",
        "c.yaml",
        *COMMON,
        "--set",
        "run.name=again",
        "--set",
        "train.max_steps=5",
        "--set",
        "train.epochs=",
    ),
    "evaluate": ("evaluate", "runs/c", "--data", "valid.csv"),
    "predict": ("predict", "runs/c", "--input", "valid.csv", "--out", "json.csv", "--overwrite"),
    "report": ("report", "runs/c"),
    "report of two": ("report", "runs/c", "runs/c", "--out", "report"),
    "data": ("data", "c.yaml"),
    "data of numbers": ("data", "c.yaml", *REGRESSION),
    "config show": ("config", "show", "c.yaml"),
    "config schema": ("config", "schema"),
    "config init": ("config", "init", "init.yaml", "--train", "demo:sentences"),
    "doctor": ("doctor",),
}


@pytest.mark.parametrize("name", JSON_COMMANDS)
def test_json_is_one_document_on_stdout(name: str, in_trained: Cli):
    result = in_trained(*JSON_COMMANDS[name], "--json")

    assert result.code == EXIT_OK, result.stderr
    assert isinstance(result.json, dict)
    for constant in ("NaN", "Infinity"):
        assert constant not in result.stdout.replace('"NaN"', "")


def test_training_resolves_no_names_and_opens_no_connections(in_trained: Cli, tmp_path: Path):
    log = tmp_path / "network.txt"
    # Not in offline mode: a local model and local files need no network in any case.
    online = Cli(in_trained.cwd, {"PARATUNE_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"})
    arguments = ("train", "c.yaml", *COMMON, "--set", f"run.folder={tmp_path}", "--set", "train.epochs=0.5")

    result = online(*arguments, hook=RefuseNetwork(str(log)))

    assert result.code == EXIT_OK, result.stderr
    assert not log.exists(), log.read_text()
    assert len(steps_of(tmp_path / "c")) > 0


def test_the_guard_detects_connections(world: Path, cli: Cli, tmp_path: Path):
    log = tmp_path / "network.txt"
    result = cli("config", "schema", hook=LooksUp(str(log)))
    assert result.code != EXIT_OK
    assert "socket.getaddrinfo" in log.read_text()


class LooksUp(RefuseNetwork):
    """Resolves a name on the network."""

    def __call__(self) -> None:
        import socket

        super().__call__()
        socket.getaddrinfo("example.com", 80)


def test_the_log_of_the_run_contains_the_output_of_training(trained: Path):
    text = (trained / "runs/c/log.rank0000.txt").read_text()
    assert "train: 200 rows" in text
    assert "validation: 60 rows" in text


def test_the_record_contains_the_utilisation_of_devices(trained: Path):
    summary = read_json(trained / "runs/c/summary.json")
    config = read_json(trained / "model/config.json")
    layers, width, inner = (config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    flops, longest = summary["flops"], config["max_position_embeddings"]
    # PaLM, appendix B: 6 N + 12 L D s per token; a pooler and a classifier of two classes, at most one of each per
    # token.
    products = 6 * layers * (4 * width**2 + 2 * width * inner)
    head = 6 * (width**2 + 2 * width)
    assert products < flops["model_flops_per_token"] < products + 12 * layers * width * longest + head
    rate = flops["model_flops_per_token"] * summary["throughput"]["tokens_per_s"]
    assert flops["model_flops_per_s"] == pytest.approx(rate)
    assert flops["mfu"] is None
    assert "not listed" in flops["reason"]
    utilisation = summary["utilisation"]
    assert (utilisation["kind"], utilisation["interval_s"]) == ("cpu", 1.0)
    assert [device["rank"] for device in utilisation["devices"]] == [0]


@pytest.mark.slow
@pytest.mark.parametrize(("base", "form"), [(None, "adapter"), ("nf4", "adapter"), ("int8", "merged")])
def test_an_adapter_is_evaluated_as_it_was_trained(trained: Path, in_trained: Cli, base: str | None, form: str):
    pytest.importorskip("peft")
    if base is not None:
        pytest.importorskip("bitsandbytes")
    name = f"lora_{base}"
    lora = ("--set", f"run.name={name}", "--set", f"model.adapter={{kind: lora, save: {form}}}")
    options = ("--set", "train.epochs=2", "--set", "train.learning_rate=1e-2")
    quantized = ("--set", f"model.quantize_base={base}") if base else ()
    result = in_trained("train", "c.yaml", *COMMON, *lora, *options, *quantized)
    assert result.code == EXIT_OK, result.stderr
    expected = read_json(trained / f"runs/{name}/summary.json")["scores"]["validation"]
    assert (trained / f"runs/{name}/model/model.safetensors").exists() == (form == "merged")
    evaluated = in_trained("evaluate", f"runs/{name}", "--data", "valid.csv", "--json")
    assert evaluated.code == EXIT_OK, evaluated.stderr
    scores = json.loads(evaluated.stdout)["scores"]
    assert scores["accuracy"] == expected["accuracy"]
    assert scores["loss"] == pytest.approx(expected["loss"], rel=1e-4)
