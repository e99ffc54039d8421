"""A trained model by its run, its folder, or as it comes from elsewhere."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from raised import check_logged, raises_code
from tiny import tiny_config, tiny_masked_lm, tiny_model, tiny_tokenizer
from tiny_data import tiny_collator
from transformers import BertModel

from paratune.config.sections import ModelOptions
from paratune.errors import CheckpointError, ConfigError
from paratune.infer.trained import ForwardOnly, NamedColumns, TrainedModel, load_trained
from paratune.models.locate import base_model
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES
from paratune.records import RUN_FILE, read_json, write_json
from paratune.records.own import TASK_FILE, signed

NONE = NamedColumns()
TEXT = NamedColumns(text="sentence")
RECORD: dict[str, Any] = {
    "schema_version": 1,
    "task": {"kind": "classification", "labels": {"0": "no", "1": "yes"}},
    "columns": {"text": "review", "text_pair": "answer", "label": "stars", "id": None, "separator": "\n"},
    "max_length": 17,
    "truncation": "only_first",
    "missing": "drop",
    "precision": "fp32",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that paratune saved."""
    tiny_model(tmp_path / "model")
    write(tmp_path / "model", RECORD)
    return tmp_path / "model"


def write(folder: Path, record: Any) -> None:
    (folder / TASK_FILE).write_text(json.dumps(record))


def error_text(
    target: Path | str, named: NamedColumns = TEXT, device: str = "cpu", error: type[Exception] = ConfigError
) -> str:
    with pytest.raises(error) as caught:
        load_trained(str(target), named, device)
    return str(caught.value)


def test_answer_start_is_only_for_question_answering(tmp_path: Path):
    tiny_model(tmp_path)
    with raises_code("cli.no_effect", "--answer-start"):
        load_trained(str(tmp_path), NamedColumns("sentence", answer_start="y"), "cpu")


def test_a_folder_of_paratune_has_all_settings(folder: Path):
    trained = load_trained(str(folder), NONE, "cpu")
    assert trained.names == ["no", "yes"]
    assert (trained.columns.text, trained.columns.text_pair, trained.columns.label) == ("review", "answer", "stars")
    assert (trained.max_length, trained.truncation, trained.missing) == (17, "only_first", "drop")
    assert trained.precision is POLICIES["fp32"]
    assert not trained.model.hf.training


def test_columns_of_the_command_line_have_priority(folder: Path):
    columns = load_trained(str(folder), NamedColumns(text="body", label="grade"), "cpu").columns
    assert (columns.text, columns.text_pair, columns.label) == ("body", "answer", "grade")


def test_a_run_folder_loads_its_model(folder: Path):
    (folder.parent / RUN_FILE).write_text("{}")
    assert load_trained(str(folder.parent), NONE, "cpu").names == ["no", "yes"]


def test_the_code_of_a_model_is_loaded_for_a_run_that_was_trained_with_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    (folder / "modeling_mine.py").write_text(
        "from transformers import BertForSequenceClassification\nclass Mine(BertForSequenceClassification): pass\n"
    )
    config = read_json(folder / "config.json")
    code = {"auto_map": {"AutoModelForSequenceClassification": "modeling_mine.Mine"}, "architectures": ["Mine"]}
    write_json(folder / "config.json", {**config, **code})
    with raises_code("model.class_unfit", "Mine", "BertForSequenceClassification"):
        load_trained(str(folder), NONE, "cpu")
    run = {"config": {"model": {"trust_remote_code": True}}}
    write_json(folder.parent / RUN_FILE, run)
    with raises_code("code.refused", str(folder)):
        load_trained(str(folder), NONE, "cpu")
    write_json(folder.parent / RUN_FILE, signed(run))
    write_json(folder / TASK_FILE, signed(read_json(folder / TASK_FILE), folder))
    assert type(load_trained(str(folder), NONE, "cpu").model.hf).__name__ == "Mine"


