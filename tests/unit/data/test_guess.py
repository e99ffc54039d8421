"""Guesses of `paratune config init`: what a table looks like, and what is written for it."""

from typing import Any

import pyarrow as pa
import pytest
from raised import raises_code

from paratune.data.guess import OptionGuess, example_row, guess_options

TEXTS = [f"this is the sentence number {row}" for row in range(40)]
OTHERS = [f"another one, of the number {row}" for row in range(40)]
QUESTIONS = [f"and is {row}" for row in range(40)]
SCORES = [row % 5 + 0.5 * (row % 2) for row in range(40)]
CODES = [f"G{7 * row}-x" for row in range(40)]
LINKS = [f"https://a.example/page/number/{row}" for row in range(40)]
VOTES = ["not sure", "a bit", "very much", "not"] * 10
LONG_CLASSES = ["office for roads and bridges", "office for schools and parks"] * 20
DEEP = [{"a": {"b": {"text": text, "c": {"mood": row % 2}}}} for row, text in enumerate(TEXTS)]
VOTED = [[{"label": "ab"[row % 2], "by": "x"}] for row in range(40)]
NO_COLUMNS: dict[str, str | None] = {"text": None, "text_pair": None, "label": None}


def guessed(columns: dict[str, list[Any]], task: str | None = None, **named: str) -> OptionGuess:
    return guess_options(pa.table(columns), "x.csv", task=task, columns=NO_COLUMNS | named)


def repeated(*values: Any) -> list[Any]:
    return [values[row % len(values)] for row in range(len(TEXTS))]


SNLI = {
    "gold_label": repeated("a", "b"),
    "sentence1_parse": [f"(S {text})" for text in TEXTS],
    "sentence2_parse": OTHERS,
    "sentence1": TEXTS,
    "sentence2": OTHERS,
}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (repeated("pos", "neg"), {"kind": "classification", "labels": ["neg", "pos"]}),
        (repeated("1", "0"), {"kind": "classification", "labels": [0, 1]}),  # as a CSV has them
        (repeated(1.0, 0.0), {"kind": "classification", "labels": [0, 1]}),
        (repeated(True, False), {"kind": "classification", "labels": ["false", "true"]}),
        (repeated("001", "002"), {"kind": "classification", "labels": ["001", "002"]}),  # codes, not numbers
        (repeated("10", "9", "1"), {"kind": "classification", "labels": [1, 9, 10]}),
        (repeated("a|b", "b", "a"), {"kind": "multi_label", "labels": ["a", "b"]}),
        (repeated("a;b", "b", "a"), {"kind": "multi_label", "labels": ["a", "b"], "separator": ";"}),
        (repeated("a, b", "b", "a"), {"kind": "multi_label", "labels": ["a", "b"], "separator": ","}),
        (repeated("Allergy, other", "Surgery"), {"kind": "classification", "labels": ["Allergy, other", "Surgery"]}),
        (repeated(["a"], ["b", "a"], []), {"kind": "multi_label", "labels": ["a", "b"]}),
        (repeated("0.5", "1", "2"), {"kind": "regression"}),
        ([str(row) for row in range(40)], {"kind": "regression"}),  # 40 whole numbers are no classes
    ],
)
def test_the_task_is_that_of_the_labels(labels: list[Any], expected: dict[str, Any]):
    values = guessed({"text": TEXTS, "label": labels}).values
    assert {key.removeprefix("task."): value for key, value in values.items() if key.startswith("task.")} == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"id": list(range(40)), "Review": TEXTS, "Sentiment": repeated("a", "b")}, ("Review", None, "Sentiment")),
        ({"short": repeated("x y", "z u", "a b"), "long": TEXTS, "label": repeated(0, 1)}, ("long", None, "label")),
        ({"premise": TEXTS, "hypothesis": TEXTS, "label": repeated(0, 1, 2)}, ("premise", "hypothesis", "label")),
        ({"body": TEXTS, "spam": repeated("yes", "no")}, ("body", None, "spam")),  # the only column with few values
        # Codes, links and names of classes are no texts beside texts, also under the names of pairs.
        ({"remark": TEXTS, "by_1": CODES, "by_2": CODES, "mood": repeated(0, 1)}, ("remark", None, "mood")),
        ({"at_1": LINKS, "at_2": LINKS, "remark": TEXTS, "mood": repeated(0, 1)}, ("remark", None, "mood")),
        ({"by_1": VOTES, "by_2": VOTES, "remark": TEXTS, "label": repeated(0, 1)}, ("remark", None, "label")),
        ({"word1": CODES, "word2": CODES, "label": repeated(0, 1)}, ("word1", "word2", "label")),  # there are no others
        ({"query": VOTES, "passage": TEXTS, "label": repeated(0, 1)}, ("query", "passage", "label")),  # few queries
        ({"Q": QUESTIONS, "A": TEXTS, "label": repeated(0, 1)}, ("Q", "A", "label")),
        ({"question": QUESTIONS, "answer": TEXTS, "label": repeated(0, 1)}, ("question", "answer", "label")),
        (
            {"标题": [f"春天来了{row}" for row in range(40)], "url": LINKS, "label": repeated(0, 1)},
            ("标题", None, "label"),
        ),
        # The layout of SNLI: names that contain usual ones are longer.
        (SNLI, ("sentence1", "sentence2", "gold_label")),
        # Without a header, columns are named by number.
        ({"1": TEXTS, "2": OTHERS, "3": SCORES}, ("1", "2", "3")),
        ({"1": repeated("yes", "no"), "2": CODES, "3": TEXTS, "4": OTHERS}, ("3", "4", "1")),
        ({"1": QUESTIONS, "2": TEXTS, "3": repeated(0, 1)}, ("2", None, "3")),  # a title
        ({"1": TEXTS, "2": CODES, "3": repeated(0, 1)}, ("1", None, "3")),
        ({"1": CODES, "2": [f"word{row}" for row in range(40)], "3": repeated(0, 1)}, ("2", None, "3")),
        ({"1": TEXTS, "2": LONG_CLASSES}, ("1", None, "2")),
        ({"1": TEXTS, "2": OTHERS, "3": TEXTS, "4": repeated(0, 1)}, ("1", None, "4")),
    ],
)
def test_columns_have_usual_names_or_fitting_values(columns: dict[str, list[Any]], expected: tuple[str | None, ...]):
    values = guessed(columns).values
    assert tuple(values.get(f"data.columns.{key}") for key in ("text", "text_pair", "label")) == expected


