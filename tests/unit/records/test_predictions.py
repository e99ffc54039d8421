import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from raised import raises_code

from paratune.records import predictions
from paratune.records.predictions import (
    NumberScale,
    prediction_columns,
    write_predictions,
    write_table,
)

LOGITS = np.array([[0.0, np.log(3.0)], [2.0, 2.0], [1000.0, -1000.0]], dtype=np.float32)


def test_scores_are_softmax_and_the_prediction_is_the_largest():
    columns = prediction_columns(LOGITS, ["no", "yes"])
    # e^0 / (e^0 + 3) = 1/4; equal logits share; a thousand does not overflow.
    np.testing.assert_allclose(columns["score_0"], [0.25, 0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(columns["score_1"], [0.75, 0.5, 0.0], rtol=1e-6)
    assert columns["prediction"] == ["yes", "no", "no"]
    assert columns["score_0"].dtype == np.float32


def test_softmax_is_that_of_torch():
    outputs = np.random.default_rng(0).normal(0, 5, (40, 7)).astype(np.float32)
    columns = prediction_columns(outputs, [str(index) for index in range(7)])
    ours = np.stack([columns[f"score_{index}"] for index in range(7)], axis=1)
    np.testing.assert_allclose(ours, torch.softmax(torch.from_numpy(outputs), 1).numpy(), rtol=1e-5, atol=1e-8)


def test_scores_may_have_the_names_of_the_classes():
    assert list(prediction_columns(LOGITS, ["no", "yes"], by_name=True)) == ["prediction", "score_no", "score_yes"]


def test_the_file_of_a_run_has_row_label_prediction_and_scores(tmp_path: Path):
    write_predictions(
        tmp_path,
        "test",
        rows=np.array([4, 7, 9]),
        ids=["a", 12, None],
        columns={"label": ["yes", "no", "yes"], **prediction_columns(LOGITS, ["no", "yes"])},
    )
    table = pyarrow.parquet.read_table(tmp_path / "predictions.test.parquet")
    assert table.column_names == ["index", "id", "label", "prediction", "score_0", "score_1"]
    assert table["index"].to_pylist() == [4, 7, 9]
    assert table["id"].to_pylist() == ["a", "12", "None"]
    assert table["label"].to_pylist() == ["yes", "no", "yes"]
    assert table.schema.field("score_0").type == pa.float32()


def test_the_file_of_a_regression_has_numbers_and_no_id_where_there_is_none(tmp_path: Path):
    write_predictions(
        tmp_path,
        "validation",
        rows=np.arange(2),
        ids=None,
        columns={"label": np.array([1.5, 2.5]), "prediction": np.array([1.0, 2.0])},
    )
    table = pyarrow.parquet.read_table(tmp_path / "predictions.validation.parquet")
    assert table.to_pydict() == {"index": [0, 1], "label": [1.5, 2.5], "prediction": [1.0, 2.0]}


def test_an_ordinal_class_is_the_number_of_thresholds_passed():
    # Probabilities of being above the first and the second class: 3/4 and 1/4; then 1/4 and 3/4, which contradict.
    logits = np.array([[np.log(3), -np.log(3)], [-np.log(3), np.log(3)]])
    columns = prediction_columns(logits, ["low", "middle", "high"], is_ordinal=True)
    assert columns["prediction"] == ["middle", "middle"]
    shares = np.stack([columns[f"score_{index}"] for index in range(3)], axis=1)
    # 1 - 3/4, 3/4 - 1/4, 1/4; and, with the later one reduced to 1/4: 1 - 1/4, 0, 1/4.
    assert shares == pytest.approx(np.array([[0.25, 0.5, 0.25], [0.75, 0.0, 0.25]]))


TABLE = pa.table({"text": ['a "quoted", text\nof two lines', "<script>alert('ç')</script>"], "prediction": ["x", None]})


def _read(path: Path) -> dict[str, list[Any]]:
    if path.suffix == ".csv":
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        nulls = pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=[""], quoted_strings_can_be_null=False)
        return pyarrow.csv.read_csv(path, parse_options=options, convert_options=nulls).to_pydict()
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pydict()
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {key: [row[key] for row in rows] for key in rows[0]}


@pytest.mark.parametrize("suffix", predictions.SUFFIXES)
def test_written_records_are_read_back(tmp_path: Path, suffix: str):
    path = tmp_path / f"out{suffix}"
    path.write_text("old")
    write_table(path, TABLE)
    assert _read(path) == TABLE.to_pydict()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["out", "out.txt", "out.xlsx", "out.csv.gz"])
def test_another_suffix_is_refused(tmp_path: Path, name: str):
    with raises_code("output.format") as caught:
        write_table(tmp_path / name, TABLE)
    assert (Path(name).suffix or "no suffix") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", predictions.SUFFIXES)
def test_a_file_that_cannot_be_written_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str):
    path = tmp_path / f"out{suffix}"
    path.write_text("old")

    def half(*arguments: Any, **_: Any) -> None:
        for aside in (argument for argument in arguments if isinstance(argument, Path)):
            aside.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.csv, "write_csv", half)
    monkeypatch.setattr(pyarrow.parquet, "write_table", half)
    monkeypatch.setattr(json, "dumps", half)
    with raises_code("output.not_writable", suffix):
        write_table(path, TABLE)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_lists_are_json_in_a_csv(tmp_path: Path):
    table = pa.table({"tokens": [[["golo", "é"]], None], "number": [1, 2]})
    write_table(tmp_path / "out.csv", table)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"tokens": '[["golo", "é"]]', "number": "1"},
            {"tokens": "", "number": "2"},
        ]
    write_table(tmp_path / "out.jsonl", table)
    assert (tmp_path / "out.jsonl").read_text().splitlines()[0] == '{"tokens": [["golo", "é"]], "number": 1}'


@pytest.mark.parametrize("place", ["absent/out.csv", "file/out.csv"])
def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("")
    with raises_code("output.not_writable", place):
        write_table(tmp_path / place, TABLE)


def test_a_scale_brings_numbers_into_its_limits_and_then_to_its_steps():
    bands = NumberScale(0.5, (0.0, 9.0))
    assert bands.reported(np.array([6.24, 6.25, 6.74, 9.4, -0.3])).tolist() == [6.0, 6.5, 6.5, 9.0, 0.0]
    assert NumberScale(limits=(1.0, 5.0)).reported(np.array([0.2, 3.3])).tolist() == [1.0, 3.3]
    assert NumberScale(0.1).reported(np.array([0.29])).tolist() == [0.3]
