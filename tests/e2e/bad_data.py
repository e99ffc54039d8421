"""Bad files, columns, running text and questions, as data."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from bad_case import Case, damaged_model, text_file, train_with, with_row
from world import REGRESSION

from paratune.errors import EXIT_CONFIG, EXIT_DATA


def _parquet(folder: Path) -> None:
    pa.parquet.write_table(pa.table({"text": [1.5, 2.5], "label": ["negative", "positive"]}), folder / "num.parquet")


def _questions(text: str | None = None, task: str = "", **changed: object) -> Callable[[Path], None]:
    """Write q.yaml and its file q.json with two questions: a correct one, and one with changes."""
    context = "Évora is a city 🏛 of Portugal"
    good = {"id": "a", "question": "Where?", "context": context, "answers": {"text": ["Évora"], "answer_start": [0]}}
    config = (
        f"task: {{kind: qa, stride: 8{task}}}\ndata: {{train: q.json, max_length: 48}}\nmodel: {{name: model}}\n"
        "train: {max_steps: 2}\nbatch: {global: 2}\ndevice: cpu\n"
    )

    def write(folder: Path) -> None:
        rows = [good, {**good, "id": "b", **changed}]
        (folder / "q.json").write_text(json.dumps(rows) if text is None else text, encoding="utf-8")
        (folder / "q.yaml").write_text(config, encoding="utf-8")

    return write


FILES = [
    Case("no such configuration", ("train", "d.yaml"), EXIT_CONFIG, ("d.yaml does not exist; in .: c.yaml",)),
    Case("a folder as configuration", ("train", "model"), EXIT_CONFIG, ("model is a folder", "name a YAML file")),
    Case(
        "missing file",
        train_with("data.train=dota.csv"),
        EXIT_DATA,
        ("dota.csv does not exist", "did you mean data.csv?", "working directory"),
    ),
    Case(
        "empty file",
        train_with("data.train=empty.csv"),
        EXIT_DATA,
        ("empty.csv is empty (0 bytes)",),
        prepare=text_file("empty.csv", ""),
    ),
    Case(
        "header without rows",
        train_with("data.train=head.csv"),
        EXIT_DATA,
        ("head.csv has no rows", "id, text, label, score"),
        prepare=text_file("head.csv", "id,text,label,score\n"),
    ),
    Case(
        "row with one field too many",
        train_with("data.train=torn.csv"),
        EXIT_DATA,
        ("torn.csv, line 42: 5 fields, but the header has 4", "must be in quotes; or set data.separator"),
        prepare=with_row("torn.csv", "x,good, really good,positive,1"),
    ),
    Case(
        "not UTF-8",
        train_with("data.train=russian.csv"),
        EXIT_DATA,
        ("russian.csv, line 2: byte 0xcf", "save it as UTF-8"),
        prepare=text_file("russian.csv", b"id,text,label,score\n0,\xcf\xf0\xe8\xe2\xe5\xf2,positive,1\n"),
    ),
    Case(
        "half a Parquet file",
        train_with("data.train=half.parquet"),
        EXIT_DATA,
        ("half.parquet is damaged or not Parquet",),
        prepare=text_file("half.parquet", b"PAR1 and no end"),
    ),
]

COLUMNS = [
    Case(
        "wrong column",
        train_with("data.columns.text=txet"),
        EXIT_DATA,
        ("data.csv lacks a column", "data.columns.text names txet; did you mean text?", "'score'"),
    ),
    Case(
        "text column with numbers (CSV)",
        train_with("data.columns.text=score"),
        EXIT_DATA,
        ("data.csv, column score (data.columns.text) contains only numbers",),
    ),
    Case(
        "text column with numbers (Parquet)",
        train_with("data.train=num.parquet", "data.columns.id="),
        EXIT_DATA,
        ("num.parquet, column text (data.columns.text) contains double, such as 1.5",),
        prepare=_parquet,
    ),
    Case(
        "missing label",
        train_with("data.train=gap.csv"),
        EXIT_DATA,
        ("gap.csv: values are missing: label (column label) in 1 of 41 rows: row 40", "data.missing: drop"),
        prepare=with_row("gap.csv", "x,the film,,1"),
    ),
    Case(
        "unknown label in training",
        train_with("data.validation=other.csv", "data.split="),
        EXIT_DATA,
        ("other.csv, column label", "'neutral': row 40", "task.labels ('negative', 'positive')", "Add them"),
        prepare=with_row("other.csv", "x,the film,neutral,0"),
    ),
    Case(
        "NaN target",
        ("train", "c.yaml", *REGRESSION, "--set", "data.train=nan.csv"),
        EXIT_DATA,
        ("nan.csv", "label (column score) in 1 of 41 rows: row 40", "data.missing: drop"),
        prepare=with_row("nan.csv", "x,the film,positive,nan"),
    ),
    Case(
        "infinite target",
        ("train", "c.yaml", *REGRESSION, "--set", "data.train=infinite.csv"),
        EXIT_DATA,
        ("infinite.csv, column score: 1 of 41 targets are not finite, such as 'inf': row 40", "data.missing: drop"),
        prepare=with_row("infinite.csv", "x,the film,positive,inf"),
    ),
    Case(
        "class label given for regression",
        ("train", "c.yaml", *REGRESSION, "--set", "data.columns.label=label"),
        EXIT_DATA,
        ("column label: 200 of 200 targets are not numbers, such as 'negative'", "task.kind: classification"),
    ),
    Case(
        "numeric target given for classes",
        train_with("data.columns.label=score"),
        EXIT_DATA,
        ("column score: 200 labels are not among task.labels", "task.kind: regression"),
    ),
    Case(
        "too few rows to split",
        train_with("data.train=two.csv"),
        EXIT_DATA,
        ("the validation part of 2 rows would be empty", "a larger share, or more data"),
        prepare=with_row("two.csv", "", num_rows=2),
    ),
]

MASKED_LM = train_with(
    "task=mlm", "data.columns.label=", "data.columns.id=", "data.split.stratify=false", "evaluate.best="
)
"""Changes the configuration to a masked LM on the column `text`."""


def _unmasked(model: Path) -> None:
    for path in (model / "tokenizer_config.json", model / "special_tokens_map.json"):
        if path.exists():
            values = {key: value for key, value in json.loads(path.read_text()).items() if key != "mask_token"}
            path.write_text(json.dumps(values))


RUNNING_TEXT = [
    Case(
        "a label column for a masked LM",
        (*MASKED_LM, "--set", "data.columns.label=label"),
        EXIT_CONFIG,
        ("data.columns.label: label has no effect with task.kind: mlm", "uses the text only"),
    ),
    Case(
        "a vocabulary without a mask token",
        (*MASKED_LM, "--set", "model.name=plain"),
        EXIT_CONFIG,
        ("task.kind: mlm needs a mask token, and the vocabulary of plain", "has none", "model.tokenizer"),
        prepare=damaged_model("plain", _unmasked),
    ),
    Case(
        "windows without space for text",
        (*MASKED_LM, "--set", "data.max_length=2"),
        EXIT_CONFIG,
        ("data.max_length: 2 leaves no tokens for text next to 2 special tokens; at least 3 is needed",),
    ),
    Case(
        "a document without a token",
        (*MASKED_LM, "--set", "data.train=zero.csv", "--set", "data.split="),
        EXIT_DATA,
        ("zero.csv: the tokenizer returns no tokens for row 40 (counted from 0)",),
        prepare=with_row("zero.csv", "x,\u200b,positive,1"),
    ),
    Case(
        "sentences of a text file",
        (*MASKED_LM, "--set", "data.train=a.txt#sentences"),
        EXIT_DATA,
        ("a.txt#sentences: only folders of `datasets` have splits, spreadsheets sheets, and .txt files #paragraphs",),
        prepare=text_file("a.txt", "one line\n"),
    ),
]

QUESTIONS = [
    Case(
        "an answer that is not at its position",
        ("train", "q.yaml"),
        EXIT_DATA,
        (
            *("q.json: 1 of 2 questions", "row 1 (counted from 0)", "'Portugal' at 22", "'ortugal'; it is at 21"),
            "data.missing: drop",
        ),
        prepare=_questions(answers={"text": ["Portugal"], "answer_start": [22]}),
    ),
    Case(
        "two questions with the same id",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("1 with the id of an earlier question, row 1 (counted from 0) (row 1: 'a')",),
        prepare=_questions(id="a"),
    ),
    Case(
        "an empty context",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("1 with no context, row 1",),
        prepare=_questions(context=" "),
    ),
    Case(
        "an unanswerable question with an answer",
        ("train", "q.yaml"),
        EXIT_DATA,
        (
            "1 with answers that contradict is_impossible, row 1 (counted from 0) "
            "(row 1: is_impossible is True with 1 answers)",
        ),
        prepare=_questions(is_impossible=True),
    ),
    Case(
        "a question without an answer if all must have one",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("1 with no answer, and task.unanswerable is false",),
        prepare=_questions(task=", unanswerable: false", answers={"text": [], "answer_start": []}),
    ),
    Case(
        "a question that is longer than the window",
        ("train", "q.yaml"),
        EXIT_DATA,
        (
            "a question so long that no tokens are left for the context",
            "data.missing: drop",
        ),
        prepare=_questions(question="Where is it? " * 40),
    ),
    Case(
        "half a file of SQuAD",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("q.json, line 1: not JSON", "SQuAD's layout"),
        prepare=_questions(text='{"version": "v2.0", "data": [{"paragraphs": [{"context": "x'),
    ),
    Case(
        "a question without a text in SQuAD's layout",
        ("train", "q.yaml"),
        EXIT_DATA,
        ("q.json, data[0].paragraphs[0].qas[0].question is absent; expected str",),
        prepare=_questions(text='{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "a"}]}]}]}'),
    ),
]
