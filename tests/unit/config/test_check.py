from dataclasses import replace
from typing import Any

import pytest
from raised import raises_code

from paratune.config.feasibility.rules import stage_reasons
from paratune.config.feasibility.words import refuse
from paratune.config.load import load_config
from paratune.config.metric_names import METRICS
from paratune.config.traits import TRAITS
from paratune.errors import ConfigError

REGRESSION = ("  kind: classification\n  labels: [negative, positive]\n", "  kind: regression\n")
MASKED_LM = "task=mlm", "data.columns.label="


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ("train.epochs=", "train.epochs or train.max_steps is required"),
        ("train.max_steps=5", "train.epochs: 2.0 and train.max_steps: 5 are both given; keep one of them"),
        ("train.warmup_steps=5 train.warmup_ratio=0.1", "train.warmup_steps: 5 and train.warmup_ratio: 0.1 are both"),
        ("train.epochs= train.max_steps=5 train.warmup_steps=6", "train.warmup_steps is 6, more than train.max_steps"),
        ("batch.global=", "batch.global or batch.per_device is required"),
        ("batch.per_device=4", "batch.global: 32 and batch.per_device: 4 are both given"),
        ("batch.global= batch.per_device=4 batch.micro_batch_size=2", "batch.micro_batch_size: 2 has no effect"),
        ("batch.grad_accum_steps=2", "batch.grad_accum_steps: 2 has no effect with batch.global"),
        ("batch.micro_batch_size=64", "batch.micro_batch_size: 64 has no effect above batch.global: 32"),
        ("evaluate.every=steps", "evaluate.steps is required with evaluate.every: steps"),
        ("evaluate.steps=5", "evaluate.steps: 5 has no effect without evaluate.every: steps (it is epoch)"),
        ("checkpoint.every=steps", "checkpoint.steps is required with checkpoint.every: steps"),
        (
            "train.epochs= train.max_steps=5 evaluate.every=steps evaluate.steps=6",
            "evaluate.steps is 6, more than train.max_steps: 5; it would never be due",
        ),
        (
            "train.epochs= train.max_steps=5 checkpoint.every=steps checkpoint.steps=6",
            "checkpoint.steps is 6, more than train.max_steps: 5; it would never be due",
        ),
        ("checkpoint.steps=5 checkpoint.every=never", "checkpoint.steps: 5 has no effect without checkpoint"),
        ("evaluate.patience=2", "evaluate.patience: 2 needs evaluate.best"),
        ("evaluate.min_delta=0.1", "evaluate.min_delta: 0.1 has no effect without evaluate.patience"),
        ("evaluate.best=rmse", "evaluate.best: rmse is not a metric of classification; allowed: accuracy, f1, "),
        ("evaluate.best=acuracy", "did you mean accuracy?; allowed: "),
        ("evaluate.best=f1 evaluate.every=never", "evaluate.best: f1 has no effect with evaluate.every: never"),
        ("evaluate.best=f1 data.split=", "evaluate.best: f1 needs a validation set; give data.validation or"),
        ("evaluate.every=steps evaluate.steps=2 data.split=", "evaluate.every: steps needs a validation set"),
        ("data.train=", "data.train is required"),
        ("data.max_rows.test=5", "data.max_rows.test: 5 has no effect without data.test or data.split.test"),
        ("data.split= data.validation=train.csv", "data.validation is the same as data.train: train.csv"),
        ("data.test=./x/../train.csv", "data.test is the same as data.train: ./x/../train.csv"),
        ("data.split= data.validation=v.csv data.test=v.csv", "data.test is the same as data.validation: v.csv"),
        ("data.train=[a.csv,./a.csv]", "data.train names ./a.csv twice; its rows would count double"),
        ("data.split= data.train=[a.csv,v.csv] data.validation=v.csv", "data.validation is the same as data.train"),
        ("data.hub_revision=main", "data.hub_revision: main has no effect without a data set named hub:NAME"),
        ("data.validation=v.csv", "data.split.validation: 0.2 and data.validation: v.csv are both given"),
        ("data.test=t.csv data.split.test=0.1", "data.split.test: 0.1 and data.test: t.csv are both given"),
        ("data.split={validation: null, seed: 1}", "data.split cuts nothing"),
        ("data.split={validation: 0.5, test: 0.5}", "data.split takes 1 of the rows"),
        ("data.split.stratify=true data.split.group_by=g", "data.split.stratify: true and data.split.group_by: g"),
        ("data.columns.text=label", "data.columns.text holds label, which is also data.columns.label"),
        ("data.columns.text_pair=[a,label]", "data.columns.text_pair holds label, which is also data.columns.label"),
        ("data.columns.text=[a,a]", "data.columns.text names a 2 times"),
        ("data.columns.text_pair=sentence", "data.columns.text_pair is the same as data.columns.text: sentence"),
        ("data.columns.separator=x", "data.columns.separator: x has no effect when no columns are joined"),
        ("data.truncation=only_second", "data.truncation: only_second has no effect without data.columns.text_pair"),
        ("task.labels=[a]", "task.labels has 1 class: [a]; at least 2 are needed"),
        ("task.labels=[]", "task.labels has no classes: []"),
        ("task.labels={0:a,1:a}", "task.labels has 1 class"),
        ("task.labels=[1,'1']", "task.labels has 1 twice; labels must differ in their text"),
        ("model.revision=v1 model.name=demo:minilm", "model.revision: v1 has no effect with model.name: demo:minilm"),
        ("strategy={kind: deepspeed, stage: 0, offload_optimizer: true}", "offload_optimizer: true has no effect with"),
        ("strategy={kind: deepspeed, stage: 2, offload_parameters: true}", "with strategy.stage: 2; use stage 3"),
        ("strategy={kind: deepspeed, cpu_adam: true}", "strategy.cpu_adam: true has no effect without"),
        ("strategy={kind: deepspeed, stage: 0, bucket_cap_mb: 5.0}", "strategy.bucket_cap_mb: 5.0 has no effect with"),
        ("strategy={kind: deepspeed, stage: 1, param_persistence_threshold: 0}", "no effect with strategy.stage: 1"),
        (
            "precision=fp64;strategy={kind: deepspeed, offload_optimizer: true, cpu_adam: true}",
            "precision: fp64 cannot be combined with strategy.kind: deepspeed: DeepSpeed's own AdamW computes in fp32",
        ),
        (
            "train.optimizer=lamb;strategy={kind: deepspeed, stage: 1}",
            "train.optimizer: lamb cannot be combined with strategy.kind: deepspeed: at stage 1 DeepSpeed joins",
        ),
        ("model.tokenizer_revision=v1", "model.tokenizer_revision: v1 has no effect without model.tokenizer"),
        ("train.freeze_encoder=true train.activation_checkpointing=1", "train.activation_checkpointing: 1 has no"),
        (
            "strategy={kind: deepspeed, stage: 3, offload_parameters: true};device=cpu",
            "strategy.offload_parameters: true has no effect with device: cpu",
        ),
        ("strategy.kind=zero3 strategy.cpu_offload=true device=cpu", "strategy.cpu_offload: true has no effect with"),
        (
            "strategy.kind=zero3 strategy.param_dtype=bf16",
            "strategy.param_dtype: bf16 needs precision: bf16, and it is fp32; set precision: bf16, or leave",
        ),
        ("strategy.kind=zero2 strategy.param_dtype=bf16 precision=fp16", "needs precision: bf16, and it is fp16"),
        (
            "precision=bf16;strategy={kind: deepspeed, stage: 0, param_dtype: bf16}",
            "strategy.param_dtype: bf16 cannot be combined with strategy.stage: 0",
        ),
        (
            "precision=bf16;train.freeze_encoder=true;strategy={kind: deepspeed, param_dtype: bf16}",
            "train.freeze_encoder: true cannot be combined with strategy.kind: deepspeed: DeepSpeed keeps no copy",
        ),
        ("strategy={kind: deepspeed, stage: 1, prefetch_bucket_size: 5}", "prefetch_bucket_size: 5 has no effect with"),
        ("strategy={kind: deepspeed, stage: 3, allgather_bucket_size: 4}", "with strategy.stage: 3; use stage 1 or 2"),
        (
            "strategy={kind: deepspeed, bucket_cap_mb: 5.0, reduce_bucket_size: 7}",
            "strategy.bucket_cap_mb: 5.0 and strategy.reduce_bucket_size: 7 are both given; keep one of them",
        ),
        ("strategy={kind: deepspeed, allgather_bucket_size: 5}", "strategy.allgather_bucket_size: 5 is odd"),
        ("baseline=tfidf strategy=ddp", "strategy.kind: ddp has no effect with baseline: tfidf"),
        ("baseline=tfidf train.freeze_encoder=true", "train.freeze_encoder: true has no effect with baseline: tfidf"),
        ("baseline=tfidf data.split=", "baseline.inverse_regularization has 5 values, of which a"),
        (
            "evaluate.best=loss;baseline={kind: tfidf, estimator: svm}",
            "evaluate.best: loss has no effect with baseline.estimator: svm",
        ),
    ],
)  # fmt: skip
def test_a_combination_that_cannot_hold_is_one_problem(complain, overrides, what):
    # Flow mappings hold spaces; elsewhere a space parts two settings.
    settings = overrides.replace(":a", ": a").split(";") if "{" in overrides else overrides.split(" ")
    text = complain(
        *settings, swap=("  split:\n    validation: 0.2\n", "") if "data.split={" in overrides else ("", "")
    )
    assert what in text
    assert text.count("\n  ") == 1, text


