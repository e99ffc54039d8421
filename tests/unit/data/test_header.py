"""Files without a header: a row is not lost without a word, and honest headers pass."""

import logging
from pathlib import Path

import pytest
from raised import check_logged, raises_code

from paratune.config.sections import Columns
from paratune.data.columns import TableReader
from paratune.data.guess import guess_options
from paratune.data.read import read_table

TEXTS = [f"text number {number} is here" for number in range(12)]
POLAR = ["pos", "neg"] * 6


def lines(*columns: list[str], first: str | None = None, separator: str = "\t") -> str:
    rows = [separator.join(row) for row in zip(*columns, strict=True)]
    return "\n".join(rows if first is None else [first, *rows]) + "\n"


def numbers(*, start: float = 0, step: float = 1) -> list[str]:
    return [f"{start + step * number:g}" for number in range(12)]


def read(folder: Path, name: str, text: str, label: str, *, require_labels: bool = True) -> TableReader:
    (folder / name).write_text(text, encoding="utf-8")
    table = read_table(str(folder / name))
    columns = Columns(text=next(filter(None, table.column_names)), label=label)
    return TableReader(table, columns, "refuse", name, require_labels=require_labels)


HONEST = {
    "plain": ("a.tsv", lines(TEXTS, POLAR, first="text\tlabel"), "label", 12),
    "a class named label": ("a.tsv", lines(TEXTS, ["label", "other"] * 6, first="text\tlabel"), "label", 12),
    "classes named like a usual name": ("a.tsv", lines(TEXTS, ["topic", "b"] * 6, first="a\ttopic"), "topic", 12),
    "a class that occurs once": ("a.csv", "text,other\n" + lines(TEXTS, ["other", *POLAR[:11]], separator=","),
                                 "other", 12),
    "the only class, text named": ("a.tsv", lines(TEXTS, ["spam"] * 12, first="message\tspam"), "spam", 12),
    "one class": ("a.tsv", lines(TEXTS, ["pos"] * 12, first="message\tverdict"), "verdict", 12),
    "numbers below a word": ("a.tsv", lines(TEXTS, numbers(step=0.5), first="essay\tscore"), "score", 12),
    "classes 0 and 1": ("a.tsv", lines(TEXTS, ["0", "1"] * 6, first="essay\tis_spam"), "is_spam", 12),
    "numbers of pandas": ("a.csv", lines(TEXTS, ["0", "1"] * 6, first="0,1", separator=","), "1", 12),
    "numbers and index of pandas": ("a.csv", lines(numbers(), TEXTS, ["0", "1"] * 6, first=",0,1", separator=","),
                                    "1", 12),
    "years beside the label": ("a.tsv", lines(TEXTS, numbers(start=7), numbers(), POLAR, first="text\t2019\t2020\tx"),
                               "x", 12),
    "ids": ("a.tsv", lines(numbers(), TEXTS, POLAR, first="id\tcomment\tverdict"), "verdict", 12),
    "a sentence as header": ("a.tsv", lines(TEXTS, POLAR, first="What did you like?\tHow was it?"), "How was it?", 12),
    "quoted": ("a.csv", '"text","verdict"\n' + lines(TEXTS, POLAR, separator=","), "verdict", 12),
    "byte order mark": ("a.csv", "\ufeff" + lines(TEXTS, POLAR, first="text,verdict", separator=","), "verdict", 12),
    "semicolons": ("a.csv", lines(TEXTS, POLAR, first="text;verdict", separator=";"), "verdict", 12),
    "words as texts": ("a.tsv", lines(POLAR, ["X", "Y"] * 6, first="word\ttag"), "tag", 12),
    "few rows": ("a.tsv", "text\tverdict\na b\tpos\nc d\tneg\n", "verdict", 2),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "label", "num_rows"), HONEST.values(), ids=HONEST)
