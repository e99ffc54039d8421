"""Files of published figures and claims: what is read, and what is refused."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.records.sweep import ComparedPair, PublishedClaim, PublishedFigure, read_sweep, write_sweep
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import plan_of

FILE = """\
source: Somebody, 2020
matrices:
  m:
    where: table 1
    figures:
      - {values: {learning_rate: 1e-4}, time: 2 min, accuracy: 91.5%}
      - {values: {train.learning_rate: 1e-5}, memory: 1.5 GB, where: page 3}
    claims:
      - {claim: No time is saved, kind: not_less, measure: time, by: 5%,
         of: {learning_rate: [1e-5]}, than: {learning_rate: 1e-4}}
"""


@pytest.fixture
def published_file(matrix_file: Path) -> Path:
    matrix_file.write_text("published: published.yaml\n" + matrix_file.read_text())
    path = matrix_file.with_name("published.yaml")
    path.write_text(FILE)
    return path


def test_figures_and_claims_with_their_places(matrix_file: Path, published_file: Path):
    published = read_matrix(matrix_file).record.published

    assert published is not None
    first, second = {"learning_rate": "learning_rate-0.0001"}, {"learning_rate": "learning_rate-1e-05"}
    assert published.source == "Somebody, 2020"
    assert published.figures == (
        PublishedFigure(first, "time", 2.0, "min", "table 1"),
        PublishedFigure(first, "accuracy", 91.5, "%", "table 1"),
        PublishedFigure(second, "memory", 1.5, "GB", "page 3"),
    )
    pair = ComparedPair(of=second, than=first)
    claim = PublishedClaim("No time is saved", "not_less", "time", 0.05, (pair,), "table 1")
    assert published.claims == (claim,)


def test_the_record_of_the_matrix_holds_them(matrix_file: Path, published_file: Path, tmp_path: Path):
    matrix = read_matrix(matrix_file)
    record = plan_of(matrix, cells_of(matrix, ["model.name=demo:minilm"]), ["paratune"]).record

    write_sweep(tmp_path, record)

    assert read_sweep(tmp_path).published == matrix.record.published


def test_a_value_that_is_a_list_can_be_named(matrix_file: Path, published_file: Path):
    text = matrix_file.read_text()
    matrix_file.write_text(text.replace("axes:\n", "axes:\n  data.train: [[a.csv, b.csv], [c.csv]]\n", 1))
    published_file.write_text(FILE.replace("{learning_rate: 1e-4}", "{learning_rate: 1e-4, train: [a.csv, b.csv]}"))
    published = read_matrix(matrix_file).record.published
    assert published is not None
    names = read_matrix(matrix_file).axes[0].values
    assert names[published.figures[0].values["train"]] == "[a.csv, b.csv]"


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("  m:\n", "  other:\n", "published.invalid", 2),
        ("learning_rate: 1e-4", "learning_rat: 1e-4", "published.invalid", 6),
        ("{learning_rate: 1e-4}", "{\n        train.learning_rate: 3}", "published.invalid", 7),
        ("{learning_rate: 1e-4}", "{\n        seed: 41}", "published.invalid", 7),
        ("learning_rate: 1e-4", "learning_rate: 3", "published.invalid", 6),
        ("learning_rate: 1e-4", "seed: 41", "published.invalid", 6),
        ("accuracy: 91.5%", "acuracy: 91.5%", "config.unknown_key", 6),
        ("time: 2 min", "time: 2 GB", "published.invalid", 6),
        ("time: 2 min", "time: .nan", "published.invalid", 6),
        ("time: 2 min", "time: 2", "published.invalid", 6),
        ("source: Somebody, 2020\n", "", "config.required", 1),
        ("kind: not_less", "kind: faster", "config.invalid_value", 9),
        ("measure: time, by", "measure: accuracy, by", "published.invalid", 9),
        ("measure: time, by", "measure: state_memory, by", "published.invalid", 9),
        ("by: 5%", "by: 120%", "config.invalid_value", 9),
        ("by: 5%,", "", "config.invalid_value", 9),
        ("kind: not_less, measure: time, by: 5%", "kind: equal, measure: accuracy, by: 1%", "config.invalid_value", 9),
        ("of: {learning_rate: [1e-5]}", "of: {rate: [1e-5]}", "published.invalid", 10),
        ("of: {learning_rate: [1e-5]}", "of: {learning_rate: []}", "published.invalid", 10),
        (", than: {learning_rate: 1e-4}", "", "config.required", 9),
        ("of: {learning_rate: [1e-5]}", "of: {learning_rate: [1e-5, 1e-4]}", "published.invalid", 9),
        ("figures:", "figures: 3\n    figure:", "config.invalid_value", 5),
        ("    figures:\n", "    figures: []\n    figure:\n", "config.unknown_key", 6),
        ("- {values: {learning_rate: 1e-4}, time: 2 min, accuracy: 91.5%}", "- {}", "config.required", 6),
        ("where: page 3", "where: [3]", "config.invalid_value", 7),
        ("where: page 3", "where: 0", "config.invalid_value", 7),
        ("where: table 1", "table: 1", "config.unknown_key", 4),
        (FILE, "- 1\n", "config.invalid_value", 1),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(
    matrix_file: Path, published_file: Path, old: str, new: str, code: str, line: int
):
    assert old in FILE
    published_file.write_text(FILE.replace(old, new))

    with raises_code(code, file="published.yaml", line=line):
        read_matrix(matrix_file)


def test_a_file_that_is_not_there(matrix_file: Path, published_file: Path):
    published_file.unlink()

    with raises_code("config.file_unreadable", "published.yaml", line=1):
        read_matrix(matrix_file)