def test_a_file_is_the_same_however_its_home_is_written(complain, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    text = complain("data.test=~/t.csv", "data.extra={x: /home/me/t.csv}")
    assert "data.extra.x is the same as data.test: /home/me/t.csv" in text


def test_labels_of_a_set_do_not_hold_what_stands_between_them(complain):
    several = ("kind: classification", "kind: multi_label")
    text = complain("task.labels=[a|b, c, d/e]", swap=several)
    assert 'task.separator: "|" occurs inside "a|b" of task.labels' in text
    assert "occurs inside d/e of" in complain("task.labels=[a|b, c, d/e]", "task.separator=/", swap=several)
    assert "has no effect in multi_label" in complain("data.split.stratify=true", swap=several)
    assert "task.labels has 1 class" in complain("task.labels=[a]", swap=several)


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("data.extra={test: t.csv}", "data.extra.test: test is the name of another set"),
        ("data.predict={validation: t.csv}", "data.predict.validation: validation is the name of another set"),
        ("data.extra={a/b: t.csv}", "data.extra: a/b is not a name; allowed: letters, digits, '_' and '-'"),
        ("data.extra={x: train.csv}", "data.extra.x is the same as data.train"),
        ("data.predict=[t.csv]", "data.predict is [t.csv] (a list); allowed: a mapping of texts to texts"),
    ],
)
def test_further_sets_have_names_and_files_of_their_own(complain, override, found):
    assert found in complain(override)


