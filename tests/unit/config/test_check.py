from dataclasses import replace
from typing import Any

import pytest
from raised import check_code, raises_code

from paratune.config.feasibility import stage_reasons
from paratune.config.load import load_config
from paratune.config.metric_names import METRICS
from paratune.config.problems import refuse
from paratune.config.traits import TRAITS

REGRESSION = ("  kind: classification\n  labels: [negative, positive]\n", "  kind: regression\n")
MASKED_LM = "task=mlm", "data.columns.label="


@pytest.mark.parametrize(
    ("overrides", "code", "values"),
    [
        ("train.epochs=", "config.required", ["train.epochs", "train.max_steps"]),
        ("train.epochs=2 train.max_steps=5", "config.conflict", ["train.epochs: 2.0", "train.max_steps: 5"]),
        (
            "train.warmup_steps=5 train.warmup_ratio=0.1",
            "config.conflict",
            ["train.warmup_steps: 5", "train.warmup_ratio: 0.1"],
        ),
        (
            "train.epochs= train.max_steps=5 train.warmup_steps=6",
            "config.no_effect",
            ["train.warmup_steps", "6", "train.max_steps"],
        ),
        ("batch.global=", "config.required", ["batch.global", "batch.per_device"]),
        ("batch.global=32 batch.per_device=4", "config.conflict", ["batch.global: 32", "batch.per_device: 4"]),
        (
            "batch.global= batch.per_device=4 batch.micro_batch_size=2",
            "config.no_effect",
            ["batch.micro_batch_size: 2"],
        ),
        ("batch.grad_accum_steps=2", "config.no_effect", ["batch.grad_accum_steps: 2", "batch.global"]),
        ("batch.micro_batch_size=64", "config.no_effect", ["batch.micro_batch_size: 64", "batch.global: 32"]),
        ("evaluate.every=steps", "config.required", ["evaluate.steps", "evaluate.every: steps"]),
        ("evaluate.steps=5", "config.no_effect", ["evaluate.steps: 5", "evaluate.every: steps"]),
        ("checkpoint.every=steps", "config.required", ["checkpoint.steps", "checkpoint.every: steps"]),
        (
            "train.epochs= train.max_steps=5 evaluate.every=steps evaluate.steps=6",
            "config.no_effect",
            ["evaluate.steps", "6", "train.max_steps: 5"],
        ),
        (
            "train.epochs= train.max_steps=5 checkpoint.every=steps checkpoint.steps=6",
            "config.no_effect",
            ["checkpoint.steps", "6", "train.max_steps: 5"],
        ),
        ("checkpoint.steps=5 checkpoint.every=never", "config.no_effect", ["checkpoint.steps: 5"]),
        ("evaluate.patience=2", "config.required", ["evaluate.patience: 2", "evaluate.best"]),
        ("evaluate.min_delta=0.1", "config.no_effect", ["evaluate.min_delta: 0.1", "evaluate.patience"]),
        ("evaluate.best=rmse", "metric.unknown", ["evaluate.best: rmse"]),
        ("evaluate.best=acuracy", "metric.unknown", ["accuracy"]),
        ("evaluate.best=f1 evaluate.every=never", "config.no_effect", ["evaluate.best: f1", "evaluate.every: never"]),
        ("evaluate.best=f1 data.split=", "data.validation_missing", ["evaluate.best: f1", "data.validation"]),
        ("evaluate.every=steps evaluate.steps=2 data.split=", "data.validation_missing", ["evaluate.every: steps"]),
        ("data.train=", "config.required", ["data.train"]),
        ("data.max_rows.test=5", "config.no_effect", ["data.max_rows.test: 5", "data.test", "data.split.test"]),
        ("data.split= data.validation=train.csv", "config.conflict", ["data.validation", "data.train: train.csv"]),
        ("data.test=./x/../train.csv", "config.conflict", ["data.test", "data.train: ./x/../train.csv"]),
        (
            "data.split= data.validation=v.csv data.test=v.csv",
            "config.conflict",
            ["data.test", "data.validation: v.csv"],
        ),
        ("data.train=[a.csv,./a.csv]", "config.conflict", ["data.train", "./a.csv"]),
        (
            "data.split= data.train=[a.csv,v.csv] data.validation=v.csv",
            "config.conflict",
            ["data.validation", "data.train"],
        ),
        ("data.hub_revision=main", "config.no_effect", ["data.hub_revision: main"]),
        ("data.train=a.xlsx data.separator=tab", "config.no_effect", ["data.separator: tab"]),
        ("data.train=a.parquet data.encoding=cp1252", "config.no_effect", ["data.encoding: cp1252"]),
        ("data.train=a.jsonl data.header=false", "config.no_effect", ["data.header: false"]),
        (
            "data.split.validation=0.2 data.validation=v.csv",
            "config.conflict",
            ["data.split.validation: 0.2", "data.validation: v.csv"],
        ),
        ("data.test=t.csv data.split.test=0.1", "config.conflict", ["data.split.test: 0.1", "data.test: t.csv"]),
        (
            "data.split.folds=5 data.split.fold=0 data.test=t.csv",
            "config.conflict",
            ["data.split.folds: 5", "data.test: t.csv"],
        ),
        ("data.split.held_out=film", "config.required", ["data.split.group_by", "data.split.held_out"]),
        (
            "data.split={held_out: b, group_by: c, folds: 5, fold: 0}",
            "config.conflict",
            ["data.split.held_out: b", "data.split.folds: 5"],
        ),
        ("data.split={validation: null, folds: 5}", "config.required", ["data.split.fold"]),
        ("data.split={validation: null, folds: 5, fold: 5}", "config.invalid_value", ["data.split.fold: 5"]),
        ("train.continue_trainer=true model.from_scratch=true", "config.conflict", ["model.from_scratch: true"]),
        ("data.split.fold=1", "config.no_effect", ["data.split.fold: 1"]),
        ("data.split={validation: null, seed: 1}", "config.no_effect", ["data.split"]),
        ("data.split={validation: 0.5, test: 0.5}", "config.invalid_value", ["data.split", "1"]),
        ("data.columns.text=label", "config.conflict", ["data.columns.text", "data.columns.label"]),
        ("data.columns.text_pair=[a,label]", "config.conflict", ["data.columns.text_pair", "data.columns.label"]),
        ("data.columns.text=[a,a]", "config.conflict", ["data.columns.text", "2"]),
        (
            "data.columns.text_pair=sentence",
            "config.conflict",
            ["data.columns.text_pair", "data.columns.text: sentence"],
        ),
        ("data.columns.separator=x", "config.no_effect", ["data.columns.separator: x"]),
        ("data.truncation=only_second", "config.no_effect", ["data.truncation: only_second", "data.columns.text_pair"]),
        ("data.head_tokens=9", "config.no_effect", ["data.head_tokens: 9", "longest_first"]),
        ("train.schedule_cycles=2", "config.no_effect", ["train.schedule_cycles: 2", "linear"]),
        ("train.decay_ratio=0.5", "config.no_effect", ["train.decay_ratio: 0.5", "warmup_stable_decay"]),
        ("task.labels=[a]", "task.labels", ["task.labels", "1", "2"]),
        ("task.labels=[]", "task.labels", ["task.labels"]),
        ("task.labels={0:a,1:a}", "task.labels", ["task.labels", "1"]),
        ("task.labels=[1,'1']", "task.labels", ["task.labels", "1"]),
        (
            "task.label_smoothing=0.1 task.focal_gamma=2",
            "config.conflict",
            ["task.label_smoothing: 0.1", "task.focal_gamma: 2"],
        ),
        ("task.focal_gamma=0", "config.invalid_value", ["task.focal_gamma"]),
        ("task.label_smoothing=1", "config.invalid_value", ["task.label_smoothing"]),
        ("task.class_weights=[1,2,3]", "task.class_weights", ["3 weights", "2 classes"]),
        ("task.class_weights=[1,0]", "config.invalid_value", ["task.class_weights"]),
        ("task.class_weights={negative: 1, x: 2}", "task.class_weights", ["negative, x"]),
        ("task.loss={function: my_losses}", "config.invalid_value", ["task.loss.function"]),
        (
            "task.loss={function: 'm:f'};task.focal_gamma=2",
            "config.conflict",
            ["task.loss.function: m:f", "task.focal_gamma: 2"],
        ),
        ("baseline=tfidf;task.loss={function: 'm:f'}", "config.no_effect", ["task.loss.function: m:f", "tfidf"]),
        ("baseline=tfidf task.class_weights=balanced", "config.no_effect", ["task.class_weights: balanced", "tfidf"]),
        (
            "model.revision=v1 model.name=demo:minilm",
            "config.no_effect",
            ["model.revision: v1", "model.name: demo:minilm"],
        ),
        (
            "strategy={kind: deepspeed, stage: 0, offload_optimizer: true}",
            "config.no_effect",
            ["strategy.offload_optimizer: true", "strategy.stage: 0"],
        ),
        (
            "strategy={kind: deepspeed, stage: 2, offload_parameters: true}",
            "config.no_effect",
            ["strategy.stage: 2", "strategy.stage: 3"],
        ),
        ("strategy={kind: deepspeed, cpu_adam: true}", "config.no_effect", ["strategy.cpu_adam: true"]),
        (
            "strategy={kind: deepspeed, stage: 0, bucket_cap_mb: 5.0}",
            "config.no_effect",
            ["strategy.bucket_cap_mb: 5.0"],
        ),
        (
            "strategy={kind: deepspeed, stage: 1, param_persistence_threshold: 0}",
            "config.no_effect",
            ["strategy.stage: 1"],
        ),
        (
            "precision=fp64;strategy={kind: deepspeed, offload_optimizer: true, cpu_adam: true}",
            "strategy.excluded",
            ["precision: fp64", "strategy.kind: deepspeed"],
        ),
        ("model.tokenizer_revision=v1", "config.no_effect", ["model.tokenizer_revision: v1"]),
        (
            "train.freeze_encoder=true train.activation_checkpointing=1",
            "config.no_effect",
            ["train.activation_checkpointing: 1"],
        ),
        (
            "strategy={kind: deepspeed, stage: 3, offload_parameters: true};device=cpu",
            "config.no_effect",
            ["strategy.offload_parameters: true", "device: cpu"],
        ),
        (
            "strategy.kind=zero3 strategy.cpu_offload=true device=cpu",
            "config.no_effect",
            ["strategy.cpu_offload: true"],
        ),
        (
            "strategy.kind=zero3 strategy.param_dtype=bf16",
            "precision.conflict",
            ["strategy.param_dtype: bf16", "precision: bf16"],
        ),
        ("strategy.kind=zero2 strategy.param_dtype=bf16 precision=fp16", "precision.conflict", ["precision: bf16"]),
        (
            "precision=bf16;strategy={kind: deepspeed, stage: 0, param_dtype: bf16}",
            "precision.conflict",
            ["strategy.param_dtype: bf16", "strategy.stage: 0"],
        ),
        (
            "precision=bf16;model.adapter={kind: lora};strategy={kind: deepspeed, param_dtype: bf16}",
            "strategy.excluded",
            ["model.adapter.kind: lora", "strategy.kind: deepspeed"],
        ),
        (
            "model.adapter={kind: lora};train.freeze.blocks=1",
            "config.conflict",
            ["model.adapter.kind: lora", "train.freeze.blocks: 1"],
        ),
        (
            "model.adapter={kind: lora};model.from_scratch=true",
            "config.conflict",
            ["model.adapter.kind: lora", "model.from_scratch: true"],
        ),
        *(
            (
                f"model.quantize_base=nf4;model.adapter={{kind: lora}};strategy={{kind: {kind}}}",
                "strategy.excluded",
                ["model.quantize_base: nf4", f"strategy.kind: {kind.partition(',')[0]}"],
            )
            for kind in ("deepspeed, stage: 3", "pipeline, stages: 2")
        ),
        ("model.quantize_base=nf4", "config.no_effect", ["model.quantize_base: nf4", "model.adapter"]),
        (
            "model.quantize_base=int8 train.freeze_encoder=true model.from_scratch=true",
            "config.conflict",
            ["model.quantize_base: int8", "model.from_scratch: true"],
        ),
        (
            "model.quantize_base=nf4;model.adapter={kind: lora, dora: true}",
            "config.conflict",
            ["model.quantize_base: nf4", "model.adapter.dora: true"],
        ),
        (
            "model.keep_layers=[0] model.from_scratch=true",
            "config.conflict",
            ["model.keep_layers: [0]", "model.from_scratch: true"],
        ),
        ("model.keep_layers=[2,1]", "config.invalid_value", ["model.keep_layers", "[2, 1]"]),
        ("model.keep_layers=[1,1]", "config.invalid_value", ["model.keep_layers", "[1, 1]"]),
        (
            "precision=bf16;train.freeze_encoder=true;strategy={kind: deepspeed, param_dtype: bf16}",
            "strategy.excluded",
            ["train.freeze_encoder: true", "strategy.kind: deepspeed"],
        ),
        (
            "strategy={kind: deepspeed, stage: 1, prefetch_bucket_size: 5}",
            "config.no_effect",
            ["strategy.prefetch_bucket_size: 5", "strategy.stage: 1"],
        ),
        (
            "strategy={kind: deepspeed, stage: 3, allgather_bucket_size: 4}",
            "config.no_effect",
            ["strategy.stage: 3", "1 or 2"],
        ),
        (
            "strategy={kind: deepspeed, bucket_cap_mb: 5.0, reduce_bucket_size: 7}",
            "config.conflict",
            ["strategy.bucket_cap_mb: 5.0", "strategy.reduce_bucket_size: 7"],
        ),
        (
            "strategy={kind: deepspeed, allgather_bucket_size: 5}",
            "config.invalid_value",
            ["strategy.allgather_bucket_size", "5"],
        ),
        ("baseline=tfidf strategy=ddp", "config.no_effect", ["strategy.kind: ddp", "baseline: tfidf"]),
        (
            "baseline=tfidf train.freeze_encoder=true",
            "config.no_effect",
            ["train.freeze_encoder: true", "baseline: tfidf"],
        ),
        ("distil.teacher=a distil.distance=mse distil.temperature=3", "config.no_effect", ["distil.temperature: 3.0"]),
        ("distil.teacher=a distil.weight=0", "config.invalid_value", ["distil.weight"]),
        (
            "distil.teacher=a distil.weight=1 task.focal_gamma=2",
            "config.no_effect",
            ["task.focal_gamma: 2", "weight: 1"],
        ),
        ("distil.teacher=a distil.weight=1 task.loss.function=m:f", "config.no_effect", ["task.loss.function: m:f"]),
        ("distil.teacher=[a,a]", "config.invalid_value", ["distil.teacher", "a"]),
        ("baseline=tfidf distil.teacher=a", "config.no_effect", ["distil.teacher: a", "tfidf"]),
        ("distil.weight=0.5", "config.required", ["distil.teacher"]),
        ("baseline=tfidf data.split=", "data.validation_missing", ["baseline.inverse_regularization", "5"]),
        (
            "evaluate.best=loss;baseline={kind: tfidf, estimator: svm}",
            "config.no_effect",
            ["evaluate.best: loss", "baseline.estimator: svm"],
        ),
    ],
)
def test_an_invalid_combination_is_one_problem(reject, overrides, code, values):
    # Settings are separated by spaces, or by semicolons where a value is a mapping.
    settings = overrides.replace(":a", ": a").split(";") if "{" in overrides else overrides.split(" ")
    error = reject(*settings, swap=("  split:\n    validation: 0.2\n", "") if "data.split={" in overrides else ("", ""))
    check_code(error, code, *values)
    assert len(error.faults) == 1, error.text()