def test_a_run_that_is_not_finished_has_no_model(tmp_path: Path):
    (tmp_path / RUN_FILE).write_text("{}")
    text = error_text(tmp_path, error=CheckpointError)
    assert f"{tmp_path} is a run without a model: it is not finished; continue it with --resume" in text
    (tmp_path / RUN_FILE).write_text('{"kind": "probe"}')
    assert f"{tmp_path} is a probe" in error_text(tmp_path, error=CheckpointError)


def test_the_task_of_another_programs_model_comes_from_its_configuration(tmp_path: Path):
    tiny_model(tmp_path / "model", num_labels=3, max_length=33)
    trained = load_trained(str(tmp_path / "model"), TEXT, "cpu")
    assert trained.names == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert trained.max_length == 33
    assert (trained.columns.text, trained.columns.label) == ("sentence", "label")
    tiny_model(tmp_path / "one", num_labels=1)
    assert load_trained(str(tmp_path / "one"), TEXT, "cpu").model.task_kind == "regression"


def test_another_programs_model_needs_the_option_for_the_text_column(tmp_path: Path):
    tiny_model(tmp_path / "model")
    text = error_text(tmp_path / "model", NONE)
    assert "does not record which column has the text; name it with --text COLUMN" in text


def test_a_model_without_a_head_is_refused(tmp_path: Path):
    BertModel(tiny_config()).save_pretrained(tmp_path / "model")
    tiny_tokenizer(tmp_path / "model")
    text = error_text(tmp_path / "model")
    assert "was not trained for this task: it has no weights for classifier.bias, classifier.weight" in text


def test_another_programs_multi_label_model_is_recognised(tmp_path: Path):
    tiny_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    trained = load_trained(str(tmp_path / "model"), TEXT, "cpu")
    assert trained.model.task_kind == "multi_label"
    assert trained.names == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    "record",
    [
        [1],
        {**RECORD, "precision": "fp4"},
        {**RECORD, "task": {"kind": "translation"}},
        {**RECORD, "task": {**RECORD["task"], "class_weights": {}}},
        {**RECORD, "task": {**RECORD["task"], "class_weights": [1.0]}},
        {**RECORD, "task": {**RECORD["task"], "class_weights": "balanced"}},
        {**RECORD, "precision": ["fp32"]},
        {**RECORD, "columns": 5},
        {**RECORD, "max_length": "x"},
        {**RECORD, "truncation": {}},
        {**RECORD, "columns": ["text"]},
        {**RECORD, "max_length": "17"},
        {**RECORD, "truncation": "middle"},
        {**RECORD, "missing": None},
        {**RECORD, "layout": []},
    ],
)
def test_a_damaged_record_next_to_the_model_is_an_error(folder: Path, record: Any):
    write(folder, record)
    text = error_text(folder, error=CheckpointError)
    assert TASK_FILE in text
    assert "is damaged" in text


def test_a_record_that_is_no_object_is_an_error_where_training_reads_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("paratune.models.locate.adapter_base", lambda folder: "base")
    write(folder, [1])
    with raises_code("run.damaged", TASK_FILE):
        load_tokenizer(ModelOptions(name=str(folder)))
    with raises_code("run.damaged", TASK_FILE):
        base_model(ModelOptions(name=str(folder), trust_remote_code=True))


def test_architecture_names_that_are_no_list_are_an_error(folder: Path):
    (folder / TASK_FILE).unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": 3}))
    with raises_code("model.cannot_load", "architectures"):
        load_trained(str(folder), TEXT, "cpu")


def test_invalid_columns_in_the_record_are_refused(folder: Path):
    write(folder, {**RECORD, "columns": {"text": 5.5}})
    assert "its columns cannot be used" in error_text(folder, NONE)


def test_a_missing_gpu_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cuda: PyTorch sees no GPU here" in error_text(folder, NONE, "cuda")
    assert load_trained(str(folder), NONE, "auto").device == torch.device("cpu")