def test_a_test_set_without_labels_is_called_test(good):
    further = ["data.predict={test: t.csv}", "data.extra={second: s.csv}"]
    assert load_config(good, further).config.data.predict == {"test": "t.csv"}
    with raises_code("config.invalid_value", "data.predict.test: test"):
        load_config(good, [*further, "data.test=other.csv"])
    with raises_code("config.invalid_value", "data.predict.second: second"):
        load_config(good, [*further, "data.predict.second=other.csv"])


def test_a_regression_has_no_labels_to_stratify_by(complain):
    text = complain("data.split.stratify=true", swap=REGRESSION)
    assert "--set: data.split.stratify: true has no effect in regression, which has no labels that" in text
    assert "evaluate.best: f1 is not a metric of regression" in complain("evaluate.best=f1", swap=REGRESSION)


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluate.best=f1_macro", "evaluate.patience=2", "evaluate.min_delta=0.01"],
        ["evaluate.every=steps", "evaluate.steps=10", "evaluate.best=loss"],
        ["data.split=", "data.validation=v.csv", "data.test=t.csv"],
        ["data.split=", "data.train=hub:x@train", "data.validation=hub:x@validation", "data.hub_revision=v1"],
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
def test_what_can_be_combined_is_not_refused(good, overrides):
    load_config(good, overrides)


