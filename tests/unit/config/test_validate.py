import pytest
from raised import check_code

from paratune.config.load import load_config
from paratune.config.options import find_key, section_options
from paratune.config.plain import flatten
from paratune.config.section import Section
from paratune.config.sections import Config
from paratune.config.validate import ELSEWHERE, describe_value, set_for_flag, validate_as


@pytest.mark.parametrize(
    ("override", "code", "values"),
    [
        ("train.learning_rte=1", "config.unknown_key", ["train.learning_rte", "learning_rate"]),
        ("trian.epochs=1", "config.unknown_key", ["trian", "mean train?"]),
        ("data.label=1", "config.unknown_key", ["data.label", "data.columns.label"]),
        ("train.lr=1", "config.unknown_key", ["train.lr", "learning_rate"]),
        ("train.batch_size=1", "config.unknown_key", ["train.batch_size", "batch.global"]),
        ("data.text=1", "config.unknown_key", ["data.text", "data.columns.text"]),
        ("batch.batch_size=1", "config.unknown_key", ["batch.batch_size", "global"]),
        ("train.precision=1", "config.unknown_key", ["train.precision"]),
        ("model.weight_decay=1", "config.unknown_key", ["model.weight_decay", "train.weight_decay"]),
        ("batch.zzz=1", "config.unknown_key", ["batch.zzz"]),
        ("data.columns.txt=1", "config.unknown_key", ["data.columns.txt", "text"]),
        ("batch.global_=1", "config.unknown_key", ["batch.global_"]),
        ("strategy.bucket_cap_mb=1", "config.unknown_key", ["strategy.bucket_cap_mb", "strategy.kind: ddp)"]),
        ("strategy={kind: ddp, bucket_cap: 1}", "config.unknown_key", ["strategy.bucket_cap", "bucket_cap_mb"]),
        ("strategy={kind: 'a:B', x: 1}", "config.unknown_key", ["strategy.x"]),
        ("strategy=dpp", "config.unknown_kind", ["strategy.kind", '"dpp"', "ddp"]),
        ("strategy=fsdp", "config.unknown_kind", ["zero3", "zero2", "hsdp"]),
        ("strategy=FSDP2", "config.unknown_kind", ["full shard is zero3"]),
        ("strategy=shard-grad-op", "config.unknown_kind", ["it is zero2"]),
        ("strategy=zero", "config.unknown_kind", ["strategy.stage"]),
        ("strategy=hspd", "config.unknown_kind", ["hsdp"]),
        ("strategy.kind=3", "config.unknown_kind", ["strategy.kind", "3"]),
        ("strategy={x: 1}", "config.unknown_key", ["strategy.x"]),
        ("strategy=a b:c", "config.invalid_value", ["strategy.kind", '"a b:c"']),
        ("task.kind=clasification", "config.unknown_kind", ["task.kind", '"clasification"', "classification"]),
        ("task={kind: regression}", "config.unknown_key", ["task.labels"]),
        ("task=classification", "config.required", ["task.labels", "data"]),
        ("train.epochs='3'", "config.invalid_value", ["train.epochs", '"3"', "above 0", "quotes"]),
        ("train.learning_rate=0", "config.invalid_value", ["train.learning_rate", "0"]),
        ("train.learning_rate=", "config.invalid_value", ["null", "5.0e-05"]),
        ("train.learning_rate=.inf", "config.invalid_value", ["train.learning_rate", ".inf", "0"]),
        ("run.hang_timeout_s=.inf", "config.invalid_value", ["1", "100000000"]),
        ("run.hang_timeout_s=1e11", "config.invalid_value", ["run.hang_timeout_s"]),
        ("measure.sample_every_s=.nan", "config.invalid_value", ["measure.sample_every_s"]),
        ("train.max_steps=3.0", "config.invalid_value", ["train.max_steps", "3.0", "write 3"]),
        ("train.max_steps=true", "config.invalid_value", ["train.max_steps", "true", "1"]),
        ("train.activation_checkpointing=true", "config.invalid_value", ["write 1", "2 for"]),
        ("train.activation_checkpointing=0.5", "config.invalid_value", ["0.5", "1"]),
        ("train.betas=[0.9]", "config.invalid_value", ["train.betas", "[0.9]", "2", "1"]),
        ("train.betas=[0.9, 1.5]", "config.invalid_value", ["train.betas", "0.9", "1.5", "2"]),
        ("train.freeze_encoder=yes", "config.invalid_value", ['"yes"', "true"]),
        ("train.schedule=cosin", "config.invalid_value", ["cosine"]),
        ("data.columns.text=2.5", "config.invalid_value", ["2.5", "quotes"]),
        ("data.columns.text=0", "config.invalid_value", ["data.columns.text", "from 1"]),
        ("data.encoding=cp12", "config.invalid_value", ["cp12", "cp1252"]),
        ("data.encoding=base64", "config.invalid_value", ["base64", "cp1252"]),
        ("data.separator=;;", "config.invalid_value", ["one character"]),
        ("data.columns.text=[]", "config.invalid_value", ["data.columns.text", "[]"]),
        ("data.train=''", "config.invalid_value", ["data.train", '""']),
        ("task.labels=[true, false]", "config.invalid_value", ["task.labels", "true", "quotes"]),
        ("task.labels={0: a, 1: 2}", "config.invalid_value", ["task.labels", "0", "1", "2"]),
        ("data.split.validation=1.0", "config.invalid_value", ["data.split.validation", "1.0"]),
        ("data.split.validation=0", "config.invalid_value", ["data.split.validation", "0", "1"]),
        ("run.name=a/b", "config.invalid_value", ['"a/b"', "letters, digits, '.', '_' and '-'"]),
        ("run.name=../up", "config.invalid_value", ["run.name", '"../up"']),
        ("run.seed=-1", "config.invalid_value", ["run.seed", "-1", "0", "4294967296"]),
        ("model.overrides=[1]", "config.invalid_value", ["model.overrides", "[1]"]),
        ("model=demo:minilm", "config.invalid_value", ["model", '"demo:minilm"']),
        ("train=epochs 3", "config.invalid_value", ["epochs: 3"]),
        ("data=[1]", "config.invalid_value", ["data", "[1]", "train"]),
        ("task=[1]", "config.invalid_value", ["task", "[1]"]),
        ("data.columns=", "config.required", ["data.columns.text", "task.kind: classification"]),
        ("model=", "config.required", ["model.name"]),
    ],
)
def test_a_wrong_option_is_reported_with_its_value_and_what_is_allowed(reject, override, code, values):
    check_code(reject(override), code, *values)


