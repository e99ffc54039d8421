"""A then B: the second training of a matrix begins with the model of the first one, as it does by hand."""

import json
from pathlib import Path

import pytest
from harness import Cli
from tiny import tiny_model

SHARED = """\
data: {split: {validation: 0.25}, columns: {text: text, label: label}, max_length: 16}
train: {max_steps: 3, learning_rate: 1e-3}
batch: {global: 8}
evaluate: {every: never}
checkpoint: {every: never}
device: cpu
precision: fp32
"""
TASKS = {"a": "{kind: classification, labels: [no, yes]}", "b": "{kind: classification, labels: [x, y, z]}"}
MATRIX = """\
name: m
base: shared.yaml
axes:
  first:
    none: {model.name: base}
    a: {model.name: {first: none, task: a}}
  task:
    a: {extends: a.yaml}
    b: {extends: b.yaml}
exclude: [{first: a, task: a}, {first: none, task: b}]
"""


@pytest.mark.slow  # six processes that train: the weights of both ways are compared
def test_a_then_b_is_what_it_is_by_hand(tmp_path: Path):
    tiny_model(tmp_path / "base")
    words = ["the", "film", "is", "good", "bad", "a", "very", "poor", "story", "it", "was", "nice", "food"]
    texts = [f"{words[row % 13]} {words[row % 7]}" for row in range(40)]
    labels = {"a": ["no", "yes"], "b": ["x", "y", "z"]}
    (tmp_path / "shared.yaml").write_text(SHARED)
    (tmp_path / "m.yaml").write_text(MATRIX)
    for name, own in labels.items():
        lines = [f"{text},{own[row % len(own)]}" for row, text in enumerate(texts)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]))
        (tmp_path / f"{name}.yaml").write_text(f"task: {TASKS[name]}\ndata: {{train: {name}.csv}}\n")
    good = (tmp_path / "a.csv").read_text()
    (tmp_path / "a.csv").write_text(f"{good}\nfood,maybe\n")
    cli = Cli(tmp_path, {"PARATUNE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"})

    def cells() -> dict[str, tuple[str, bool]]:
        record = json.loads((tmp_path / "runs/m/sweep.json").read_text())
        return {cell["name"]: (cell["state"], "none_a" in (cell["reason"] or "")) for cell in record["cells"]}

    assert cli("sweep", "m.yaml").code == 1
    assert cells() == {"none_a": ("failed", False), "a_b": ("pending", True)}
    (tmp_path / "a.csv").write_text(good)
    assert cli("sweep", "m.yaml").code == 1  # the failed run is kept
    assert cells() == {"none_a": ("failed", False), "a_b": ("pending", True)}
    result = cli("sweep", "m.yaml", "--retry-failed")
    assert result.code == 0, result.stderr
    assert cells() == {"none_a": ("finished", False), "a_b": ("finished", False)}
    for name, model in (("a", "base"), ("b", "runs/a")):
        (tmp_path / "c.yaml").write_text(f"extends: [shared.yaml, {name}.yaml]\nmodel: {{name: {model}}}\n")
        result = cli("train", "c.yaml", "--set", f"run.name={name}")
        assert result.code == 0, result.stderr
    for by_hand, name in (("a", "none_a"), ("b", "a_b")):
        files = [tmp_path / "runs" / run / "model" / "model.safetensors" for run in (by_hand, f"m/runs/{name}")]
        assert files[0].read_bytes() == files[1].read_bytes()