def test_two_spellings_of_a_home_folder_are_the_same_file(reject, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    error = reject("data.test=~/t.csv", "data.extra={x: /home/me/t.csv}")
    check_code(error, "config.conflict", "data.extra.x", "data.test: /home/me/t.csv")


def test_labels_must_not_contain_the_separator(reject):
    multi_label = ("kind: classification", "kind: multi_label")
    labels = "task.labels=[a|b, c, d/e]"
    check_code(reject(labels, swap=multi_label), "task.labels", 'task.separator: "|"', '"a|b"')
    check_code(reject(labels, "task.separator=/", swap=multi_label), "task.labels", "task.separator: /", "d/e")
    check_code(reject("data.split.stratify=true", swap=multi_label), "config.no_effect", "multi_label")
    check_code(reject("task.labels=[a]", swap=multi_label), "task.labels", "1 class")


@pytest.mark.parametrize(
    ("override", "code", "values"),
    [
        ("data.extra={test: t.csv}", "config.invalid_value", ["data.extra.test: test"]),
        ("data.predict={validation: t.csv}", "config.invalid_value", ["data.predict.validation: validation"]),
        ("data.extra={a/b: t.csv}", "config.invalid_value", ["data.extra: a/b"]),
        ("data.extra={x: train.csv}", "config.conflict", ["data.extra.x", "data.train"]),
        ("data.predict=[t.csv]", "config.invalid_value", ["data.predict", "[t.csv]"]),
    ],
)
def test_more_sets_need_their_own_names_and_files(reject, override, code, values):
    check_code(reject(override), code, *values)


def test_a_test_set_without_labels_is_called_test(good):
    further = ["data.predict={test: t.csv}", "data.extra={second: s.csv}"]
    assert load_config(good, further).config.data.predict == {"test": "t.csv"}
    with raises_code("config.invalid_value", "data.predict.test: test"):
        load_config(good, [*further, "data.test=other.csv"])
    with raises_code("config.invalid_value", "data.predict.second: second"):
        load_config(good, [*further, "data.predict.second=other.csv"])


@pytest.mark.parametrize(
    ("overrides", "code", "values"),
    [
        (["data.columns.label=[a]"], "config.invalid_value", ["data.columns.label", "1", "a"]),
        (["data.columns.label=[a, b, a]"], "config.invalid_value", ["data.columns.label", "3"]),
        (["task.targets=[x, y]"], "config.invalid_value", ["data.columns.label", "1"]),
        (["data.columns.label=[a, b]", "task.targets=[x, y, z]"], "config.invalid_value", ["data.columns.label", "2"]),
        (["data.columns.label=[a, b]", "evaluate.slices=[length]"], "config.no_effect", ["evaluate.slices"]),
        (["data.columns.label=[a, b]", "baseline=tfidf"], "config.no_effect", ["baseline.kind: tfidf"]),
        (["data.columns.label=[a, b]", "distil.teacher=runs/a"], "config.no_effect", ["distil.teacher"]),
        (["task.raters=each"], "config.invalid_value", ["data.columns.label", "1"]),
        (["task.raters=each", "data.columns.label=[a]"], "config.invalid_value", ["data.columns.label", "1"]),
        (["task.raters=some", "data.columns.label=[a, b]"], "config.invalid_value", ["task.raters", "some"]),
        (
            ["task.raters=mean", "data.columns.label=[a, b]", "task.targets=[x, y]"],
            "config.conflict",
            ["task.raters: mean", "task.targets"],
        ),
    ],
)
def test_several_targets_are_named_once_and_have_what_they_support(reject, overrides, code, values):
    check_code(reject(*overrides, swap=REGRESSION), code, *values)


def test_a_regression_has_no_labels_to_stratify_by(reject):
    error = reject("data.split.stratify=true", swap=REGRESSION)
    check_code(error, "config.no_effect", "--set: data.split.stratify: true", "regression")
    check_code(reject("evaluate.best=f1", swap=REGRESSION), "metric.unknown", "evaluate.best: f1", "regression")


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluate.best=f1_macro", "evaluate.patience=2", "evaluate.min_delta=0.01"],
        ["evaluate.every=steps", "evaluate.steps=10", "evaluate.best=loss"],
        ["data.split=", "data.validation=v.csv", "data.test=t.csv"],
        ["data.split=", "data.train=hub:x@train", "data.validation=hub:x@validation", "data.hub_revision=v1"],
        ["data.train=a.xlsx", "data.header=false", "data.columns={text: 1, label: 2}"],
        ["data.split=", "data.train=folder#train", "data.validation=folder#validation"],
        ["data.columns.text=[a, b]", "data.columns.separator=' '"],
        ["data.columns.text_pair=other", "data.truncation=only_second"],
        ["data.split.group_by=author"],
        ["train.epochs=", "train.max_steps=5", "train.warmup_steps=5"],
        ["batch.global=", "batch.per_device=4", "batch.grad_accum_steps=2"],
        ["task.labels={0: bad, 1: bad, 2: good}"],
        ["data.split={validation: 0.3, test: 0.3, stratify: true}"],
    ],
)
def test_valid_combinations_load(good, overrides):
    load_config(good, overrides)


