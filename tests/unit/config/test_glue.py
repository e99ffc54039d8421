from pathlib import Path
from typing import get_args

import pytest
from raised import raises_code

from paratune.config.check import check
from paratune.config.glue import GLUE, headline_metrics
from paratune.config.load import LoadedConfig, load_config
from paratune.config.metric_names import METRICS
from paratune.config.task_sections import ClassificationTask, RegressionTask, class_names

FILE = """\
task: TASK
data: {train: train.tsv}
model: {name: some-model}
train: {epochs: 1}
batch: {global: 8}
"""


def load(folder: Path, task: str, *overrides: str) -> LoadedConfig:
    path = folder / "glue.yaml"
    path.write_text(FILE.replace("TASK", task))
    return load_config(path, overrides)


@pytest.mark.parametrize(
    ("name", "metrics"),
    # Wang et al., GLUE, ICLR 2019, Table 1, column "Metrics".
    [
        ("cola", ("matthews",)),
        ("sst2", ("accuracy",)),
        ("mrpc", ("accuracy", "f1")),
        ("stsb", ("pearson", "spearman")),
        ("qqp", ("accuracy", "f1")),
        ("mnli", ("accuracy",)),
        ("qnli", ("accuracy",)),
        ("rte", ("accuracy",)),
        ("wnli", ("accuracy",)),
    ],
)
def test_the_metrics_are_those_of_the_benchmark(tmp_path, name, metrics):
    config = load(tmp_path, name).config
    assert headline_metrics(config.task) == metrics
    assert set(metrics) <= set(METRICS[config.task.kind])
    assert check(config) == []


@pytest.mark.parametrize(
    ("name", "names", "text", "pair"),
    # The data card of nyu-mll/glue: class_label names by id, and features.
    [
        ("cola", ["unacceptable", "acceptable"], "sentence", None),
        ("sst2", ["negative", "positive"], "sentence", None),
        ("mrpc", ["not_equivalent", "equivalent"], "sentence1", "sentence2"),
        ("stsb", [], "sentence1", "sentence2"),
        ("qqp", ["not_duplicate", "duplicate"], "question1", "question2"),
        ("mnli", ["entailment", "neutral", "contradiction"], "premise", "hypothesis"),
        ("qnli", ["entailment", "not_entailment"], "question", "sentence"),
        ("rte", ["entailment", "not_entailment"], "sentence1", "sentence2"),
        ("wnli", ["not_entailment", "entailment"], "sentence1", "sentence2"),
    ],
)
def test_labels_and_columns_are_those_of_the_data_card(tmp_path, name, names, text, pair):
    config = load(tmp_path, name).config
    assert class_names(config.task) == names
    columns = config.data.columns
    assert (columns.text, columns.text_pair, columns.label) == (text, pair, "label")


def test_the_sections_know_every_task():
    known = {
        word
        for section in (ClassificationTask, RegressionTask)
        for member in get_args(section.model_fields["glue"].annotation)
        for word in get_args(member)
    }
    assert known == set(GLUE)


def test_the_task_or_its_kind_may_be_the_name_of_a_glue_task(tmp_path):
    values = load(tmp_path, "rte").values
    assert load(tmp_path, "{kind: rte}").values == values
    assert load(tmp_path, "{glue: rte}").values == values


def test_options_of_the_file_override_those_of_the_glue_task(tmp_path):
    loaded = load(tmp_path, "{glue: rte, labels: {0: not_entailment, 1: entailment}}", "data.columns.text=premissa")
    assert class_names(loaded.config.task) == ["not_entailment", "entailment"]
    assert loaded.origin["task.labels"] == "glue.yaml:1"
    assert loaded.origin["data.columns.text"] == "--set"
    assert loaded.origin["data.columns.text_pair"] == "task.glue: rte"
    assert loaded.origin["task.kind"] == "task.glue: rte"


def test_ids_and_names_are_both_read_as_labels(tmp_path):
    task = load(tmp_path, "rte").config.task
    assert isinstance(task, ClassificationTask)
    assert isinstance(task.labels, dict)
    assert task.labels[0] == task.labels["entailment"] == "entailment"


@pytest.mark.parametrize(
    ("task", "code", "values"),
    [
        ("{glue: rte, labels: [yes, no]}", "task.labels", ["yes, no", "rte", "entailment, not_entailment"]),
        ("{glue: mrpc, labels: [equivalent, not_equivalent]}", "task.labels", ["not_equivalent", "F1", "mrpc"]),
        ("rt", "config.unknown_kind", ["mean rte"]),
        ("{glue: mrcp}", "config.invalid_value", ["mean mrpc"]),
        ("{glue: mrpc, kind: regression}", "config.invalid_value", ["task.glue", "mrpc"]),
        ("{glue: mrpc, kind: rte}", "config.conflict", ["task.kind: rte", "task.glue: mrpc"]),
    ],
)
def test_settings_that_do_not_fit_the_glue_task_are_refused(tmp_path, task, code, values):
    with raises_code(code, *values):
        load(tmp_path, task)


def test_tasks_outside_glue_have_headline_metrics():
    assert headline_metrics(ClassificationTask(kind="classification", labels=["a", "b"])) == ("accuracy", "f1_macro")
    assert headline_metrics(RegressionTask(kind="regression")) == ("rmse", "mae", "r2")
