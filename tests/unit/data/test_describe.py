"""The description of `paratune data`, compared with numbers computed by hand."""

import io
import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from tiny import tiny_tokenizer

from paratune.config.sections import Columns, Data
from paratune.config.task_sections import (
    ClassificationTask,
    MaskedLMTask,
    MultiLabelTask,
    MultipleChoiceTask,
    QuestionAnsweringTask,
    RegressionTask,
    TokenClassificationTask,
)
from paratune.data.columns import AnswerSpan, Samples
from paratune.data.describe import MOST_LABELS, describe, render
from paratune.data.encode import TokenizeOptions
from paratune.data.load import Split, samples_fingerprint
from paratune.data.tokens import tokenize

DATA = Data(train="train.csv", columns=Columns(text=["title", "body"], label="stars"))
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
    return describe({"train": train, "test": test}, CLASSES, DATA, tiny_tokenizer(), max_length=8)


def show(description, width=120, *, all_=True) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(*render(description, all_=all_), sep="\n")
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
    assert "windows " not in show(classes)
    classes["splits"]["train"]["num_samples"] = 9
    lines = [line.split() for line in show(classes).splitlines()]
    assert ["windows", "9", "2"] in lines


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
    data = Data(train="t", columns=Columns(text="te\x1b[2Jxt", label="stars"))
    shown = show(describe({"train": samples}, task, data, tiny_tokenizer(), max_length=8))
    assert "\x1b" not in shown
    assert r"bad\x1b[2J" in shown
    assert r"te\x1b[2Jxt" in shown
    assert r"tr\x1bain.csv" in shown


def test_a_split_without_labels_has_empty_cells(tmp_path):
    train = split(tmp_path, "train", ["good", "bad"], [0, 1], CLASSES)
    hidden = split(tmp_path, "hidden", ["book"], None, CLASSES)
    description = describe({"hidden": hidden, "train": train}, CLASSES, DATA, tiny_tokenizer(), max_length=8)
    assert description["splits"]["hidden"]["labels"] is None
    (line,) = [line for line in show(description).splitlines() if line.startswith("label bad")]
    assert line.split() == ["label", "bad", "1", "(50.0%)"]


def test_sets_of_classes_and_rows_without_a_class_are_counted(tmp_path):
    several = MultiLabelTask(kind="multi_label", labels=["praise", "question"])
    train = split(tmp_path, "train", ["good", "bad", "fine"], [[1, 1], [0, 0], [1, 0]], several)
    description = describe({"train": train}, several, DATA, tiny_tokenizer(), max_length=8)
    assert [label["num_rows"] for label in description["splits"]["train"]["labels"]] == [2, 1]
    assert description["splits"]["train"]["num_without_label"] == 1
    assert "(no label)" in show(description)