def test_the_first_text_belongs_to_the_second_one_that_is_named():
    assert guessed(SNLI, text_pair="sentence2").values["data.columns.text"] == "sentence1"


def test_named_columns_and_tasks_are_not_guessed():
    columns = {"a": TEXTS, "b": TEXTS, "c": repeated("1", "2", "3")}
    guess = guessed(columns, "ordinal", text="b", label="c")
    assert guess.values == {
        "task.kind": "ordinal",
        "task.labels": [1, 2, 3],
        "evaluate.best": "qwk",
        "data.columns.text": "b",
        "data.columns.label": "c",
        "data.split.validation": 0.2,
        "data.split.test": 0.2,
        "data.split.stratify": True,
    }
    assert "task.kind" not in guess.reasons


def test_questions_and_texts_alone():
    answers = [{"text": ["this"], "answer_start": [0]}] * 40
    guess = guessed({"question": TEXTS, "context": TEXTS, "answers": answers, "id": TEXTS})
    assert (guess.kind, guess.values["data.split.group_by"]) == ("qa", "context")
    assert (guess.values["data.columns.label"], guess.values["data.columns.id"]) == ("answers", "id")
    assert guessed({"text": TEXTS}).kind == "mlm"


def test_labels_of_the_validation_file_are_labels_too():
    validation = pa.table({"text": TEXTS[:2], "label": ["c", "a"]})
    guess = guess_options(
        pa.table({"text": TEXTS, "label": repeated("b", "a")}),
        "x.csv",
        columns=NO_COLUMNS,
        others=[validation],
        separate_validation=True,
    )
    assert guess.values["task.labels"] == ["a", "b", "c"]
    assert not any(key.startswith("data.split") for key in guess.values)


@pytest.mark.parametrize(("num_positive", "best"), [(17, "accuracy"), (4, "f1_macro")])
def test_the_metric_follows_the_largest_class(num_positive: int, best: str):
    # 23 of 40 are 57%, 36 of 40 are 90%; the border is 60%.
    labels = ["pos"] * num_positive + ["neg"] * (40 - num_positive)
    assert guessed({"text": TEXTS, "label": labels}).values["evaluate.best"] == best