@pytest.mark.parametrize("task", METRICS)
def test_every_task_reads_several_files(good, task, good_text):
    has_labels = task not in ("regression", "qa")
    of_task = ("classification", task) if has_labels else (REGRESSION[0], f"  kind: {task}\n")
    good.write_text(good_text if task == "mlm" else good_text.replace(*of_task))
    overrides = ["data.train=[a.csv, b.csv]", *(MASKED_LM if task == "mlm" else ())]
    assert load_config(good, overrides).config.data.train == ["a.csv", "b.csv"]


@pytest.mark.parametrize("task", METRICS)
def test_every_metric_of_a_task_can_choose_the_best(good, task, good_text):
    has_labels = task not in ("regression", "qa")
    of_task = ("classification", task) if has_labels else (REGRESSION[0], f"  kind: {task}\n")
    swapped = good_text.replace(*of_task)
    good.write_text(good_text if task == "mlm" else swapped)
    overrides = MASKED_LM if task == "mlm" else ()
    for metric in METRICS[task]:
        assert load_config(good, [*overrides, f"evaluate.best={metric}"]).config.evaluate.best == metric


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ("data.columns.label=label", "data.columns.label: label has no effect with task.kind: mlm, which learns from"),
        ("data.columns.text_pair=b", "data.columns.text_pair: b has no effect with task.kind: mlm"),
        ("data.columns.id=row", "data.columns.id: row has no effect with task.kind: mlm"),
        ("data.columns.text=", "data.columns.text is required with task.kind: mlm: the column of the text"),
        ("data.truncation=only_first", "data.truncation: only_first has no effect with task.kind: mlm"),
        ("data.split.stratify=true", "data.split.stratify: true has no effect in mlm, which has no labels"),
        ("evaluate.slices=[topic]", "evaluate.slices: [topic] has no effect with task.kind: mlm"),
        ("evaluate.best=f1", "evaluate.best: f1 is not a metric of mlm; allowed: perplexity, accuracy, loss"),
        ("task.mask_probability=1.0", "task.mask_probability"),
        ("task.windows=lines", "task.windows"),
    ],
)
def test_what_running_text_has_no_use_for(complain, overrides, what):
    assert what in complain(*MASKED_LM, *overrides.split())


@pytest.mark.parametrize(
    ("bands", "what"),
    [
        ("range=[9, 0]", "task.range: [9.0, 0.0] must name a lower and then a higher score"),
        ("range=[0, 8.8] round_to=0.5", "ends at 8.8, which is no multiple of task.round_to: 0.5"),
        ("round_to=0", "task.round_to is 0"),
    ],
)
def test_a_scale_on_which_nothing_could_be_reported_is_refused(good, good_text, bands, what):
    good.write_text(good_text.replace(*REGRESSION))
    load_config(good, ["task.range=[0, 9]", "task.round_to=0.5"])
    with pytest.raises(ConfigError) as caught:
        load_config(good, [f"task.{each}" for each in bands.replace(", ", ",").split(" ")])
    assert what in str(caught.value)


def test_the_line_is_that_of_the_setting_that_is_wrong(complain, good_text):
    text = complain(text=good_text + "evaluate:\n  best: nothing\n  min_delta: 0.1\n")
    assert "line 18: evaluate.best: nothing is not a metric" in text
    assert "line 19: evaluate.min_delta: 0.1 has no effect" in text
    # Of two that exclude each other, one place is enough; of something missing, its section is the place.
    assert "line 16: batch.global: 32 and batch.per_device: 2" in complain(text=good_text + "  per_device: 2\n")
    assert "line 13: train.epochs or train.max_steps" in complain(swap=("epochs: 2", "max_grad_norm: 2"))