def test_an_honest_header_passes_without_a_warning(tmp_path, caplog, name, text, label, num_rows):
    caplog.set_level(logging.WARNING)
    assert read(tmp_path, name, text, label).table.num_rows == num_rows
    assert caplog.records == []


HEADLESS = {
    "two classes": ("a.tsv", lines(TEXTS, POLAR), "pos"),
    "the label first": ("a.tsv", lines(POLAR, TEXTS), "pos"),
    "commas": ("a.csv", lines(TEXTS, POLAR, separator=","), "pos"),
    "semicolons": ("a.csv", lines(TEXTS, POLAR, separator=";"), "pos"),
    "quoted": ("a.csv", "".join(f'"{text}","{label}"\n' for text, label in zip(TEXTS, POLAR, strict=True)), "pos"),
    "byte order mark": ("a.tsv", "\ufeff" + lines(TEXTS, POLAR), "pos"),
    "classes 0 and 1": ("a.tsv", lines(TEXTS, ["1", "0"] * 6), "1"),
    "regression": ("a.tsv", lines(TEXTS, numbers(start=1, step=0.25)), "1"),
    "ids before it": ("a.tsv", lines(numbers(), TEXTS, POLAR), "pos"),
    "pairs": ("a.tsv", lines(TEXTS, TEXTS[::-1], ["A", "B", "C"] * 4), "A"),
    "single words": ("a.tsv", lines([f"word{number}" for number in range(12)], ["NOUN", "VERB"] * 6), "NOUN"),
    "spaces around": ("a.tsv", lines(TEXTS, [" pos", "neg "] * 6), " pos"),
    "a text of one word": ("a.tsv", lines([*TEXTS[:11], "Great"], POLAR), "pos"),
}


@pytest.mark.parametrize(("name", "text", "label"), HEADLESS.values(), ids=HEADLESS)
@pytest.mark.parametrize("require_labels", [True, False])
def test_a_file_without_a_header_is_refused(tmp_path, name, text, label, require_labels):
    with raises_code("data.no_header", name, label, name=label):
        read(tmp_path, name, text, label, require_labels=require_labels)


UNSURE = {
    "one class": ("a.tsv", lines(TEXTS, ["pos"] * 12), "pos"),
    "a class that occurs once below": (
        "a.tsv",
        lines(TEXTS[:5], ["a", "a", "b", "c", "b"]) + "no more words\tb\n",
        "a",
    ),
    "the first text is a word": ("a.tsv", "Great\tpos\n" + lines(TEXTS, POLAR), "pos"),
    "a class as a name": ("a.tsv", lines(TEXTS, ["toxic", "clean"] * 6, first="comment\ttoxic"), "toxic"),
    "a year as a name": ("a.tsv", lines(TEXTS, numbers(), first="text\t2019"), "2019"),
}


@pytest.mark.parametrize(("name", "text", "label"), UNSURE.values(), ids=UNSURE)
def test_weak_evidence_is_a_warning(tmp_path, caplog, name, text, label):
    read(tmp_path, name, text, label)
    check_logged(caplog, "data.no_header", name, label)
    assert len(caplog.records) == 1


def test_config_init_refuses_what_it_would_guess_from(tmp_path):
    (tmp_path / "a.tsv").write_text(lines(TEXTS * 4, POLAR * 4), encoding="utf-8")
    with raises_code("data.no_header", name="pos"):
        guess_options(read_table(str(tmp_path / "a.tsv")), "a.tsv", columns={})


def test_other_formats_have_names_in_any_case(tmp_path, caplog):
    rows = [
        "{" + f'"first text here": "{text}", "pos": "{label}"' + "}" for text, label in zip(TEXTS, POLAR, strict=True)
    ]
    assert read(tmp_path, "a.jsonl", "\n".join(rows), "pos").table.num_rows == 12
    assert caplog.records == []


def test_a_missing_column_of_a_file_that_may_have_no_header(tmp_path):
    with raises_code("data.column_missing", "label", "line 1"):
        read(tmp_path, "a.tsv", lines(TEXTS, POLAR), "label")
