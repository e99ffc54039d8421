"""Tiny models of each task and their rows, for tests of explanations: `from explained import tiny_rows`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from tiny import tiny_config, tiny_model, tiny_tokenizer
from tiny_questions import tiny_qa_model

from paratune.data.load import Split
from paratune.explain.outputs import prepare
from paratune.infer.trained import NamedColumns, TrainedModel, load_trained
from paratune.records.own import TASK_FILE

LABELS = {"0": "low", "1": "middle", "2": "high"}
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"kind": "classification", "labels": LABELS},
    "multi_label": {"kind": "multi_label", "labels": LABELS, "separator": "|"},
    "ordinal": {"kind": "ordinal", "labels": LABELS},
    "regression": {"kind": "regression"},
    "qa": {"kind": "qa", "stride": 4, "unanswerable": False},
}
OUTPUTS = {"classification": 3, "multi_label": 3, "ordinal": 2, "regression": 1}
TEXT = "The film was really good. But not the story!\nNever again, it is bad."


@dataclass(frozen=True)
class Saved:
    """A saved model and how to load it."""

    folder: Path
    columns: dict[str, str]

    def load(self) -> TrainedModel:
        trained = load_trained(str(self.folder), NamedColumns(), "cpu")
        prepare(trained)
        return trained

    def read(self, *texts: str, pairs: tuple[str, ...] = (), **more: list[Any]) -> tuple[TrainedModel, Split]:
        """Return the prepared model, and the rows of these texts."""
        trained = self.load()
        columns: dict[str, Any] = {self.columns["text"]: list(texts), **more}
        columns |= {self.columns["text_pair"]: list(pairs)} if pairs else {}
        return trained, trained.read("x.csv", pa.table(columns), require_labels=bool(more))


def save_tiny(folder: Path, kind: str, *, is_pair: bool = False, max_length: int = 64, seed: int = 0) -> Saved:
    """Save an untrained model of a kind of task, with weights so large that words change its outputs."""
    columns = {"text": "text", "label": "label"} | ({"text_pair": "pair"} if is_pair else {})
    if kind == "qa":
        columns = {"text": "question", "text_pair": "context", "label": "answers"}
        tiny_qa_model(tiny_config()).save_pretrained(folder)
        tiny_tokenizer(folder)
    else:
        model = tiny_model(folder, OUTPUTS[kind], seed=seed)
        for weight in model.parameters():
            weight.data.mul_(4.0)
        model.save_pretrained(folder)
    (folder / TASK_FILE).write_text(json.dumps({"task": TASKS[kind], "columns": columns, "max_length": max_length}))
    return Saved(folder, columns)