def test_what_a_strategy_excludes_is_refused_with_its_reason(complain, good, monkeypatch):
    traits = replace(
        TRAITS["ddp"], excludes={"precision=fp64": "it is only an example", "train.freeze_encoder=true": "x"}
    )
    monkeypatch.setitem(TRAITS, "ddp", traits)
    text = complain("strategy=ddp", "precision=fp64")
    assert "precision: fp64 cannot be combined with strategy.kind: ddp: it is only an example" in text
    assert text.count("\n  ") == 1
    load_config(good, ["strategy=ddp"])
    load_config(good, ["precision=fp64"])


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        ("{kind: pipeline, chunks: 2}", "strategy.chunks: 2 has no effect with strategy.schedule: 1f1b"),
        ("{kind: pipeline, stages: 4, balance: [2, 2]}", "strategy.balance: [2, 2] names 2 stages, and there are 4"),
        (
            "{kind: pipeline, schedule: interleaved, balance: [2, 2]}",
            "strategy.balance: [2, 2] names 2 stages, and there are 4",
        ),
        ("{kind: pipeline, stages: 1}", "strategy.stages is 1 (a whole number); allowed: a whole number at least 2"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused(complain, strategy, what):
    assert what in complain(f"strategy={strategy}")


def test_graphs_are_refused_where_they_cannot_be_had(complain, good):
    for strategy in ("{kind: pipeline}", "{kind: deepspeed, stage: 3}"):
        kind = strategy[1:-1].split(",")[0].removeprefix("kind: ")
        told = complain(f"strategy={strategy}", "train.compile=true")
        assert f"train.compile: true cannot be combined with strategy.kind: {kind}: " in told
    load_config(good, ["strategy={kind: deepspeed, stage: 2}", "train.compile=true"])


def test_a_pipeline_does_not_train_a_head_alone(complain, good):
    assert "train.freeze_encoder: true cannot be combined with strategy.kind: pipeline" in complain(
        "strategy={kind: pipeline}", "train.freeze_encoder=true"
    )
    load_config(good, ["strategy={kind: pipeline, schedule: interleaved, chunks: 3, balance: [1, 1, 1, 1, 1, 1]}"])


@pytest.mark.parametrize(
    ("stages", "chunks", "balance", "num_blocks", "refused"),
    [
        (4, 1, "estimated", 2, ("strategy.too_many_stages", "4", "2")),
        (2, 2, "measured", 3, ("strategy.too_many_stages", "2", "4", "3")),
        (2, 1, "estimated", 1, ("strategy.too_many_stages", "1")),
        (2, 1, [3, 4], 6, ("strategy.balance_mismatch", "3", "4", "7", "6")),
    ],
)  # fmt: skip
def test_stages_are_held_to_the_blocks(
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
    ("override", "what"),
    [
        ("data.columns.text_pair=[a, b]", "joins columns, and the place of an answer counts in one"),
        (
            "data.truncation=only_second",
            "data.truncation: only_second has no effect in qa: contexts are cut into windows",
        ),
        (
            "data.truncation_side=left",
            "data.truncation_side: left has no effect in qa: contexts are cut into windows",
        ),
        (
            "data.max_length=128",
            "task.stride: 128 tokens that neighbouring windows share leave no new ones in windows of",
        ),
        (
            "task={kind: qa, unanswerable: false, null_threshold: 1.0}",
            "task.null_threshold: 1.0 has no effect with task.unanswerable: false",
        ),
        (
            "data.columns.label=null",
            "data.columns.label is required with task.kind: qa: the column of the gold answers",
        ),
        ("data.split={validation: 0.1, stratify: true}", "data.split.stratify: true has no effect in qa"),
    ],
)
def test_what_does_not_fit_question_answering(complain, override, what):
    assert what in complain(override, text=QA)


def test_places_of_answers_are_for_question_answering(complain):
    text = complain("data.columns.answer_start=start")
    assert "data.columns.answer_start: start has no effect in classification; it is for task.kind: qa" in text
