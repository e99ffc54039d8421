import pytest

from paratune.config.options import find_key, options_of
from paratune.config.sections import Config
from paratune.config.validate import ELSEWHERE, describe_value, validate


@pytest.mark.parametrize(
    ("override", "what"),
    [
        # The nearest key of the section, of a section in it, of other tools, of other sections; else all keys.
        ("train.learning_rte=1", "train.learning_rte is not an option of train; did you mean learning_rate?"),
        ("trian.epochs=1", "trian is not a section of a configuration; did you mean train?"),
        ("data.label=1", "data.label is not an option of data; did you mean data.columns.label?"),
        ("train.lr=1", "train.lr is not an option of train; did you mean learning_rate?"),
        ("train.batch_size=1", "train.batch_size is not an option of train; did you mean batch.global?"),
        ("data.text=1", "data.text is not an option of data; did you mean data.columns.text?"),  # not data.test
        (
            "batch.batch_size=1",
            "batch.batch_size is not an option of batch; did you mean global?",
        ),  # not micro_batch_size
        ("train.precision=1", "train.precision is not an option of train; did you mean precision?"),
        ("model.weight_decay=1", "model.weight_decay is not an option of model; did you mean train.weight_decay?"),
        ("batch.zzz=1", "batch.zzz is not an option of batch; it has: global, per_device, micro_batch_size"),
        ("data.columns.txt=1", "data.columns.txt is not an option of data.columns; did you mean text?"),
        ("batch.global_=1", "batch.global_ is not an option of batch; did you mean global?"),
        # Strategies and tasks, by kind.
        (
            "strategy.bucket_cap_mb=1",
            "strategy.bucket_cap_mb is not an option of single; ddp has it (strategy.kind: ddp)",
        ),
        (
            "strategy={kind: ddp, bucket_cap: 1}",
            "strategy.bucket_cap is not an option of ddp; did you mean bucket_cap_mb?",
        ),
        ("strategy={kind: 'a:B', x: 1}", "strategy.x is not an option of a:B; it has: kind, options"),
        ("strategy=dpp", 'strategy.kind is "dpp" (text); did you mean ddp?; allowed: single, ddp, '),
        (
            "strategy=fsdp",
            "; FSDP's full shard is zero3 here, shard_grad_op zero2, hybrid shard hsdp; allowed: single, ",
        ),
        ("strategy=FSDP2", "; FSDP's full shard is zero3 here"),
        ("strategy=shard-grad-op", "; it is zero2 here; allowed"),
        ("strategy=zero", "; there are zero1, zero2 and zero3, and deepspeed with strategy.stage; allowed: "),
        ("strategy=hspd", "; did you mean hsdp?"),
        ("strategy.kind=3", "strategy.kind is 3 (a whole number); allowed: single, ddp"),
        ("strategy={x: 1}", "strategy.x is not an option of single; it has: kind"),
        ("strategy=a b:c", 'strategy.kind is "a b:c" (text); allowed: package.module:Class'),
        ("task.kind=clasification", 'task.kind is "clasification" (text); did you mean classification?'),
        ("task.kind=regression", "task.labels is not an option of regression; classification has it"),
        ("task=classification", "task.labels is required: The label values of the data"),
        # Types: what was found, what is allowed, and the slip behind it.
        ("train.epochs='3'", 'train.epochs is "3" (text); allowed: a number above 0, or null; take off the quotes'),
        ("train.learning_rate=0", "train.learning_rate is 0 (a whole number); allowed: a number above 0"),
        ("train.learning_rate=", "is null; allowed: a number above 0; leave it out for its default, 5.0e-05"),
        ("train.learning_rate=.inf", "train.learning_rate is .inf (a number); allowed: a number above 0"),
        ("run.hang_timeout_s=.inf", "allowed: a number at least 1 and at most 100000000"),
        ("run.hang_timeout_s=1e11", "run.hang_timeout_s is"),
        ("measure.sample_every_s=.nan", "measure.sample_every_s is .nan"),
        (
            "train.max_steps=3.0",
            "train.max_steps is 3.0 (a number); allowed: a whole number at least 1, or null; write 3",
        ),
        ("train.max_steps=true", "train.max_steps is true (true or false); allowed: a whole number at least 1"),
        (
            "train.activation_checkpointing=true",
            "is true (true or false); allowed: a whole number at least 1, or null; write 1 for every block, 2 for "
            "every second one",
        ),
        ("train.activation_checkpointing=0.5", "is 0.5 (a number); allowed: a whole number at least 1, or null"),
        ("train.betas=[0.9]", "train.betas is [0.9] (a list); allowed: a list of 2 numbers at least 0 and below 1"),
        ("train.betas=[0.9, 1.5]", "train.betas is [0.9, 1.5] (a list); allowed: a list of 2 numbers"),
        ("train.freeze_encoder=yes", 'is "yes" (text); allowed: true or false; write true or false'),
        ("train.schedule=cosin", "allowed: linear, cosine or constant; did you mean cosine?"),
        (
            "data.columns.text=3",
            "is 3 (a whole number); allowed: text, or a list of texts, or null; put it in quotes if it is text",
        ),
        ("data.columns.text=[]", "data.columns.text is [] (a list); allowed: text, or a list of texts"),
        ("data.train=''", 'data.train is "" (text); allowed: text'),
        ("task.labels=[true, false]", "allowed: a list of texts or whole numbers, or a mapping"),
        ("task.labels=[true, false]", "put true in quotes if it is text"),
        ("task.labels={0: a, 1: 2}", "task.labels is {0: a, 1: 2} (a mapping)"),
        ("data.split.validation=1.0", "data.split.validation is 1.0 (a number); allowed: a number above 0 and below 1"),
        (
            "data.split.validation=0",
            "data.split.validation is 0 (a whole number); allowed: a number above 0 and below 1",
        ),
        ("run.name=a/b", "allowed: letters, digits, '.', '_' and '-', with a letter or digit first, or null"),
        ("run.name=../up", 'run.name is "../up" (text)'),
        ("run.seed=-1", "run.seed is -1 (a whole number); allowed: a whole number at least 0 and below 4294967296"),
        ("model.overrides=[1]", "model.overrides is [1] (a list); allowed: a mapping of texts to anything"),
        ("model=demo:minilm", 'model is "demo:minilm" (text); allowed: a mapping of options (name, tokenizer'),
        ("data=[1]", "data is [1] (a list); allowed: a mapping of options (train, validation"),
        ("task=[1]", "task is [1] (a list); allowed: a mapping of options"),
        ("data.columns=", "data.columns.text is required with task.kind: classification: the column of the text"),
        ("model=", "model.name is required: A local Hugging Face folder, a hub name, or `demo:minilm`. Allowed: text"),
    ],
)
def test_what_is_wrong_in_a_section_is_said_with_what_is_allowed(complain, override, what):
    assert what in complain(override)


