"""The description of `paratune data`, compared with numbers computed by hand."""

import io
import json
import statistics

import numpy as np
import pytest
from rich.console import Console
from tiny import tiny_tokenizer

from paratune.config.sections import Columns
from paratune.config.task_sections import ClassificationTask, MultiLabelTask, RegressionTask
from paratune.data.columns import Samples
from paratune.data.describe import MOST_LABELS, describe, render
from paratune.data.load import Split, samples_fingerprint
from paratune.data.tokens import TokenizeOptions, tokenize

COLUMNS = Columns(text=["title", "body"], label="stars")
CLASSES = ClassificationTask(kind="classification", labels=["bad", "[red]<script>", "unused"])


def split(tmp_path, name, texts, labels, task, max_length=8, num_dropped=None) -> Split:
    known = None if labels is None else np.asarray(labels)
    samples = Samples(list(texts), None, known, None, np.arange(len(texts)), None, num_dropped or {})
    store = tokenize(samples, TokenizeOptions(tiny_tokenizer(), max_length, cache_dir=tmp_path))
    return Split(name, f"{name}.csv", samples, store, samples_fingerprint(samples, task))


@pytest.fixture
def classes(tmp_path):
    # Tokens with [CLS] and [SEP]: 3, 4, 3, 12.
    texts = ["good", "bad film", "good", " ".join(["film"] * 10)]
    train = split(tmp_path, "train", texts, [0, 1, 1, 0], CLASSES, num_dropped={"text": 2})
    test = split(tmp_path, "test", ["good ", "book"], [0, 1], CLASSES)
    return describe({"train": train, "test": test}, CLASSES, COLUMNS, max_length=8)


def show(description, width=120) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render(description))
    return out.getvalue()


def test_classes_tokens_and_repeats(classes):
    train = classes["splits"]["train"]
    assert [(label["num_rows"], label["share"]) for label in train["labels"]] == [(2, 0.5), (2, 0.5), (0, 0.0)]
    tokens = train["tokens"]
    assert (tokens["num_tokens"], tokens["num_tokens_cut"], tokens["num_truncated"]) == (3 + 4 + 3 + 8, 4, 1)
    assert tokens["share_truncated"] == 0.25
    assert tokens["full_length"]["mean"] == 22 / 4
    assert (tokens["full_length"]["median"], tokens["full_length"]["max"]) == (3.5, 12)
    assert train["repeats"] == {"num_rows": 1, "num_conflicting_texts": 1, "num_conflicting_rows": 2}
    assert train["num_dropped"] == {"text": 2}
    assert classes["overlaps"] == [{"first": "train", "second": "test", "num_rows": 1, "num_rows_of_second": 2}]


def test_warnings_name_conflicts_absent_classes_and_dropped_rows(classes):
    text = "\n".join(classes["warnings"])
    for expected in (
        "1 of 2 rows of test (50.0%)",
        "1 texts occur with different labels",
        "'unused'",
        "2 without text",
    ):
        assert expected in text


def test_windows_are_counted_in_each_split_where_one_has_several_of_a_row(classes):
    assert "windows" not in show(classes)
    classes["splits"]["train"]["num_samples"] = 9
    lines = [line.split() for line in show(classes).splitlines()]
    assert ["windows", "9", "2"] in lines
    assert ["full", "windows", "1", "0"] in lines


def test_the_description_is_plain_json(classes):
    assert json.loads(json.dumps(classes, allow_nan=False)) == classes


def test_texts_of_the_data_are_not_read_as_markup(classes):
    shown = show(classes)
    assert "[red]<script>" in shown
    assert "text: title + body, label: stars" in shown
    assert "at most 8 tokens" in shown


