"""The order in which cells run: blocks of repeats, each shuffled by the names alone."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import in_order

A, B, C, D = (f"learning_rate-{rate}_seed-{seed}" for rate in ("0.0001", "1e-05") for seed in (41, 42))


def _order(path: Path, more: str = "") -> list[str]:
    path.write_text(path.read_text() + more)
    matrix = read_matrix(path)
    return [cell.name for cell in in_order(cells_of(matrix), matrix.name, matrix.axes)]


def test_the_shuffled_order_is_that_of_hashes_of_names_within_each_seed(matrix_file: Path):
    # `printf m/NAME | sha256sum` begins with: A bfcb, C e28a (seed 41), B a583, D 43ca (seed 42).
    assert _order(matrix_file) == [A, C, D, B]


def test_every_seed_of_every_repeat_is_a_block_with_all_configurations(matrix_file: Path):
    order = _order(matrix_file, "repeats: 2\n")
    blocks = [order[start : start + 2] for start in range(0, 8, 2)]
    assert [sorted(block) for block in blocks] == [[A, C], [B, D], [f"{A}_r2", f"{C}_r2"], [f"{B}_r2", f"{D}_r2"]]


def test_repeats_are_shuffled_each_by_itself(matrix_file: Path):
    order = _order(matrix_file, "repeats: 3\n")
    blocks = [
        [name.removesuffix("_r2").removesuffix("_r3") for name in order[start : start + 4]] for start in (0, 4, 8)
    ]
    assert all(sorted(block) == sorted([A, B, C, D]) for block in blocks)
    assert [name.rpartition("_r")[2] for name in order[4:]] == ["2"] * 4 + ["3"] * 4
    assert len({tuple(block) for block in blocks}) > 1


def test_a_value_more_leaves_the_others_in_their_order(matrix_file: Path):
    before = _order(matrix_file)
    matrix_file.write_text(matrix_file.read_text().replace("[41, 42]", "[40, 41, 42, 43]"))
    assert [name for name in _order(matrix_file) if name in before] == before


def test_a_repeat_is_the_same_run_in_another_folder(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + "repeats: 2\n")
    first, again = cells_of(read_matrix(matrix_file))[:2]
    assert (first.name, again.name) == (A, f"{A}_r2")
    assert (again.record.repeat, again.config.run.name, again.loaded.values["run"]["name"]) == (2, f"{A}_r2", f"{A}_r2")
    assert first.config.run.name == A
    assert again.described().fingerprint == first.described().fingerprint
    assert again.config.run.seed == first.config.run.seed


@pytest.mark.parametrize("repeats", [0, True, "two", 1.5])
def test_odd_repeats(repeats: object, matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + f"repeats: {str(repeats).lower()}\n")
    with raises_code("config.invalid_value", keys=("repeats",), line=11):
        read_matrix(matrix_file)