def test_a_problem_is_said_once(complain):
    # A misspelt required key is not also reported as missing, nor what follows from it between sections.
    assert complain(swap=("label: label", "labl: label")).count("\n") == 1
    assert complain(swap=("epochs: 2", "epoch: 2")).count("\n") == 1
    assert complain(swap=("global: 32", "global: many")).count("\n") == 1
    assert complain("task.kind=clasification").count("\n") == 1
    assert complain("strategy=dpp", "evaluate.best=acuracy").count("\n") == 2


def test_the_place_is_the_command_line_or_the_line_in_conflict_with_it(complain):
    assert "\n  --set: trian is not a section" in complain("trian.epochs=1")
    assert "\n  --set: strategy.kind is" in complain("strategy=dpp")
    assert "\n  line 3: task.labels is not an option of regression" in complain("task.kind=regression")


def test_lines_are_those_of_the_keys_and_of_the_section_when_a_key_is_missing(complain, good_text):
    assert "line 8: data.columns.label is 3 " in complain(swap=("label: label", "label: 3"))
    assert "line 6: data.columns.label is required" in complain(swap=("    label: label\n", ""))
    assert "\n  task.kind is required; allowed: classification, " in complain(
        swap=(good_text[: good_text.index("data:")], "")
    )


def test_an_empty_mapping_says_all_that_is_required(complain):
    text = complain(text="{}")
    for key in ("task.kind", "data.columns.text", "data.columns.label", "data.train", "model.name", "train.epochs or"):
        assert f"{key} " in text
    assert "batch.global or batch.per_device is required" in text


def test_keys_that_are_not_text_are_refused(complain, good_text):
    assert "1 is not a section" in complain(text=good_text + "1: 2\n")
    assert "train.7 is not an option of train" in complain(swap=("epochs: 2", "{epochs: 2, 7: 2}"))


def test_a_long_value_is_cut():
    assert describe_value(["abcdefghij"] * 50) == "[abcdefghij, " + "abcdefghij, " * 5 + "abc ... (a list)"


def test_the_names_of_other_tools_lead_to_options_that_exist_and_hide_none():
    for word, key in ELSEWHERE.items():
        section, _, name = key.rpartition(".")
        options = options_of(Config)
        if section:
            options = options_of(options[section].sections[0])
        assert name in options
        assert find_key(word, Config) in (None, "evaluate.batch_size")


def test_validate_leaves_a_good_configuration_as_it_is():
    values = {
        "task": {"kind": "regression"},
        "data": {"columns": {"text": "a", "label": "b"}, "max_rows": {}, "figures": {}},
        "model": {"name": "m"},
        "train": {},
        "batch": {},
    }
    good, findings = validate(values)
    assert findings.problems == []
    assert {key: good[key] for key in values} == values