MORE = {
    "mlm": MASKED_LM,
    "multiple_choice": ["data.columns.choices=[a, b]"],
    "embedding": ["data.columns.text_pair=b"],
}
"""Further options that a task needs."""


def _task_swap(task):
    if task == "embedding":
        return REGRESSION[0], f"  kind: {task}\n  loss: cosine_similarity\n"
    if task == "token_classification":
        return REGRESSION[0], f"  kind: {task}\n  labels: [O, B-PER, I-PER]\n"
    if task == "own":
        return REGRESSION[0], "  kind: own\n  recipe: my_tasks:Ranking\n"
    return (
        ("classification", task)
        if task not in ("regression", "qa", "multiple_choice")
        else (REGRESSION[0], f"  kind: {task}\n")
    )


@pytest.mark.parametrize("task", METRICS)
def test_every_task_reads_several_files(good, task, good_text):
    swap = _task_swap(task)
    good.write_text(good_text if task == "mlm" else good_text.replace(*swap))
    overrides = ["data.train=[a.csv, b.csv]", *MORE.get(task, ())]
    assert load_config(good, overrides).config.data.train == ["a.csv", "b.csv"]


@pytest.mark.parametrize("task", METRICS)
def test_every_metric_of_a_task_can_select_the_best_model(good, task, good_text):
    swap = _task_swap(task)
    swapped = good_text.replace(*swap)
    good.write_text(good_text if task == "mlm" else swapped)
    overrides = MORE.get(task, ())
    # Those of other losses: `test_check_embedding.py`.
    for metric in METRICS[task] if task != "embedding" else ("spearman", "pearson", "loss"):
        assert load_config(good, [*overrides, f"evaluate.best={metric}"]).config.evaluate.best == metric