WORDS = [["Ana", "met", f"Rui {row}"] for row in range(40)]
SPANS = [[{"start": 0, "end": 4, "label": "PER"}]] * 40


@pytest.mark.parametrize(
    ("columns", "task", "expected"),
    [
        ({"tokens": WORDS, "tags": [["B-PER", "O", "I-LOC"]] * 40}, None, ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]),
        ({"w": WORDS, "pos": [["NOUN", "VERB", "NOUN"]] * 40}, "token_classification", ["NOUN", "VERB"]),
        ({"w": WORDS, "ner": [[0, 10, 2]] * 40}, None, ["0", "2", "10"]),
        ({"text": TEXTS, "entities": SPANS}, None, ["O", "B-PER", "I-PER"]),
    ],
)
def test_tags_of_words_and_spans_of_characters(columns: dict[str, list[Any]], task: str | None, expected: list[str]):
    guess = guessed(columns, task)
    assert (guess.kind, guess.values["task.labels"]) == ("token_classification", expected)
    assert [guess.values[f"data.columns.{key}"] for key in ("text", "label")] == [*columns]
    has_types = "O" in expected
    assert (guess.values.get("task.scheme"), guess.values["evaluate.best"]) == (
        (None, "f1") if has_types else ("none", "accuracy")
    )


@pytest.mark.parametrize("other", [[[0, 0, 8, 8]] * 3, [{"id": "a"}] * 3])
def test_lists_of_boxes_and_objects_are_no_tags(other: list[Any]):
    guess = guessed({"tokens": WORDS, "other": [other] * 40, "tags": [["B-PER", "O", "O"]] * 40})
    assert (guess.kind, guess.values["data.columns.label"]) == ("token_classification", "tags")


@pytest.mark.parametrize(
    ("columns", "task", "expected"),
    [
        ({"query": TEXTS, "passage": OTHERS}, None, {}),
        ({"anchor": TEXTS, "positive": OTHERS, "negative": TEXTS}, None, {"negative": "negative"}),
        ({"text_a": TEXTS, "text_b": OTHERS, "label": repeated(0, 1)}, "embedding", {"loss": "contrastive"}),
        ({"title": TEXTS, "abstract": OTHERS}, "embedding", {}),
        ({"#1 s": TEXTS, "#2 s": OTHERS, "score": SCORES}, "embedding", {"loss": "cosine_similarity"}),
    ],
)
def test_pairs_for_embeddings(columns: dict[str, list[Any]], task: str | None, expected: dict[str, str]):
    values = guessed(columns, task).values
    assert values["task.kind"] == "embedding"
    assert [values[f"data.columns.{key}"] for key in ("text", "text_pair")] == [*columns][:2]
    assert values.get("task.loss") == expected.get("loss")
    assert values.get("data.columns.label") == ([*columns][2] if "loss" in expected else None)
    assert values.get("data.columns.negative") == expected.get("negative")


