import random
from pathlib import Path

import pytest
from corpus_documents import runner
from corpus_work import letters

from paratune.corpus.repeated import find_repeated, repeated_rows


def found_in(folder, inputs, workers=1, **options):
    find_repeated(folder, inputs, letters, settings=1, source=inputs, run=runner(workers), **options)
    return [repeated_rows(folder, number) for number in range(len(inputs))]


def test_a_repeated_key_names_the_first_of_all_inputs(tmp_path):
    # "." has no key. c is twice in the second input itself and first in the first one; e is twice in the second.
    assert found_in(tmp_path, ["abc.", "xcc.ee", "", "a.e"]) == [
        {},
        {1: (0, 2), 2: (0, 2), 5: (1, 4)},
        {},
        {0: (0, 0), 2: (1, 4)},
    ]


@pytest.mark.parametrize("per_span", [20, 90, 10_000])
def test_the_number_of_spans_does_not_change_the_result(tmp_path, per_span):
    chance = random.Random(1)
    inputs = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyzäöü.", k=50)) for _ in range(5)]
    expected, first = [], {}
    for shard, text in enumerate(inputs):
        again = {}
        for row, letter in enumerate(text):
            if letter != "." and first.setdefault(letter, (shard, row)) != (shard, row):
                again[row] = first[letter]
        expected.append(again)
    assert found_in(tmp_path, inputs, per_span=per_span) == expected


def test_workers_change_no_file(tmp_path):
    inputs = ["abcab", "bcd", "dea"]
    for workers in (1, 2):
        found_in(tmp_path / str(workers), inputs, workers, per_span=4)
    files = [
        {path.relative_to(tmp_path / folder): path.read_bytes() for path in (tmp_path / folder).rglob("*.*")}
        for folder in ("1", "2")
    ]
    assert files[0] == files[1]
    assert Path("ranges/run-00002-000.bin") in files[0]


def test_other_inputs_replace_earlier_results(tmp_path):
    assert found_in(tmp_path, ["ab", "a"]) == [{}, {0: (0, 0)}]
    assert found_in(tmp_path, ["ab", "b"]) == [{}, {0: (0, 1)}]
