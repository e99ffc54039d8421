"""`paratune config init` guesses the task and the columns of files in famous layouts."""

from pathlib import Path

import pyarrow as pa
import pytest

from paratune.data.guess import guess_options
from paratune.data.read import read_table

FOLDER = Path(__file__).parent
GUESSES = {
    "cola.tsv": ("classification", "sentence", None, "label"),
    "cluener.jsonl": ("token_classification", "text", None, "label"),
    "conll2003.testa": ("token_classification", "tokens", None, "tags"),
    "doccano_classes.jsonl": ("classification", "text", None, "label"),
    "doccano_spans.jsonl": ("token_classification", "text", None, "label"),
    "fasttext.train": ("multi_label", "text", None, "label"),
    "fasttext_single.txt": ("classification", "text", None, "label"),
    "flags.csv": ("multi_label", "remark", None, ["rude", "spam", "late"]),
    "germeval.tsv": ("token_classification", "tokens", None, "tags"),
    "label_studio.json": ("token_classification", "body", None, "ner"),
    "mrpc.tsv": ("classification", "#1 String", "#2 String", "Quality"),
    "number_tags.jsonl": ("token_classification", "words", None, "ner"),
    "ontonotes.gold_conll": ("token_classification", "tokens", None, "tags"),
    "plain_tags.txt": ("token_classification", "tokens", None, "tags"),
    "prodigy.jsonl": ("token_classification", "text", None, "spans"),
    "prodigy_choice.jsonl": ("classification", "text", None, "label"),
    "qnli.tsv": ("classification", "question", "sentence", "label"),
    "rte.tsv": ("classification", "sentence1", "sentence2", "label"),
    "stsb.tsv": ("regression", "sentence1", "sentence2", "score"),
    "tree.txt": ("token_classification", "tokens", None, "tags"),
    "words.txt": ("token_classification", "tokens", None, "tags"),
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_famous_layout_has_its_task_and_columns(name: str):
    rows = pa.concat_tables([read_table(str(FOLDER / name))] * 20)
    keys = ("task.kind", *(f"data.columns.{key}" for key in ("text", "text_pair", "label")))
    expected = dict(zip(keys, GUESSES[name], strict=True))
    for place, column in enumerate(rows.column_names):  # other columns have more values, as in whole files
        if pa.types.is_string(rows.column(column).type) and column not in (expected["data.columns.label"] or ""):
            values = [f"{value} {row}" for row, value in enumerate(rows.column(column).to_pylist())]
            rows = rows.set_column(place, column, pa.array(values))
    # A file with one class gets another one from the test file.
    other = {"rte.tsv": "not_entailment", "prodigy_choice.jsonl": ["y"]}.get(name)
    guess = guess_options(rows, name, columns={}, others=[pa.table({"label": [other]})] if other else [])
    assert {key: guess.values.get(key) for key in keys} == expected