@pytest.mark.parametrize(
    ("columns", "named", "expected", "doubt"),
    [
        ({"label": repeated(1, 2, 3)}, {}, "classification", "--task ordinal"),
        ({"label": repeated("a;b", "b", "a")}, {}, "multi_label", "--task classification"),
        ({"title": OTHERS, "label": repeated(0, 1)}, {}, "classification", "--text text,title, or --text-pair title"),
        ({"id": CODES, "url": LINKS, "label": repeated(0, 1)}, {}, "classification", ""),
        ({"heading": QUESTIONS, "label": repeated(0, 1)}, {}, "classification", "--text-pair heading"),
        (
            {"text_pair": OTHERS, "context": TEXTS, "note": OTHERS, "label": repeated(0, 1)},
            {},
            "classification",
            "context, note",
        ),
        ({"label": repeated(0, 1), "mood": repeated("x", "y")}, {}, "classification", "--label mood"),
        ({"mood": repeated("x", "y"), "length": SCORES}, {}, "classification", "--label length"),
        ({"a": repeated(0, 1), "b": repeated(1, 1, 0), "c": repeated(1, 0)}, {}, "multi_label", "--label a"),
        ({"a": repeated(0, 1), "b": repeated(1, 1, 0)}, {"label": "a,b"}, "multi_label", ""),
        ({"price": SCORES}, {}, "regression", ""),
        # Names are quoted for a shell.
        ({"title (en)": OTHERS, "label": repeated(0, 1)}, {}, "classification", "--text 'text,title (en)', or"),
        ({"title (en)": OTHERS, "label": repeated(0, 1)}, {}, "classification", "--text-pair 'title (en)': "),
        ({"label": repeated(0, 1), "mood?": repeated("x", "y")}, {}, "classification", "--label 'mood?' ("),
        # Of a pair, the first text is named.
        ({"text_pair": OTHERS, "label": repeated(0, 1)}, {"text": "text"}, "classification", "--text-pair text_pair"),
        # A label that is named makes no embedding of a pair.
        ({"text_pair": OTHERS, "likeness": SCORES}, {"label": "likeness"}, "regression", "--task embedding"),
        (
            {"text_pair": OTHERS, "likeness": SCORES},
            {"text": "text", "text_pair": "text_pair"},
            "regression",
            "--task embedding",
        ),
        ({"text_pair": OTHERS, "kind": repeated("x", "y")}, {"label": "kind"}, "classification", ""),
        ({"other": OTHERS, "label": repeated(0, 1)}, {"text": "text,other"}, "classification", ""),
    ],
)
def test_other_possibilities_are_named(columns: dict[str, list[Any]], named: dict[str, str], expected: str, doubt: str):
    guess = guessed({"text": TEXTS} | columns, **named)
    assert guess.kind == expected
    assert any(doubt in line for line in guess.doubts) if doubt else guess.doubts == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 5, 2.5, 3.1] * 10, [0, 5]),
        (["0,0", "7,5"] * 20, None),  # a comma is no decimal point in a file with commas
        ([1.5, 2, 9] * 13 + [9], None),  # a whole number is the end of a scale
        ([row * 1.0 for row in range(40)], None),  # the ends of an amount occur once
    ],
)
def test_a_scale_has_a_range(labels: list[Any], expected: list[int] | None):
    guess = guessed({"text": TEXTS, "grade": labels}, "regression")
    assert guess.values.get("task.range") == expected


@pytest.mark.parametrize(
    ("columns", "named", "expected"),
    [
        ({"doc": DEEP}, {}, ("doc.a.b.text", "doc.a.b.c.mood")),
        ({"doc": DEEP}, {"label": "doc.a.b.c.mood"}, ("doc.a.b.text", "doc.a.b.c.mood")),
        ({"text": TEXTS, "votes": VOTED}, {"label": "votes.label"}, ("text", "votes.label")),
        (
            {"doc": [{"text": TEXTS[0], "votes": vote} for vote in VOTED]},
            {"label": "doc.votes.label"},
            ("doc.text", "doc.votes.label"),
        ),
    ],
)
def test_parts_have_any_depth(columns: dict[str, list[Any]], named: dict[str, str], expected: tuple[str, str]):
    table = pa.table(columns)
    values = guess_options(table, "x", columns=NO_COLUMNS | named, others=[table]).values
    assert tuple(values[f"data.columns.{key}"] for key in ("text", "label")) == expected
    assert values["task.labels"] in ([0, 1], ["a", "b"])
    assert [*example_row(table, values)] == ["data.columns.text", "data.columns.label"]


def test_parts_of_objects_are_columns():
    guess = guessed(
        {"review": [{"body": text, "stars": row % 2} for row, text in enumerate(TEXTS)]}, label="review.stars"
    )
    assert [guess.values[f"data.columns.{key}"] for key in ("text", "label")] == ["review.body", "review.stars"]


