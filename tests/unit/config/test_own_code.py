"""The options that name code outside paratune, as commands list and records hash them."""

from pathlib import Path

from paratune.config.load import load_config
from paratune.config.own_code import imported_code, own_code_record

TEXT = """
task: {kind: classification, labels: [a, b], loss: {function: "json:dumps"}}
data: {train: [a.csv, "code:json:loads?s=[]"], columns: {text: t, label: l}, extra: {more: "code:json:dumps"},
  split: {validation: 0.1}}
model: {name: m, head: {function: "json:JSONDecodeError"}}
batch: {global: 8}
train: {epochs: 1, optimizer: {function: "json:JSONDecoder"}, schedule: {function: "json:load", options: {x: 1}}}
evaluate: {metrics: [{name: m, function: "json:dump", higher_is_better: true}]}
run: {callbacks: [{function: "json:JSONEncoder"}]}
"""


def test_every_option_that_names_code_is_listed_and_hashed(any_code, tmp_path: Path):
    (tmp_path / "c.yaml").write_text(TEXT)
    loaded = load_config(tmp_path / "c.yaml")
    record = own_code_record(loaded.config)
    assert set(record) == {
        *("model.head", "task.loss", "train.optimizer", "train.schedule", "run.callbacks[0]"),
        *("data.train: json:loads", "data.extra.more: json:dumps", "evaluate.metrics.m"),
    }
    assert {len(code["sha256"]) for code in record.values()} == {64}
    assert record["train.schedule"]["options"] == {"x": 1}
    functions = [code["function"] for code in record.values()]
    lines = [line.partition(": ")[2].removeprefix("code:") for line in imported_code(loaded.values)]
    assert sorted(line.partition("?")[0].partition(" ")[0] for line in lines) == sorted(functions)
    assert imported_code({"train": 3, "run": {"callbacks": 1}, "evaluate": None, "data": []}) == []