def test_a_problem_is_reported_once(complain):
    # A misspelt required key is not also reported as missing, nor what follows from it between sections.
    assert complain(swap=("label: label", "labl: label")).count("\n") == 1
    assert complain(swap=("epochs: 2", "epoch: 2")).count("\n") == 1
    assert complain(swap=("global: 32", "global: many")).count("\n") == 1
    assert complain("task.kind=clasification").count("\n") == 1
    assert complain("strategy=dpp", "evaluate.best=acuracy").count("\n") == 2


def test_the_place_is_the_command_line_or_the_line_in_conflict_with_it(reject):
    check_code(reject("trian.epochs=1"), "config.unknown_key", file="--set", keys=("trian",))
    check_code(reject("strategy=dpp"), "config.unknown_kind", file="--set", keys=("strategy.kind",))
    check_code(reject("task={kind: regression}"), "config.unknown_key", line=3, keys=("task.labels",))


def test_a_missing_key_has_the_line_of_its_section(reject, good_text):
    keys = ("data.columns.label",)
    check_code(reject(swap=("label: label", "label: 2.5")), "config.invalid_value", line=8, keys=keys)
    check_code(reject(swap=("    label: label\n", "")), "config.required", line=6)
    without_task = reject(swap=(good_text[: good_text.index("data:")], ""))
    check_code(without_task, "config.required", "classification, ", line=None, keys=("task.kind",))


def test_the_error_of_an_empty_mapping_lists_all_required_options(reject):
    error = reject(text="{}")
    assert set(error.codes) == {"config.required"}
    assert {str(fault.facts["keys"][0]) for fault in error.faults} == {
        *("task.kind", "data.columns.text", "data.columns.label", "data.train"),
        *("model.name", "train.epochs", "batch.global"),
    }


def test_keys_that_are_not_text_are_refused(reject, good_text):
    check_code(reject(text=good_text + "1: 2\n"), "config.unknown_key", keys=("1",))
    check_code(reject(swap=("epochs: 2", "{epochs: 2, 7: 2}")), "config.unknown_key", keys=("train.7",))


