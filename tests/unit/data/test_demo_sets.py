"""The data sets that come with paratune: what their script makes, and what `config init` finds in them."""

import demo_sets
import pytest
from raised import raises_code

from paratune.config.sources import DEMO, demo_file
from paratune.corpus.inputs import find_files
from paratune.data.guess import guess_options
from paratune.data.read import read_table

GUESSES = {
    "demo:pairs": ("classification", "text_a", "text_b", "label"),
    "demo:words": ("token_classification", "tokens", None, "tags"),
    "demo:questions": ("qa", "question", "context", "answers"),
    "demo:choices": ("multiple_choice", "question", None, "answer"),
    "demo:texts": ("mlm", "text", None, None),
}
NO_COLUMNS = {"text": None, "text_pair": None, "label": None}


def test_the_files_are_those_of_their_script():
    assert {name: (demo_sets.FOLDER / name).read_text(encoding="utf-8") for name in demo_sets.SETS} == {
        name: make() for name, make in demo_sets.SETS.items()
    }


@pytest.mark.parametrize("source", GUESSES)
def test_a_set_has_200_rows_and_its_task_is_found(source: str):
    table = read_table(source)
    assert table.num_rows == 200
    guess = guess_options(table, source, columns=NO_COLUMNS)
    columns = {f"data.columns.{key}": guess.values.get(f"data.columns.{key}") for key in NO_COLUMNS}
    assert (guess.kind, *columns.values()) == GUESSES[source]


def test_pairs_are_paraphrases_from_a_score_of_4():
    rows = read_table("demo:pairs").to_pylist()
    assert {(row["score"], row["label"]) for row in rows} == {
        *((score, "no") for score in "0123"),
        *((score, "yes") for score in "45"),
    }
    assert sum(row["label"] == "yes" for row in rows) == 100


def test_every_answer_is_at_its_place():
    for row in read_table("demo:questions").to_pylist():
        (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
        assert row["context"][start : start + len(text)] == text


def test_an_unknown_name_is_an_error_with_all_names():
    with raises_code("data.not_found", "demo:pair", *(f"demo:{name}" for name in DEMO if name != "captures")):
        demo_file("demo:pair")


def test_captures_are_no_rows_and_rows_are_no_captures():
    with raises_code("data.not_found", "demo:captures", "demo:sentences"):
        read_table("demo:captures")
    with raises_code("data.not_found", "demo:sentences", "demo:captures"):
        find_files(["demo:sentences"], "index.warcs")
