"""What the pictures of `paratune data` are drawn from: rows of all splits, with columns that training does not read."""

import csv

import numpy as np
import pytest
from raised import raises_code
from tiny import tiny_tokenizer

from paratune.commands.data_figures import check_kind, data_view
from paratune.config.load import load_config
from paratune.config.task_sections import RegressionTask
from paratune.data.encode import TokenizeOptions
from paratune.tasks import make_recipe

CONFIG = """\
task: {kind: regression}
data:
  train: TRAIN
  columns: {text: Essay, label: Overall}
  split: {test: 0.25}
  missing: drop
  figures: {by: Type, word_clouds: [Essay, Remark]}
model: {name: demo:minilm}
train: {epochs: 1}
batch: {global: 2}
"""


@pytest.fixture
def config(tmp_path):
    rows = [(f"good film {number}", 5 + number / 2, number % 2 + 1, "", "", f"id{number}") for number in range(8)]
    rows[3] = ("bad", 4.0, "", "fine", "7", "id3")
    rows.append(("", 9.0, 1, "lost", "1", "id8"))
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("Essay", "Overall", "Type", "Remark", "Sparse", "Name"), *rows])
    path = tmp_path / "my.yaml"
    path.write_text(CONFIG.replace("TRAIN", str(tmp_path / "train.csv")))
    return path


def view(path, tmp_path, *overrides):
    config = load_config(path, overrides).config
    how = TokenizeOptions(tiny_tokenizer(), 4, need_token_type_ids=True, cache_dir=tmp_path / "cache")
    return data_view(config, make_recipe(config.task).load_splits(config.data, how), 4)


def test_figures_use_the_columns_of_all_splits(config, tmp_path):
    result = view(config, tmp_path)
    assert result.splits == {"train": 6, "test": 2}
    bands = dict(zip(result.labels.tolist(), result.groups, strict=True))
    # The row without a type, and (of band 5 + 0 / 2) the first row.
    assert bands[4.0] == "(empty)"
    assert bands[5.0] == "1"
    assert sorted(result.words.tolist()) == [1] + [3] * 7
    # Columns of numbers alone, empty fields among them; names are none.
    assert list(result.numeric) == ["Overall", "Type", "Sparse"]
    assert np.isfinite(result.numeric["Sparse"]).sum() == 1
    assert result.texts["Remark"] == ["fine"]  # the row without an essay is in no picture
    assert len(result.texts["Essay"]) == 8
    assert {"the", "did"} <= set(result.stop_words)


def test_ids_are_not_correlated(config, tmp_path):
    assert list(view(config, tmp_path, "data.columns.id=Type").numeric) == ["Overall", "Sparse"]


def test_word_clouds_use_the_text_columns_by_default(config, tmp_path):
    assert list(view(config, tmp_path, "data.figures.word_clouds=").texts) == ["Essay"]


def test_columns_that_cannot_be_drawn_are_refused(config, tmp_path):
    with raises_code("data.column_missing", "data.figures.by", "Type"):
        view(config, tmp_path, "data.figures.by=Typ")
    with raises_code("data.column_missing", "data.figures.word_clouds", "Nothing"):
        view(config, tmp_path, "data.figures.word_clouds=[Nothing]")


def test_a_column_with_too_many_values_cannot_group(config, tmp_path, monkeypatch):
    monkeypatch.setattr("paratune.commands.data_figures.MAX_GROUPS", 7)
    with raises_code("data.too_many_values", "8", "7", key="data.figures.by"):
        view(config, tmp_path, "data.figures.by=Name")


def test_tasks_without_one_label_are_refused(config):
    check_kind(load_config(config).config.task, "label")
    sets = load_config(config, ["task={kind: multi_label, labels: [a, b], separator: ';'}"]).config.task
    with raises_code("task.unsupported", "--figures"):
        check_kind(sets, "label")
    with raises_code("task.unsupported", "--figures", kind="regression"):
        check_kind(RegressionTask(kind="regression"), ["lexis", "grammar"])
    check_kind(RegressionTask(kind="regression", raters="mean"), ["one", "two"])