def test_a_long_value_is_cut():
    assert describe_value(["abcdefghij"] * 50) == "[abcdefghij, " + "abcdefghij, " * 5 + "abc ... (a list)"


def test_names_of_other_tools_lead_to_options_and_are_not_options_themselves():
    for word, key in ELSEWHERE.items():
        *path, name = key.split(".")
        section: type[Section] = Config
        for part in path:
            section = section_options(section)[part].sections[0]
        assert name in section_options(section)
        assert find_key(word, Config) in (None, "evaluate.batch_size")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("epochs: 3", "train.epochs"),
        ("batch_size: 16", "batch.global"),
        ("model_name: bert-base-uncased", "model.name"),
        ("lr: 2e-5", "train.learning_rate"),
        ("learning_rate: 2e-5", "train.learning_rate"),
        ("data_path: a.csv", "data.train"),
        ("dataset_name: imdb", "data.train"),
        ("max_length: 128", "data.max_length"),
        ("output_dir: out", "run.folder"),
        ("num_labels: 2", "task.labels"),
        ("Batch-Size: 16", "batch.global"),
        ("seed: 1", "run.seed"),
        ("train: {batch_size: 16}", "batch.global"),
        ("train: {lr: 1}", "learning_rate"),
        ("data: {text_column: a}", "data.columns.text"),
        ("model: bert-base-uncased", "{name: bert-base-uncased}"),
        ("data: a.csv", "{train: a.csv}"),
        ("batch: 32", "{global: 32}"),
    ],
)
def test_a_key_of_another_tool_leads_to_the_option_with_its_meaning(reject, line: str, meant: str):
    assert f" {meant}?" in str(reject(text=f"{line}\n"))


def test_validate_does_not_change_a_valid_configuration():
    values = {
        "task": {"kind": "regression"},
        "data": {"columns": {"text": "a", "label": "b"}, "max_rows": {}, "figures": {}},
        "model": {"name": "m"},
        "train": {"freeze": {}},
        "batch": {},
    }
    good, findings = validate_as(Config, values, "")
    assert findings.problems == []
    assert {key: good[key] for key in values} == values


@pytest.mark.parametrize(
    ("flag", "value", "option"),
    [
        ("--epochs", "2", "train.epochs"),
        ("--lr", "3e-5", "train.learning_rate"),
        ("--learning-rate", "3e-5", "train.learning_rate"),
        ("--learning_rate", "3e-5", "train.learning_rate"),
        ("--batch-size", "16", "batch.global"),
        ("--seed", "7", "run.seed"),
        ("--model", "demo:minilm", "model.name"),
        ("--output-dir", "out", "run.folder"),
        ("--output_dir", "out", "run.folder"),
        ("--max-length", "128", "data.max_length"),
        ("--warmup-steps", "0", "train.warmup_steps"),
        ("--weight-decay", "0.1", "train.weight_decay"),
        ("--num_train_epochs", "2", "train.epochs"),
        ("--train.eps", "1e-6", "train.eps"),
    ],
)
def test_a_flag_becomes_a_set_that_loads_and_has_its_effect(tmp_path, flag, value, option):
    words = ["train", "a.yaml", flag, value]
    assert set_for_flag(flag, words) == f"--set {option}={value}"
    assert set_for_flag(flag, ["a.yaml", f"{flag}={value}"]) == f"--set {option}={value}"
    path = tmp_path / "a.yaml"
    path.write_text(
        "task: {kind: classification, labels: [a, b]}\n"
        "data: {train: a.csv, columns: {text: text, label: label}}\n"
        "model: {name: other}\ntrain: {epochs: 1}\nbatch: {global: 32}\n"
    )
    loaded = load_config(path, [f"{option}={value}"])
    assert flatten(loaded.values)[option] == (value if option in ("model.name", "run.folder") else float(value))
    assert loaded.origin[option] == "--set"


@pytest.mark.parametrize("words", [["--epochs"], ["--epochs", "--json"]])
def test_a_flag_without_a_value_gets_a_place_for_it(words):
    assert set_for_flag("--epochs", words) == "--set train.epochs=VALUE"


def test_a_precision_is_a_value():
    assert set_for_flag("--bf16", ["--bf16", "--json"]) == "--set precision=bf16"


@pytest.mark.parametrize("flag", ["--kind", "--push-the-button", "--", "-x"])
def test_other_flags_are_not_options(flag):
    assert set_for_flag(flag) is None