def test_apply_returns_the_outputs_of_each_row_in_order(folder: Path):
    trained = load_trained(str(folder), NONE, "cpu")
    collator = tiny_collator(7)

    class Rows:
        """What `apply` needs of a split."""

        store, labels, teacher, num_samples = collator.store, collator.labels, None, 7

    done: list[tuple[int, int]] = []
    assert trained.model.entry is not None  # rows are packed
    result = trained.apply(Rows(), 3, lambda *counts: done.append(counts))
    with torch.no_grad():
        alone = [trained.model(collator(np.asarray([row]), 1)) for row in range(7)]  # padded
    np.testing.assert_allclose(result.outputs, torch.cat(alone).numpy(), rtol=1e-5, atol=1e-6)
    assert done == [(number, len(done)) for number in range(1, len(done) + 1)]
    assert len(done) > 1


def test_outputs_that_are_not_a_number_cause_a_warning(folder: Path, caplog: pytest.LogCaptureFixture):
    trained = load_trained(str(folder), NONE, "cpu")
    split = trained.read("rows", pa.table({"review": ["good", "bad"], "answer": ["a", "b"]}), require_labels=False)
    trained.apply(split, 2, lambda *counts: None)
    assert "model.outputs_not_a_number" not in [getattr(record, "code", None) for record in caplog.records]
    torch.nn.init.constant_(trained.model.hf.classifier.weight, torch.nan)
    trained.apply(split, 2, lambda *counts: None)
    check_logged(caplog, "model.outputs_not_a_number", 2)


def test_forward_only_runs_in_eval_mode_in_one_process(folder: Path):
    trained: TrainedModel = load_trained(str(folder), NONE, "cpu")
    trained.model.train()
    runner = ForwardOnly(trained.model, POLICIES["bf16"], torch.device("cpu"))
    batch = tiny_collator(3)(np.arange(3), 3)
    outputs = runner.predict(batch)
    assert outputs.dtype == torch.bfloat16
    assert torch.equal(outputs, runner.predict(batch))
    value = torch.ones(2)
    assert runner.reduce(value, "sum") is value


@pytest.mark.parametrize("name", ["fp16", "tf32"])
def test_a_model_trained_in_a_gpu_precision_can_be_used_on_a_cpu(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "paratune")
    write(folder, {**RECORD, "precision": name})
    assert load_trained(str(folder), NONE, "cpu").precision is POLICIES["fp32"]
    assert f"precision: {name}" in caplog.text
    assert "fp32" in caplog.text


def test_another_programs_masked_lm_is_recognised(tmp_path: Path):
    tiny_masked_lm(tmp_path / "model")
    trained = load_trained(str(tmp_path / "model"), TEXT, "cpu")
    assert (trained.model.task_kind, trained.names, trained.columns.label) == ("mlm", [], None)
    for option, named in (
        ("--label y", NamedColumns("sentence", label="y")),
        ("--text-pair b", NamedColumns("sentence", "b")),
    ):
        assert f"{option}: no effect on {tmp_path / 'model'}" in error_text(tmp_path / "model", named)


@pytest.mark.parametrize("names", [["BertForPreTraining"], ["BertWithLMHeadModel"], None])
def test_a_masked_lm_is_recognised_by_any_architecture_name(tmp_path: Path, names: list[str] | None):
    tiny_masked_lm(tmp_path / "model")
    rename(tmp_path / "model", names)
    assert load_trained(str(tmp_path / "model"), TEXT, "cpu").model.task_kind == "mlm"


def test_a_classifier_without_an_architecture_name_is_recognised(tmp_path: Path):
    tiny_model(tmp_path / "model")
    rename(tmp_path / "model", None)
    assert load_trained(str(tmp_path / "model"), TEXT, "cpu").model.task_kind == "classification"


def rename(folder: Path, names: list[str] | None) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": names}))


def test_an_encoder_without_a_head_is_not_a_masked_lm(tmp_path: Path):
    folder = tmp_path / "model"
    BertModel(tiny_config()).save_pretrained(folder)
    tiny_tokenizer(folder)
    write(folder, {**RECORD, "task": {"kind": "mlm"}, "columns": {"text": "text"}})
    assert "was not trained for this task: it has no weights for cls.predictions.bias" in error_text(folder)