@pytest.mark.parametrize(
    ("overrides", "code", "values"),
    [
        ("data.columns.label=label", "config.no_effect", ["data.columns.label: label", "task.kind: mlm"]),
        ("data.columns.text_pair=b", "config.no_effect", ["data.columns.text_pair: b", "task.kind: mlm"]),
        ("data.columns.id=row", "config.no_effect", ["data.columns.id: row", "task.kind: mlm"]),
        ("data.columns.text=", "config.required", ["data.columns.text", "task.kind: mlm"]),
        ("data.truncation=only_first", "config.no_effect", ["data.truncation: only_first", "task.kind: mlm"]),
        ("data.truncation=head_tail", "config.no_effect", ["data.truncation: head_tail", "task.kind: mlm"]),
        ('model.adapter={"kind":"lora","save":"adapter"}', "config.conflict", ["model.adapter.save", "task.kind: mlm"]),
        ("data.split.stratify=true", "config.no_effect", ["data.split.stratify: true"]),
        ("evaluate.slices=[topic]", "config.no_effect", ["evaluate.slices: [topic]", "task.kind: mlm"]),
        ("evaluate.best=f1", "metric.unknown", ["evaluate.best: f1"]),
        ("task.mask_probability=1.0", "config.invalid_value", ["task.mask_probability"]),
        ("task.windows=lines", "config.invalid_value", ["task.windows"]),
    ],
)
def test_options_without_effect_in_masked_language_modelling_are_refused(reject, overrides, code, values):
    check_code(reject(*MASKED_LM, *overrides.split()), code, *values)


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ("range=[9, 0]", "config.invalid_value", ["task.range", "[9, 0]"]),
        ("range=[0, 8.8] round_to=0.5", "task.range", ["8.8", "task.round_to: 0.5"]),
        ("round_to=0", "config.invalid_value", ["task.round_to", "0"]),
        ("grades=[9, 0, 1]", "task.range", ["task.grades", "[9.0, 0.0, 1.0]"]),
        ("grades=[0, 8.8, 0.5]", "task.range", ["task.grades"]),
        ("grades=[0, 9, 0]", "task.range", ["task.grades"]),
        ("grades=[0, 9]", "config.invalid_value", ["task.grades"]),
        ("grades=[0, 9, 1] range=[0, 9]", "config.no_effect", ["task.grades", "task.range"]),
        ("grades=[0, 9, 1] round_to=1", "config.no_effect", ["task.grades", "task.round_to"]),
    ],
)
def test_an_invalid_scale_of_scores_is_refused(good, good_text, options, code, values):
    good.write_text(good_text.replace(*REGRESSION))
    load_config(good, ["task.range=[0, 9]", "task.round_to=0.5"])
    load_config(good, ["task.grades=[0, 9, 0.5]"])
    with raises_code(code, *values):
        load_config(good, [f"task.{option}" for option in options.replace(", ", ",").split(" ")])


