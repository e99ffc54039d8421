"""Text of runs made harmless for each output."""

import csv

import pytest

from paratune.reports.rows import results_csv
from paratune.reports.text import escape, shorten, shorten_all


@pytest.mark.parametrize(("width", "expected"), [(7, "abcdefg"), (6, "abc…fg"), (5, "ab…fg"), (3, "a…g")])
def test_shorten_keeps_both_ends(width, expected):
    assert shorten("abcdefg", width) == expected


def test_names_that_differ_stay_different_when_shortened():
    names = ["learning_rate-1e-05_seed-1", "learning_rate-0.001_seed-1"]
    assert shorten_all(names, 16) == ["…1e-05_seed-1", "…0.001_seed-1"]
    assert shorten_all(["single", "a_long_name_of_a_run"], 8) == ["single", "a_lo…run"]


def test_markup_and_control_characters_are_escaped():
    assert escape('<b title="x">\x1b') == "&lt;b title=&quot;x&quot;&gt;\\x1b"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_a_text_of_a_csv_file_is_never_a_formula(start):
    (_, (cell,)) = csv.reader(results_csv([{"a": f"{start}cmd|'/c calc'!A0"}]).splitlines())
    assert cell.startswith("'")


def test_csv_has_other_texts_and_numbers_as_they_are():
    assert results_csv([{"a": "run-a", "b": -1.5}]) == "a,b\nrun-a,-1.5\n"
