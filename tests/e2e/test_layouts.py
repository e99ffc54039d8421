"""`batch.layout` changes the padding, but not the result of training."""

import json
from pathlib import Path

import pytest
from harness import Cli
from outcome import steps_of
from raised import check_shown
from transformers import AutoModelForSequenceClassification, DebertaV2Config, DebertaV2ForSequenceClassification

from paratune.errors import EXIT_CONFIG, EXIT_OK
from paratune.records import read_json

EXACT = (
    *("--set", "precision=fp64", "--set", "evaluate={every: steps, steps: 10, best: loss}"),
    *("--set", "model.overrides={hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}"),
)
MASKED = """\
task: {kind: mlm, windows: documents}
data: {train: data.csv, columns: {text: text}, split: {validation: 0.2}, max_length: 24}
model: {name: model}
train: {max_steps: 20, learning_rate: 3e-3}
batch: {global: 16}
"""


def layout(kind: str) -> tuple[str, ...]:
    return ("train", "c.yaml", "--set", f"batch.layout={kind}", "--set", f"run.name={kind}", *EXACT)


LAYOUTS = {"padded": "padded", "packed": "packed", "bucketed": "bucketed", "auto": "packed"}
"""The requested layout, and the layout that a BERT gets."""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "documents", "separate"])
def test_all_layouts_give_the_same_result(world: Path, cli: Cli, task: str):
    if task != "classification":
        (world / "c.yaml").write_text(MASKED.replace("documents", task))
    for kind in LAYOUTS:
        result = cli(*layout(kind))
        assert result.code == EXIT_OK, result.stderr
    runs = {kind: world / "runs" / kind for kind in LAYOUTS}
    chosen = {kind: read_json(run / "run.json")["batch"] for kind, run in runs.items()}
    assert {kind: batch["layout"] for kind, batch in chosen.items()} == LAYOUTS
    assert all(batch["layout_reason"] is None for batch in chosen.values())

    losses = {kind: [event["loss"] for event in steps_of(run)] for kind, run in runs.items()}
    scores = {kind: read_json(run / "summary.json")["scores"]["validation"]["loss"] for kind, run in runs.items()}
    for kind in ("packed", "bucketed"):
        assert losses[kind] == pytest.approx(losses["padded"], rel=1e-9)
        assert scores[kind] == pytest.approx(scores["padded"], rel=1e-9)
    assert losses["auto"] == losses["packed"]

    padding = {kind: read_json(run / "summary.json")["throughput"]["padding_share"] for kind, run in runs.items()}
    assert padding["packed"] == 0.0 < padding["bucketed"] < padding["padded"]


def test_a_model_with_custom_attention_is_bucketed_with_a_reason(world: Path, cli: Cli):
    tokens = len(json.loads((world / "model" / "tokenizer.json").read_text())["model"]["vocab"])
    config = DebertaV2Config(
        vocab_size=tokens, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    config.num_labels = 2
    DebertaV2ForSequenceClassification(config).save_pretrained(world / "deberta")
    other = (
        "--set",
        "model={name: deberta, tokenizer: model}",
        "--set",
        "train.max_steps=4",
        "--set",
        "train.epochs=null",
    )
    result = cli("train", "c.yaml", *other)
    assert result.code == EXIT_OK, result.stderr
    reason = "DebertaV2ForSequenceClassification has its own attention, which does not support packed rows"
    assert result.stderr.count(f"batches are bucketed: {reason}") == 1
    batch = read_json(world / "runs" / "c" / "run.json")["batch"]
    assert (batch["layout"], batch["layout_reason"]) == ("bucketed", reason)

    result = cli("train", "c.yaml", *other, "--set", "batch.layout=packed", "--set", "run.name=no")
    assert result.code == EXIT_CONFIG
    check_shown(result.stderr, "model.unsupported", f"batch.layout: packed, but {reason}", "batch.layout: auto")
    assert not (world / "runs" / "no").exists()


def test_the_report_of_new_weights_is_not_in_a_saved_model(world: Path, cli: Cli):
    assert cli(*layout("packed")).code == EXIT_OK
    folder = world / "runs" / "packed" / "model"
    assert "paratune" not in (folder / "config.json").read_text()
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config._attn_implementation == "sdpa"