def test_a_problem_has_the_line_of_its_setting_or_of_the_section_of_a_missing_one(reject, good_text):
    error = reject(text=good_text + "evaluate:\n  best: nothing\n  min_delta: 0.1\n")
    assert [(fault.code, fault.facts["line"]) for fault in error.faults] == [
        ("metric.unknown", 18),
        ("config.no_effect", 19),
    ]
    check_code(reject(text=good_text + "  per_device: 2\n"), "config.conflict", line=16)
    check_code(reject(swap=("epochs: 2", "max_grad_norm: 2")), "config.required", line=13)


def test_a_setting_that_a_strategy_excludes_is_refused_with_the_reason(reject, good, monkeypatch):
    traits = replace(
        TRAITS["ddp"], excludes={"precision=fp64": "it is only an example", "train.freeze_encoder=true": "x"}
    )
    monkeypatch.setitem(TRAITS, "ddp", traits)
    error = reject("strategy=ddp", "precision=fp64")
    check_code(error, "strategy.excluded", "precision: fp64", "strategy.kind: ddp", "it is only an example")
    assert len(error.faults) == 1
    load_config(good, ["strategy=ddp"])
    load_config(good, ["precision=fp64"])


@pytest.mark.parametrize(
    ("strategy", "code", "values"),
    [
        ("{kind: pipeline, chunks: 2}", "config.no_effect", ["strategy.chunks: 2", "strategy.schedule: 1f1b"]),
        ("{kind: pipeline, stages: 4, balance: [2, 2]}", "config.conflict", ["strategy.balance: [2, 2]", "4"]),
        (
            "{kind: pipeline, schedule: interleaved, balance: [2, 2]}",
            "config.conflict",
            ["strategy.balance: [2, 2]", "4"],
        ),
        ("{kind: pipeline, stages: 1}", "config.invalid_value", ["strategy.stages", "1", "2"]),
    ],
)
def test_invalid_options_of_a_pipeline_are_refused(reject, strategy, code, values):
    check_code(reject(f"strategy={strategy}"), code, *values)