@pytest.mark.parametrize(
    ("columns", "named", "code"),
    [
        ({"text": TEXTS, "label": repeated("a")}, {}, "data.one_class"),
        ({"text": TEXTS, "label": [text.upper() for text in TEXTS]}, {}, "data.too_many_values"),
        ({"text": TEXTS, "a": repeated(0, 1), "b": repeated(0, 1)}, {}, "data.label_column_unknown"),
        ({"text": TEXTS, "label": repeated(0, 1)}, {"label": "labl"}, "data.column_missing"),
        ({"n": list(range(40)), "label": repeated(0, 1)}, {}, "data.wrong_type"),
        ({"text": TEXTS, "label": [None] * 40}, {}, "data.value_missing"),
        ({"remark": TEXTS, "mood": repeated("sad")}, {}, "data.one_class"),
        ({"text": TEXTS, "votes": VOTED}, {}, "data.label_column_unknown"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(columns: dict[str, list[Any]], named: dict[str, str], code: str):
    with raises_code(code, "x.csv"):
        guessed(columns, **named)


@pytest.mark.parametrize(
    ("columns", "code", "values"),
    [
        ({"remark": TEXTS, "mood": repeated("sad")}, "data.one_class", ["mood has 'sad'"]),
        ({"text": TEXTS, "label": repeated("sad")}, "data.one_class", ["'sad'"]),
        ({"text": [0.25] * 40, "label": repeated(0, 1)}, "data.wrong_type", ["text: 0.25", "label: 0"]),
        ({"text": ["0.25"] * 40}, "data.wrong_type", ["text: '0.25'"]),
        ({"box": [[1, 2]] * 40, "n": [None] * 40, "label": repeated(0, 1)}, "data.wrong_type", ["[1, 2]", "n: empty"]),
        ({"text": TEXTS, "votes": VOTED}, "data.label_column_unknown", ["'votes.label'", "'votes.by'"]),
        # Layouts like SQuAD's, with several questions in a row.
        ({"story": TEXTS, "qas": [[{"query_text": "x"}]] * 40}, "data.label_column_unknown", ["qas", "query_text"]),
        ({"story": TEXTS, "questions": [[{"input": "x"}]] * 40}, "data.label_column_unknown", ["questions", "input"]),
        ({"version": ["1"], "items": [[{"text": "x"}] * 2]}, "data.label_column_unknown", ["items", "list alone"]),
    ],
)
def test_an_error_shows_what_was_found(columns: dict[str, list[Any]], code: str, values: list[str]):
    with raises_code(code, *values):
        guessed(columns)


def test_possible_labels_are_ordered_by_likeness_and_counted():
    others = {f"place_{row}": repeated(*"abcd"[: 2 + row % 3]) for row in range(6)}
    with raises_code(
        "data.label_column_unknown", "possible: --label user_stars (4 ", "), --label place_0 (2 ", "and 2 more"
    ):
        guessed({"text": TEXTS, **others, "user_stars": repeated(1, 2, 3, 4)})


def test_questions_in_lists_are_named_for_the_task_qa():
    with raises_code("data.column_missing", "qas", "answer_start"):
        guessed({"context_text": TEXTS, "qas": [[{"query_text": "x", "answers": ["y"]}]] * 40}, "qa")


@pytest.mark.parametrize(
    ("columns", "task", "choices"),
    [
        ({"question": TEXTS, "a": TEXTS, "b": TEXTS, "c": TEXTS, "answer": repeated("A", "C")}, None, ["a", "b", "c"]),
        ({"question": TEXTS, "choices": [["x", "y"]] * 40, "answer": repeated(0, 1)}, None, "choices"),
        # The layout of ARC and CommonsenseQA.
        (
            {
                "question": TEXTS,
                "choices": [{"text": ["x", "y"], "label": ["A", "B"]}] * 40,
                "answer": repeated("A", "B"),
            },
            None,
            "choices.text",
        ),
        (
            {"question": TEXTS, "ending0": TEXTS, "ending1": TEXTS, "label": repeated(0, 1)},
            None,
            ["ending0", "ending1"],
        ),
        ({"text": TEXTS, "A": TEXTS, "B": TEXTS, "label": repeated(0, 1)}, "multiple_choice", ["A", "B"]),
        ({"text": TEXTS, "A": TEXTS, "B": TEXTS, "label": repeated(0, 1)}, None, None),
    ],
)
def test_choices_have_usual_names(columns: dict[str, list[Any]], task: str | None, choices: Any):
    values = guessed(columns, task).values
    assert values.get("data.columns.choices") == choices
    assert (values["task.kind"] == "multiple_choice") == (choices is not None)
    assert values["data.columns.label"] in columns
    assert values["data.columns.text"] in ("question", "text")


def test_choices_without_usual_names_are_refused():
    with raises_code("data.column_missing"):
        guessed({"text": TEXTS, "first": TEXTS, "label": repeated(0, 1)}, "multiple_choice")