def test_control_characters_of_the_data_are_not_printed(tmp_path):
    task = ClassificationTask(kind="classification", labels=["bad\x1b[2J", "good"])
    samples = split(tmp_path, "tr\x1bain", ["good", "bad film"], [0, 1], task)
    columns = Columns(text="te\x1b[2Jxt", label="stars")
    shown = show(describe({"train": samples}, task, columns, max_length=8))
    assert "\x1b" not in shown
    assert r"bad\x1b[2J" in shown
    assert r"te\x1b[2Jxt" in shown
    assert r"tr\x1bain.csv" in shown


def test_a_split_without_labels_has_empty_cells(tmp_path):
    train = split(tmp_path, "train", ["good", "bad"], [0, 1], CLASSES)
    hidden = split(tmp_path, "hidden", ["book"], None, CLASSES)
    description = describe({"hidden": hidden, "train": train}, CLASSES, COLUMNS, max_length=8)
    assert description["splits"]["hidden"]["labels"] is None
    (line,) = [line for line in show(description).splitlines() if line.startswith("bad")]
    assert line.split() == ["bad", "1", "(50.0%)"]


def test_sets_of_classes_and_rows_without_a_class_are_counted(tmp_path):
    several = MultiLabelTask(kind="multi_label", labels=["praise", "question"])
    train = split(tmp_path, "train", ["good", "bad", "fine"], [[1, 1], [0, 0], [1, 0]], several)
    description = describe({"train": train}, several, COLUMNS, max_length=8)
    assert [label["num_rows"] for label in description["splits"]["train"]["labels"]] == [2, 1]
    assert description["splits"]["train"]["num_without_label"] == 1
    assert "(no label)" in show(description)


def test_targets_have_mean_sd_and_quantiles(tmp_path):
    task = RegressionTask(kind="regression")
    values = [1.0, 2.5, 4.0, 0.5]
    made = split(tmp_path, "train", ["a", "b", "c", "d"], np.asarray(values, dtype=np.float32), task)
    about = describe({"train": made}, task, Columns(text="t", label="y"), max_length=8)["splits"]["train"]
    assert about["labels"] is None
    assert about["target"]["mean"] == pytest.approx(2.0)
    assert about["target"]["sd"] == pytest.approx(statistics.stdev(values))
    assert (about["target"]["min"], about["target"]["median"], about["target"]["max"]) == (0.5, 1.75, 4.0)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_narrow_terminal_shows_the_whole_table(classes, width: int):
    long_name = "data/reviews/2026-11-21/train.parquet"
    classes["splits"]["train"]["source"] = long_name
    lines = show(classes, width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in ("repeated texts", "per sample, 95th percentile", "truncated", "2 (50.0%)", "25.0%", "test.csv"):
        assert word in text
    assert "…" not in text
    if width >= 80:
        assert long_name in text


def test_many_truncated_samples_have_a_warning(tmp_path):
    # [CLS] and [SEP] make 9 and 8 tokens of 7 and 6 words: one of nine is longer than 8, then one of eleven.
    for num_rows, is_warned in ((9, True), (11, False)):
        texts = [" ".join(["film"] * 7), *[" ".join(["film"] * 6)] * (num_rows - 1)]
        train = split(tmp_path, "train", texts, [0] * num_rows, CLASSES)
        warnings = describe({"train": train}, CLASSES, COLUMNS, max_length=8)["warnings"]
        assert (
            any(f"{100 / num_rows:.1f}%" in warning and "data.max_length" in warning for warning in warnings)
            == is_warned
        )


def test_of_many_labels_the_most_frequent_are_shown(tmp_path):
    task = ClassificationTask(kind="classification", labels=[f"c{number}" for number in range(2000)])
    train = split(tmp_path, "train", ["good", "bad", "film"], [1999, 1999, 7], task)
    made = describe({"train": train}, task, COLUMNS, max_length=8)
    lines = show(made).splitlines()
    shown = [line.split() for line in lines if line.startswith("c")]
    assert len(shown) == MOST_LABELS
    assert [line[:2] for line in shown[:2]] == [["c1999", "2"], ["c7", "1"]]
    assert len(made["splits"]["train"]["labels"]) == 2000
    assert max(map(len, made["warnings"])) < 500