def test_compile_is_refused_with_strategies_that_exclude_it(reject, good):
    for strategy in ("{kind: pipeline}", "{kind: deepspeed, stage: 3}"):
        kind = strategy[1:-1].split(",")[0]
        error = reject(f"strategy={strategy}", "train.compile=true")
        check_code(error, "strategy.excluded", "train.compile: true", f"strategy.{kind}")
    load_config(good, ["strategy={kind: deepspeed, stage: 2}", "train.compile=true"])


def test_only_strategies_that_shard_weights_write_sharded_checkpoints(reject, good):
    for kind in ("single", "ddp", "zero1", "deepspeed, stage: 0"):
        error = reject(f"strategy={{kind: {kind}}}", "checkpoint.sharded=true")
        check_code(error, "strategy.excluded", "checkpoint.sharded: true", f"strategy.kind: {kind.split(',')[0]}")
        for other in ("auto", "false"):
            load_config(good, [f"strategy={{kind: {kind}}}", f"checkpoint.sharded={other}"])
    for kind in ("zero2", "zero3", "hsdp", "pipeline", *(f"deepspeed, stage: {stage}" for stage in (1, 2, 3))):
        load_config(good, [f"strategy={{kind: {kind}}}", "checkpoint.sharded=true"])


def test_a_pipeline_cannot_train_only_the_head(reject, good):
    error = reject("strategy={kind: pipeline}", "train.freeze.blocks=1")
    check_code(error, "strategy.excluded", "train.freeze.blocks: 1", "strategy.kind: pipeline")
    load_config(good, ["strategy={kind: pipeline}", "train.freeze.embeddings=true"])
    error = reject("strategy={kind: pipeline}", "train.freeze_encoder=true")
    check_code(error, "strategy.excluded", "train.freeze_encoder: true", "strategy.kind: pipeline")
    load_config(good, ["strategy={kind: pipeline, schedule: interleaved, chunks: 3, balance: [1, 1, 1, 1, 1, 1]}"])


