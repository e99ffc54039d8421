"""A GLUE task from its file to a submission, and tasks whose labels are sets or ordered."""

import csv
import random
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from harness import Cli

from paratune.data.read import read_table
from paratune.errors import EXIT_DATA, EXIT_OK
from paratune.records import predictions_file, read_json

pytestmark = pytest.mark.slow  # each test starts several processes

CLASSES = ["entailment", "neutral", "contradiction"]
WORDS = ["good", "bad", "fine"]
COMMON = """\
model: {name: model}
train: {max_steps: 100, learning_rate: 3e-3}
batch: {global: 16}
"""
MNLI = """\
task: mnli
data:
  train: train.tsv
  validation: matched.tsv
  extra: {validation_mismatched: mismatched.tsv}
  predict: {test: test.tsv, test_mismatched: test_mismatched.tsv, ax: ax.tsv}
evaluate: {best: accuracy}
"""
SEVERAL = """\
task: {kind: multi_label, labels: [good, bad, fine]}
data:
  train: sets.csv
  split: {validation: 0.2}
  columns: {text: text, label: labels}
"""
CHANCE = {"several": ("f1_micro", 0.75), "ordinal": ("accuracy", 0.6)}
"""Scores that no constant prediction reaches: 2/3 for all three labels (1.5 per row), 1/3 for one of three classes."""
ORDINAL = """\
task:
  kind: ordinal
  labels: {0: low, entailment: low, 1: middle, neutral: middle, 2: high, contradiction: high}
data:
  train: train.tsv
  validation: matched.tsv
  columns: {text: premise, text_pair: hypothesis, label: label}
"""


def write_pairs(path: Path, num_rows: int, *, labels: bool = True) -> None:
    draw = random.Random(path.name)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["premise", "hypothesis", *(["label"] if labels else [])])
        for number in range(num_rows):
            kind = draw.randrange(3)
            label = kind if number % 2 else CLASSES[kind]  # both forms occur
            writer.writerow(["the film is it", f"{WORDS[kind]} story", *([label] if labels else [])])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Cli:
    folder = tmp_path_factory.mktemp("glue")
    (folder / "model").symlink_to(tiny_folder / "model")
    for name, num_rows in {"train": 120, "matched": 30, "mismatched": 20}.items():
        write_pairs(folder / f"{name}.tsv", num_rows)
    for name, num_rows in {"test": 12, "test_mismatched": 13, "ax": 5}.items():
        write_pairs(folder / f"{name}.tsv", num_rows, labels=False)
    draw = random.Random(0)
    rows = [draw.sample(WORDS, draw.randrange(4)) for _ in range(120)]
    lines = [f"it is {' '.join(row)},{'|'.join(row)}" for row in rows]
    (folder / "sets.csv").write_text("\n".join(["text,labels", *lines]) + "\n")
    cli = Cli(folder, {"PARATUNE_CACHE": str(folder / "cache")})
    for name, text in {"mnli": MNLI, "several": SEVERAL, "ordinal": ORDINAL}.items():
        (folder / f"{name}.yaml").write_text(text + COMMON)
        result = cli("train", f"{name}.yaml")
        assert result.code == EXIT_OK, result.stderr
    return cli


def test_both_validation_sets_are_scored_and_test_sets_are_not(trained: Cli):
    run = trained.cwd / "runs/mnli"
    scores = read_json(run / "summary.json")["scores"]
    assert list(scores) == ["validation", "validation_mismatched"]
    # The class is a word of the text; one of three is correct by chance.
    assert all(entry["accuracy"] > 0.6 for entry in scores.values()), scores
    record = read_json(run / "run.json")
    assert record["task"]["metrics"] == ["accuracy"]
    assert record["data"]["ax"]["num_rows"] == 5
    assert record["config_origin"]["data.columns.text"] == "task.glue: mnli"
    result = trained("report", "runs/mnli", "--json")
    assert '"validation_mismatched_accuracy"' in result.stdout


def test_a_submission_is_written(trained: Cli):
    refused = trained("glue-submit", "runs/mnli", "--out", "s.zip")
    assert refused.code == EXIT_DATA
    assert "12 rows, and the official test has 9796" in refused.stderr
    assert not (trained.cwd / "s.zip").exists()
    assert trained("glue-submit", "runs/mnli", "--out", "s.zip", "--any-size").code == EXIT_OK
    for name, of_set, num_rows in (("MNLI-m", "test", 12), ("MNLI-mm", "test_mismatched", 13), ("AX", "ax", 5)):
        output = pq.read_table(trained.cwd / "runs/mnli" / predictions_file(of_set))["prediction"].to_pylist()
        assert len(output) == num_rows
        with zipfile.ZipFile(trained.cwd / "s.zip") as archive:
            lines = archive.read(f"{name}.tsv").decode().splitlines()
        assert lines == ["index\tprediction", *(f"{row}\t{word}" for row, word in enumerate(output))]


@pytest.mark.parametrize(("run", "data"), [("several", "sets.csv"), ("ordinal", "mismatched.tsv")])
def test_sets_and_ordered_classes_are_learned_evaluated_and_predicted(
    trained: Cli, run: str, data: str, tmp_path: Path
):
    result = trained("evaluate", f"runs/{run}", "--data", data)
    assert result.code == EXIT_OK, result.stderr
    summary = read_json(trained.cwd / f"runs/{run}/summary.json")
    metric, chance = CHANCE[run]
    assert summary["scores"]["validation"][metric] > chance, summary["scores"]
    assert trained("predict", f"runs/{run}", "--input", data, "--out", tmp_path / "o.csv").code == EXIT_OK
    rows, predicted = (read_table(str(path)) for path in (trained.cwd / data, tmp_path / "o.csv"))
    assert predicted.num_rows == rows.num_rows
    assert len(set(predicted["prediction"].to_pylist())) > 2
    assert trained("report", f"runs/{run}", "--out", tmp_path / "report").code == EXIT_OK
