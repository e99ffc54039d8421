"""Texts that `paratune.predict` takes and refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from explained import save_tiny
from raised import raises_code

import paratune
from paratune.api.predict import text_table


@pytest.mark.parametrize("make", [list, tuple, iter, pa.array], ids=["list", "tuple", "iterator", "arrow"])
def test_texts_become_a_column(make: Callable[[list[str | None]], Any]):
    assert text_table(make(["a", None, "😀"]), "review").to_pydict() == {"review": ["a", None, "😀"]}


@pytest.mark.parametrize(("texts", "row"), [(["a", 3], 1), ([("a", "b")], 0), ([{"text": "a"}], 0), (["a\ud800"], 0)])
def test_other_values_than_texts_are_refused(texts: Any, row: int):
    with raises_code("data.wrong_type", row=row):
        text_table(texts, "text")


def test_a_mapping_is_not_read_as_the_names_of_its_columns():
    # Before, the words "text" and "pair" were predicted.
    with raises_code("data.wrong_type", found="dict"):
        text_table({"text": ["a"], "pair": ["b"]}, "text")  # type: ignore[arg-type]


def test_an_unknown_device_is_refused_and_texts_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    folder = save_tiny(tmp_path / "model", "regression").folder
    with raises_code("cli.invalid_value", option="--device", value="tpu"):
        paratune.predict(str(folder), ["good"], device="tpu")  # type: ignore[arg-type]
    assert paratune.predict(str(folder), ["good", "bad"], device="cpu").num_rows == 2
    assert not (tmp_path / "cache").exists()