@pytest.mark.parametrize(
    ("stages", "chunks", "balance", "num_blocks", "refused"),
    [
        (4, 1, "estimated", 2, ("strategy.too_many_stages", "4", "2")),
        (2, 2, "measured", 3, ("strategy.too_many_stages", "2", "4", "3")),
        (2, 1, "estimated", 1, ("strategy.too_many_stages", "1")),
        (2, 1, [3, 4], 6, ("strategy.cannot_cut", "3", "4", "7", "6")),
    ],
)  # fmt: skip
def test_stages_must_match_the_blocks(
    stages: int, chunks: int, balance: Any, num_blocks: int, refused: tuple[str, ...]
):
    with raises_code(*refused):
        refuse(stage_reasons(stages, chunks, balance, num_blocks))


def test_as_many_stages_as_blocks_are_fine():
    assert not [*stage_reasons(3, 2, [1] * 6, 6)]
    assert not [*stage_reasons(6, 1, "estimated", 6)]


QA = """\
task: {kind: qa}
data: {train: train.json}
model: {name: some-model}
train: {epochs: 2}
batch: {global: 32}
"""


def test_a_file_of_squad_needs_no_columns(good):
    good.write_text(QA)
    loaded = load_config(good)
    columns = loaded.config.data.columns
    assert (columns.text, columns.text_pair, columns.label, columns.id) == ("question", "context", "answers", "id")
    assert loaded.origin["data.columns.text"] == "task.kind: qa"
    good.write_text(QA.replace("{kind: qa}", "qa"))
    overrides = ["data.columns={text: q, label: answer, answer_start: start, id: null}"]
    columns = load_config(good, overrides).config.data.columns
    assert (columns.text, columns.text_pair, columns.label, columns.id) == ("q", "context", "answer", None)


@pytest.mark.parametrize(
    ("override", "code", "values"),
    [
        ("data.columns.text_pair=[a, b]", "config.conflict", ["data.columns.text_pair: [a, b]"]),
        ("data.truncation=only_second", "config.no_effect", ["data.truncation: only_second", "qa"]),
        ("data.truncation_side=left", "config.no_effect", ["data.truncation_side: left", "qa"]),
        ("data.max_length=128", "task.stride", ["task.stride: 128", "data.max_length: 128"]),
        (
            "task={kind: qa, unanswerable: false, null_threshold: 1.0}",
            "config.no_effect",
            ["task.null_threshold: 1.0", "task.unanswerable: false"],
        ),
        ("data.columns.label=null", "config.required", ["data.columns.label", "task.kind: qa"]),
        ("data.split={validation: 0.1, stratify: true}", "config.no_effect", ["data.split.stratify: true"]),
    ],
)
def test_invalid_options_of_question_answering_are_refused(reject, override, code, values):
    check_code(reject(override, text=QA), code, *values)


