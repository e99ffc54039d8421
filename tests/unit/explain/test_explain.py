"""Explanations of rows, for each kind of task and for several runs, and their page."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from explained import TEXT, Saved, save_tiny
from raised import raises_code
from transformers import AutoModelForSequenceClassification

from paratune.config.task_sections import WindowOptions
from paratune.explain.explain import (
    ExplainOptions,
    RowExplanation,
    compare_runs,
    explain_rows,
    require_explainable,
    select_rows,
)
from paratune.explain.page import Explained, as_dict, explanation_document, write_explanations
from paratune.reports.document import MarkedText
from paratune.reports.page.document import document_html

QUICK = ExplainOptions(num_steps=8, max_steps=8, max_evals=40)


def explain(saved: Saved, *texts: str, pairs: tuple[str, ...] = (), **options: str) -> list[RowExplanation]:
    trained, split = saved.read(*texts, pairs=pairs)
    return explain_rows(trained, split, ExplainOptions(num_steps=8, max_steps=8, max_evals=40, **options))


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
    assert found.gap("partition_shap") == pytest.approx(0, abs=1e-5)
    assert found.sentences.shape == (3,)
    assert found.paragraphs.shape == (2,)
    assert found.attention is not None
    assert set(found.faithfulness.methods) == {*QUICK.methods, "attention_last", "attention_rollout"}


def test_an_answer_is_explained_in_its_window(tmp_path: Path):
    context = "the film was good and the story was bad " * 3 + "very nice place"
    (found,) = explain(save_tiny(tmp_path, "qa", max_length=24), "was it good", pairs=(context,))
    trained, split = save_tiny(tmp_path, "qa", max_length=24).read("was it good", pairs=(context,))
    outputs = trained.apply(split, 8, lambda *_: None).outputs
    columns = trained.recipe.prediction_columns(split, outputs, trained.tokenizer)
    assert found.predicted == columns["prediction"][0]
    # The words of the explained tokens are those of the answer.
    tokens = range(found.target.index, found.target.last + 1)
    spoken = " ".join(found.row.word_text(found.row.token_words[token]) for token in tokens)
    assert spoken == found.predicted
    assert found.value < 0
    assert {word.text for word in found.row.words} == {0, 1}


def test_another_class_can_be_explained(tmp_path: Path):
    saved = save_tiny(tmp_path, "classification")
    assert explain(saved, "good", target="middle")[0].target.name == "log-odds of middle"
    with raises_code("cli.unknown_name", "midle", "middle"):
        explain(saved, "good", target="midle")


def test_a_number_has_no_other_class(tmp_path: Path):
    with raises_code("cli.no_effect", "--target"):
        explain(save_tiny(tmp_path, "regression"), "good", target="high")


def test_rows_that_do_not_exist_are_refused():
    table = pa.table({"text": ["a", "b"]})
    assert select_rows(table, [1, 0], "x.csv")["text"].to_pylist() == ["b", "a"]
    with raises_code("explain.no_such_row", 2, row=2, num_rows=2):
        select_rows(table, [0, 2], "x.csv")


def test_a_model_without_predictions_is_refused(tmp_path: Path):
    trained = save_tiny(tmp_path, "regression").load()
    masked = type("Masked", (), {"task": type("Task", (), {"kind": "mlm"})})
    require_explainable(trained, "run")
    with raises_code("explain.task", "run", kind="mlm"):
        require_explainable(masked, "run")
    windows = replace(trained, task=trained.task.model_copy(update={"windows": WindowOptions()}))
    with raises_code("explain.task", "run", kind="regression"):
        require_explainable(windows, "run")


def test_runs_agree_where_the_sign_is_the_same(tmp_path: Path):
    runs = [explain(save_tiny(tmp_path / str(seed), "regression", seed=seed), TEXT)[0] for seed in (0, 0, 1)]
    same, different = compare_runs(runs[:2]), compare_runs([runs[0], runs[2]])
    assert same.correlations["occlusion"] == pytest.approx(1.0)
    assert same.same_sign["occlusion"].mean() > 0.9
    pair = np.stack([runs[0].effects["occlusion"].values, runs[2].effects["occlusion"].values])
    assert different.means["occlusion"] == pytest.approx(pair.mean(axis=0))
    assert different.same_sign["occlusion"].tolist() == (np.sign(pair[0]) == np.sign(pair[1])).tolist()


def test_runs_that_read_different_words_are_refused(tmp_path: Path):
    short = explain(save_tiny(tmp_path / "a", "regression", max_length=8), TEXT)[0]
    whole = explain(save_tiny(tmp_path / "b", "regression"), TEXT)[0]
    with raises_code("explain.runs_differ", row=0):
        compare_runs([whole, short])


def explained(tmp_path: Path, text: str, **options: int) -> Explained:
    found = explain(save_tiny(tmp_path, "regression", **options), text)
    return Explained(("run",), "x.csv", ((found[0],),), (), None)


def test_effects_that_do_not_hold_have_no_colour(tmp_path: Path):
    # One word: no order differs from random ones.
    document = explanation_document(explained(tmp_path, "good"))
    (main, *_) = [part for part in document.sections[0].parts if isinstance(part, MarkedText)]
    assert [word.effect for word in main.words] == [None]


def test_text_that_is_not_read_is_shown_without_effects(tmp_path: Path):
    document = explanation_document(explained(tmp_path, "good <b>bad</b> good ugly", max_length=5))
    (main, *_) = [part for part in document.sections[0].parts if isinstance(part, MarkedText)]
    assert main.words[-1].effect is None
    assert "ugly" in main.words[-1].text
    assert "ugly" in document_html(document)


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
    assert sum(word["effects"]["partition_shap"] for word in row["words"]) == pytest.approx(
        row["output"][0] - row["output_hidden"][0], abs=1e-4
    )
