"""Questions with choices: reading, formats of labels, and the tokens of each choice."""

import json

import numpy as np
import pyarrow as pa
import pytest
from raised import raises_code
from tiny import tiny_tokenizer

from paratune.config.sections import Columns
from paratune.config.task_sections import MultipleChoiceTask
from paratune.data.columns import TableReader
from paratune.data.duplicates import repeats
from paratune.data.encode import TokenizeOptions
from paratune.data.selection import select_choices
from paratune.data.tokens import tokenize

QUESTIONS = ["zoe was", "the film was", "it was"]
CHOICES = [["good", "bad", "fine", "very good"], ["bad", "good"], ["fine", "bad", "good"]]


def select(labels, *, choices=CHOICES, as_lists=False, task=None, missing="refuse", questions=QUESTIONS, **columns):
    task = MultipleChoiceTask(kind="multiple_choice", label_format=task)
    values = {"question": questions, "answer": labels}
    if as_lists:
        values["options"] = choices
    else:
        values |= {
            name: [row[place] if place < len(row) else None for row in choices] for place, name in enumerate("wxyz")
        }
    values |= {name: pa.array([value] * len(questions)) for name, value in columns.items()}
    names = Columns(
        text="question", choices="options" if as_lists else list("wxyz"), label="answer",
        text_pair="start" if "start" in columns else None, separator=" ",
    )  # fmt: skip
    return select_choices(TableReader(pa.table(values), names, missing, "t"), task)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([3, 0, 2], "index"),
        (["3", "0", "2"], "index"),
        ([4, 1, 3], "number"),
        (["D", "A", "C"], "letter"),
        (["d", "a", "c"], "letter"),
        (["z", "w", "y"], "name"),
        (["very good", "bad", "good"], "text"),
    ],
)
def test_the_format_of_labels_is_found(labels, expected):
    samples, found = select(labels)
    assert found == expected
    assert samples.labels.tolist() == [3, 0, 2]
    assert samples.choices == [tuple(row) for row in CHOICES]


def test_labels_with_several_meanings_need_the_option():
    with raises_code("data.label_unfit", formats=["index", "number"]):
        select([1, 1, 1])
    assert select([1, 1, 1], task="number")[0].labels.tolist() == [0, 0, 0]


def test_texts_with_a_decimal_point_are_no_places():
    choices = [["1.0", "2.0", "3.0"], ["4.0", "1.0", "2.0"], ["0.0", "1.0", "5.0"]]
    samples, found = select(["2.0", "1.0", "1.0"], choices=choices)
    assert (found, samples.labels.tolist()) == ("text", [1, 1, 1])


def test_labels_that_are_no_choice_are_shown():
    with raises_code("data.label_unfit", value="E", format="letter", rows=[2]):
        select(["A", "B", "E"])
    with raises_code("data.label_unfit", value=2, format="index", rows=[1]):
        select([0, 2, 0], task="index")


def test_a_list_column_has_the_same_choices():
    samples, found = select([3, 0, 2], as_lists=True)
    assert (samples.choices, found) == ([tuple(row) for row in CHOICES], "index")
    with raises_code("data.wrong_type", name="options"):
        select([0, 0, 0], as_lists=True, choices=["good, bad"] * 3)


@pytest.mark.parametrize("broken", [["good"], [None, "bad", "good"], ["bad", " ", "good"], None])
def test_rows_without_two_choices_are_refused_or_dropped(broken):
    choices = [CHOICES[0], broken or [], CHOICES[2]]
    with raises_code("data.value_missing"):
        select([3, 0, 2], choices=choices, task="index")
    samples, _ = select([3, 0, 2], choices=choices, task="index", missing="drop")
    assert samples.rows.tolist() == [0, 2]
    assert samples.num_dropped == {"choices": 1}


@pytest.mark.parametrize("start", [None, "it was"])
def test_tokens_are_those_of_pairs_of_question_and_choice(start):
    samples, _ = select([3, 0, 2], **({} if start is None else {"start": start}))
    tokenizer, seen = tiny_tokenizer(), []
    options = TokenizeOptions(
        tokenizer,
        12,
        need_token_type_ids=True,
        is_cached=False,
        progress=lambda done, total: seen.append((done, total)),
    )
    store = tokenize(samples, options, MultipleChoiceTask(kind="multiple_choice"))
    assert store.num_sequences.tolist() == [4, 2, 3]
    assert seen == [(3, 3)]
    pairs = [
        (q, choice if start is None else f"{start} {choice}")
        for q, row in zip(QUESTIONS, CHOICES, strict=True)
        for choice in row
    ]
    theirs = tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=12)
    begins, ends = store.offsets[:-1], store.offsets[1:]
    assert [store.tokens[b:e].tolist() for b, e in zip(begins, ends, strict=True)] == theirs["input_ids"]
    assert [store.type_ids[b:e].tolist() for b, e in zip(begins, ends, strict=True)] == theirs["token_type_ids"]


def test_the_same_question_with_other_choices_is_another_sample():
    samples, _ = select([3, 0, 2], questions=["zoe was"] * 3)
    assert repeats(samples).num_rows == 0
    same, _ = select([1, 0, 1], questions=["zoe was"] * 3, choices=[["good", "bad"]] * 3)
    assert (repeats(same).num_rows, repeats(same).num_conflicting_texts) == (2, 1)
    assert json.loads(json.dumps(samples.choices)) == CHOICES
    assert np.array_equal(samples.take(np.array([1])).labels, [0])