def test_answer_start_is_only_for_question_answering(reject):
    error = reject("data.columns.answer_start=start")
    check_code(error, "config.no_effect", "data.columns.answer_start: start", "classification", "task.kind: qa")


@pytest.mark.parametrize(
    ("override", "code", "values"),
    [
        ("task.labels=[O]", "task.labels", ["task.labels", "1"]),
        ("task.labels=[O, B-PER, B-PER]", "task.labels", ["B-PER twice"]),
        ("task.labels=[O, NOUN]", "task.labels", ["NOUN", "task.scheme: none"]),
        ("task.labels=[O, B-PER, I-LOC]", "task.labels", ["I-LOC"]),
        ("task.labels=[B-PER, I-PER]", "task.labels", ["no O"]),
        ("data.columns.text=[a, b]", "config.conflict", ["data.columns.text"]),
        ("data.columns.text_pair=b", "config.no_effect", ["data.columns.text_pair: b"]),
        ("evaluate.slices=[label]", "config.no_effect", ["evaluate.slices"]),
        ("data.split.stratify=true", "config.no_effect", ["data.split.stratify"]),
        ("data.columns.label=null", "config.required", ["data.columns.label", "token_classification"]),
    ],
)
def test_options_of_tags(reject, override, code, values):
    swap = (REGRESSION[0], "  kind: token_classification\n  labels: [O, B-PER, I-PER]\n")
    overrides = [override, *(() if override.startswith("data.split") else ("data.split.stratify=false",))]
    check_code(reject(*overrides, swap=swap), code, *values)


def test_classes_of_words_have_no_entities(reject):
    swap = (REGRESSION[0], "  kind: token_classification\n  labels: [NOUN, VERB]\n  scheme: none\n  strict: true\n")
    error = reject("evaluate.best=f1", "data.split.stratify=false", swap=swap)
    check_code(error, "config.no_effect", "task.strict: true", "evaluate.best: f1")


@pytest.mark.parametrize(
    ("override", "code", "values"),
    [
        ("data.columns.choices=null", "config.required", ["data.columns.choices", "multiple_choice"]),
        ("data.columns.choices=[a]", "config.conflict", ["data.columns.choices"]),
        ("data.columns.choices=[a, a]", "config.conflict", ["data.columns.choices names a 2 times"]),
        ("data.columns.choices=[a, label]", "config.conflict", ["data.columns.choices", "label"]),
        ("data.columns.choices=[a, sentence]", "config.conflict", ["data.columns.choices has sentence"]),
        ("data.truncation=head_tail", "config.conflict", ["data.truncation", "data.columns.choices"]),
        ("evaluate.slices=[label]", "config.no_effect", ["evaluate.slices"]),
    ],
)
def test_options_of_choices(reject, override, code, values):
    swap = (REGRESSION[0], "  kind: multiple_choice\n")
    overrides = ["data.columns.choices=[a, b]", override, "data.split.stratify=false"]
    check_code(reject(*overrides, swap=swap), code, *values)


def test_choices_in_one_column_have_no_names(reject):
    swap = (REGRESSION[0], "  kind: multiple_choice\n  label_format: name\n")
    error = reject("data.columns.choices=choices", "data.split.stratify=false", swap=swap)
    check_code(error, "config.no_effect", "task.label_format: name")
    check_code(reject("data.columns.choices=[a, b]"), "config.no_effect", "data.columns.choices")


@pytest.mark.parametrize(
    ("overrides", "code", "values"),
    [
        (["task.windows.stride=64", "data.max_length=64"], "task.stride", ["task.windows.stride: 64", "64"]),
        (["task.windows.stride=1", "data.columns.text_pair=b"], "config.conflict", ["data.truncation", "task.windows"]),
        (["task.windows.stride=1", "data.truncation=head_tail"], "config.conflict", ["data.truncation"]),
        (["task.windows.stride=1", "data.truncation_side=left"], "config.no_effect", ["data.truncation_side"]),
        (["task.windows.max_windows=0"], "config.invalid_value", ["task.windows.max_windows"]),
    ],
)
def test_options_of_text_windows(reject, overrides, code, values):
    check_code(reject(*overrides), code, *values)