def test_targets_have_mean_sd_and_quantiles(tmp_path):
    task = RegressionTask(kind="regression")
    values = [1.0, 2.5, 4.0, 0.5]
    made = split(tmp_path, "train", ["a", "b", "c", "d"], np.asarray(values, dtype=np.float32), task)
    described = describe({"train": made}, task, DATA, tiny_tokenizer(), max_length=8)
    about = described["splits"]["train"]
    assert about["labels"] is None
    assert about["target"]["mean"] == pytest.approx(2.0)
    assert about["target"]["sd"] == pytest.approx(statistics.stdev(values))
    assert (about["target"]["min"], about["target"]["median"], about["target"]["max"]) == (0.5, 1.75, 4.0)
    assert "0.5 / 1.75 / 4" in show(described)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_narrow_terminal_shows_the_whole_table(classes, width: int):
    long_name = "data/reviews/2026-11-21/train.parquet"
    classes["splits"]["train"]["source"] = long_name
    lines = show(classes, width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in ("repeated texts", "of a sample, 95th percentile", "truncated", "2 (50.0%)", "25.0%", "test.csv"):
        assert word in text
    assert "…" not in text.partition("Row 0")[0]
    if width >= 80:
        assert long_name in text


def test_many_truncated_samples_have_a_warning(tmp_path):
    # [CLS] and [SEP] make 9 and 8 tokens of 7 and 6 words: one of nine is longer than 8, then one of eleven.
    for num_rows, is_warned in ((9, True), (11, False)):
        texts = [" ".join(["film"] * 7), *[" ".join(["film"] * 6)] * (num_rows - 1)]
        train = split(tmp_path, "train", texts, [0] * num_rows, CLASSES)
        warnings = describe({"train": train}, CLASSES, DATA, tiny_tokenizer(), max_length=8)["warnings"]
        found = [warning for warning in warnings if f"{100 / num_rows:.1f}%" in warning and "task.windows" in warning]
        assert len(found) == is_warned


def test_a_long_label_leaves_room_for_the_numbers(tmp_path):
    task = ClassificationTask(kind="classification", labels=["b" * 100, "good"])
    splits = {name: split(tmp_path, name, ["good", "bad"], [0, 1], task) for name in ("train", "validation", "test")}
    shown = show(describe(splits, task, DATA, tiny_tokenizer(), max_length=8), 80)
    assert shown.count("1 (50.0%)") == 6
    assert shown.count("b") > 100


def test_of_many_labels_the_most_frequent_are_shown(tmp_path):
    task = ClassificationTask(kind="classification", labels=[f"c{number}" for number in range(2000)])
    train = split(tmp_path, "train", ["good", "bad", "film"], [1999, 1999, 7], task)
    made = describe({"train": train}, task, DATA, tiny_tokenizer(), max_length=8)
    lines = show(made, all_=False).splitlines()
    shown = [line.split() for line in lines if line.startswith("label c")]
    assert len(shown) == MOST_LABELS
    assert [line[1:3] for line in shown[:2]] == [["c1999", "2"], ["c7", "1"]]
    assert len(lines) < 50
    assert len(made["splits"]["train"]["labels"]) == 2000
    assert max(map(len, made["warnings"])) < 500


def rows(num_rows: int, **values) -> Samples:
    made = Samples(
        [f"good film {number}" for number in range(num_rows)], None, None, None, np.arange(num_rows), None, {}
    )
    return replace(made, **values)


def example(tmp_path, samples: Samples, task) -> dict:
    store = tokenize(samples, TokenizeOptions(tiny_tokenizer(), 16, cache_dir=tmp_path), task)
    made = Split("train", "t", samples, store, samples_fingerprint(samples, task))
    described = describe({"train": made}, task, DATA, tiny_tokenizer(), max_length=16)
    json.dumps(described, allow_nan=False)
    assert len(show(described, 80).splitlines()) <= 40
    return described["examples"][0]


def test_the_label_of_an_example_is_that_of_its_task(tmp_path):
    one = rows(2, labels=np.array([1, 0]))
    made = example(tmp_path, one, CLASSES)
    assert (made["row"], made["texts"], made["label"]) == (0, {"text": "good film 0"}, "[red]<script>")
    assert made["tokens"] == ["[CLS]", "good", "film", "0", "[SEP]"]
    several = MultiLabelTask(kind="multi_label", labels=["praise", "question"])
    assert example(tmp_path, rows(1, labels=np.array([[1, 1]])), several)["label"] == "praise, question"
    target = rows(2, text_pairs=["bad", "book"], labels=np.array([2.5, 1]))
    made = example(tmp_path, target, RegressionTask(kind="regression"))
    assert (made["label"], made["texts"]["text_pair"]) == ("2.5", "bad")
    choices = rows(1, choices=[("bad", "fine")], labels=np.array([1]))
    made = example(tmp_path, choices, MultipleChoiceTask(kind="multiple_choice"))
    assert (made["label"], made["texts"]["choice 2"]) == ("choice 2", "fine")
    words = rows(1, words=[["good", "film 0"]], tags=[np.array([0, 1])])
    tags = TokenClassificationTask(kind="token_classification", labels=["O", "B-X"])
    assert example(tmp_path, words, tags)["label"] == "good/O film 0/B-X"
    texts = rows(2)
    made = example(tmp_path, texts, MaskedLMTask(kind="mlm"))
    assert (made["label"], made["num_tokens"]) == (None, 9)
    gold = rows(1, text_pairs=["a bad book"], answers=[(AnswerSpan("bad", 2),)])
    task = QuestionAnsweringTask(kind="qa", stride=2)
    made = example(tmp_path, gold, task)
    assert made["label"] == "'bad' at 2"


def test_the_first_row_with_unknown_characters_is_an_example(tmp_path):
    texts = ["good", "bad", "film", "book", "the ☃book naïve", "fine"]
    train = split(tmp_path, "train", texts, [0] * 6, CLASSES)
    examples = describe({"train": train}, CLASSES, DATA, tiny_tokenizer(), max_length=8)["examples"]
    assert [(row["row"], row["unknown"]) for row in examples] == [(0, []), (1, []), (4, ["☃"])]
    assert "'☃'" in show(describe({"train": train}, CLASSES, DATA, tiny_tokenizer(), max_length=8))
