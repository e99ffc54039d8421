"""Explanations of rows, for each kind of task, and their page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from explained import TEXT, Saved, save_tiny
from raised import raises_code
from transformers import AutoModelForSequenceClassification

from paratune.config.task_sections import WindowOptions
from paratune.explain.effects import TOO_SMALL
from paratune.explain.explain import (
    METHODS,
    RowExplanation,
    explain_rows,
    require_explainable,
    select_rows,
)
from paratune.explain.outputs import smallest_effect
from paratune.explain.page import Explained, as_dict, explanation_document, write_explanations
from paratune.records.constant import ConstantComparison
from paratune.reports.document import MarkedText, Notice
from paratune.reports.tables.table import Table


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NUM_STEPS", 8), ("MAX_STEPS", 8), ("MAX_EVALS", 40)):
        monkeypatch.setattr(f"paratune.explain.explain.{name}", value)


def explain(saved: Saved, *texts: str, pairs: tuple[str, ...] = (), **options: Any) -> list[RowExplanation]:
    trained, split = saved.read(*texts, pairs=pairs)
    return explain_rows(trained, split, **options)


@pytest.mark.parametrize("kind", ["classification", "multi_label", "ordinal", "regression"])
def test_the_explained_number_is_that_of_the_prediction(tmp_path: Path, kind: str):
    saved = save_tiny(tmp_path, kind)
    (found,) = explain(saved, TEXT)
    ids = torch.from_numpy(found.row.ids)[None]
    with torch.no_grad():
        logits = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()(input_ids=ids).logits[0].double()
    expected = {
        "classification": float(torch.log(logits.softmax(0).max() / (1 - logits.softmax(0).max()))),
        "multi_label": float(logits.max()),
        "ordinal": float(logits.sigmoid().sum()),
        "regression": float(logits[0]),
    }
    assert found.value == pytest.approx(expected[kind], abs=1e-4)
    assert found.gap("shapley") == pytest.approx(0, abs=1e-5)
    assert found.sentences.shape == (3,)
    assert found.attention is not None
    assert found.attention.shape == (len(found.row.words),) * 2
    assert list(found.faithfulness.gains) == [*METHODS]


def test_another_class_can_be_explained(tmp_path: Path):
    saved = save_tiny(tmp_path, "classification")
    assert explain(saved, "good", target="middle")[0].target.name == "log-odds of middle"
    with raises_code("cli.invalid_value", "midle", "middle"):
        explain(saved, "good", target="midle")


def test_a_number_has_no_other_class(tmp_path: Path):
    with raises_code("cli.no_effect", "--target"):
        explain(save_tiny(tmp_path, "regression"), "good", target="high")


def test_rows_that_do_not_exist_are_refused():
    table = pa.table({"text": ["a", "b"]})
    assert select_rows(table, [1, 0], "x.csv")["text"].to_pylist() == ["b", "a"]
    with raises_code("explain.rows", 2, row=2, num_rows=2):
        select_rows(table, [0, 2], "x.csv")


def test_a_model_without_predictions_is_refused(tmp_path: Path):
    trained = save_tiny(tmp_path, "regression").load()
    masked = type("Masked", (), {"task": type("Task", (), {"kind": "mlm"})})
    require_explainable(trained, "run")
    with raises_code("task.unsupported", "run", kind="mlm"):
        require_explainable(masked, "run")
    windows = replace(trained, task=trained.task.model_copy(update={"windows": WindowOptions()}))
    targets = replace(trained, task=trained.task.model_copy(update={"targets": ["lexis", "grammar"]}))
    for other in (windows, targets):
        with raises_code("task.unsupported", "run", kind="regression"):
            require_explainable(other, "run")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # The logarithm of p / (1 - p) has the derivative 4 at p = 0.5: 0.005 of p is 0.02 there.
        ("classification", 0.02), ("multi_label", 0.02),
        # 1% of the deviation of the labels, which the record has; of ordered classes without it, of a class.
        ("regression", 0.0093), ("ordinal", 0.01),
    ],
)  # fmt: skip
def test_the_smallest_effect_follows_the_scale_of_the_output(tmp_path: Path, kind: str, expected: float):
    trained = save_tiny(tmp_path, kind).load()
    if kind == "regression":
        assert smallest_effect(trained) == 1e-5  # nothing is known but rounding
        graded = replace(trained, task=trained.task.model_copy(update={"round_to": 0.5}))
        assert smallest_effect(graded) == 0.005
        trained = replace(trained, label_deviation=0.93)
    assert smallest_effect(trained) == pytest.approx(expected)
    changes = np.linspace(-9, 9, 1001)
    moved = 1 / (1 + np.exp(-changes - 0.02)) - 1 / (1 + np.exp(-changes))
    assert moved.max() == pytest.approx(0.005, rel=1e-3)  # nowhere more


def explained(tmp_path: Path, text: str, *, smallest: float | None = None, **options: int) -> Explained:
    (found,) = explain(save_tiny(tmp_path, "regression", **options), text)
    if smallest is not None:
        faithfulness = replace(found.faithfulness, smallest=smallest)
        found = replace(found, target=replace(found.target, smallest=smallest), faithfulness=faithfulness)
    return Explained("run", "x.csv", (found,))


def parts(found: Explained, kind: type, *, section: int = 0) -> list[Any]:
    return [part for part in explanation_document(found).sections[section].parts if isinstance(part, kind)]


LONG = "The film was really good. But not the story!\nNever again, it is bad. A very nice place, and the story is good."


def test_effects_that_do_not_hold_have_no_colour_word_or_bar(tmp_path: Path):
    # One word: no order differs from others.
    found = explained(tmp_path, "good")
    (main,) = parts(found, MarkedText)
    assert [word.effect for word in main.words] == [None]
    assert (parts(found, Table), len(parts(found, Notice))) == ([], 1)
    assert as_dict(found)["rows"][0]["words"][0]["holds"] == dict.fromkeys(METHODS, False)


def test_effects_count_from_the_smallest_size(tmp_path: Path):
    method = next(iter(METHODS))
    (some,) = explained(tmp_path / "some", LONG, smallest=1e-5).rows
    assert some.faithfulness.verdict(method) is None
    values = some.effects[method]
    assert some.holds(method).all()
    middle = float(np.median(np.abs(values)))
    half = explained(tmp_path / "half", LONG, smallest=middle)
    assert half.rows[0].holds(method).tolist() == (np.abs(values) >= middle).tolist()
    (main,), (words,) = parts(half, MarkedText), parts(half, Table)
    assert [word.effect is not None for word in main.words] == (np.abs(values) >= middle).tolist()
    largest = float(np.abs(values).max())
    # A text whose largest effect is small has no strong colour: 0.4 of the full one, which has ten times the smallest.
    (pale,) = parts(explained(tmp_path / "pale", LONG, smallest=largest / 4), MarkedText)
    assert max(map(abs, pale.strengths)) == pytest.approx(4 / 10)
    assert [abs(line[1].value) for line in words.lines] == sorted(np.abs(values), reverse=True)[: len(words.lines)]
    none = explained(tmp_path / "none", LONG, smallest=1e3)
    assert none.rows[0].faithfulness.verdict(method) == TOO_SMALL
    assert not none.rows[0].holds(method).any()
    assert (parts(none, Table), len(parts(none, Notice))) == ([], 1)
    # Nor do sentences without an effect that counts have a line among the details.
    tables = {table.key: table for table in parts(none, Table, section=1)}
    assert tables["row-0-sentences"].lines == ()


def test_a_model_that_is_not_better_than_a_constant_answer_is_noted(tmp_path: Path):
    worse = ConstantComparison(predicts="training mean", split="test", metric="rmse", model=1.25, constant=1.125)
    found = replace(explained(tmp_path, "good film"), not_better=worse)
    (notice,) = explanation_document(found).notices
    assert all(value in notice.text for value in ("1.2500", "1.1250"))
    assert as_dict(found)["not_better"] == worse.model_dump()


def test_text_that_is_not_read_is_shown_without_effects(tmp_path: Path):
    (main,) = parts(explained(tmp_path, "good <b>bad</b> good ugly", max_length=5), MarkedText)
    assert main.words[-1].effect is None
    assert "ugly" in main.words[-1].text


def test_files_of_a_report(tmp_path: Path):
    pytest.importorskip("matplotlib")
    found = explained(tmp_path / "model", "good <script>x</script> film. ugly place")
    files = write_explanations(tmp_path / "out", found)
    names = {file.relative_to(tmp_path / "out").as_posix() for file in files}
    assert names == {"index.html", "report.json"}
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<script>x" not in page
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    (row,) = json.loads(json.dumps(as_dict(found)))["rows"]
    assert written["rows"] == [row]
    assert [word["text"] for word in row["words"]][:2] == ["good", "<"]
    assert sum(word["effects"]["shapley"] for word in row["words"]) == pytest.approx(
        row["output"] - row["output_hidden"], abs=1e-4
    )
