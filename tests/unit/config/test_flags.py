import pytest

from paratune.config.differences import flatten
from paratune.config.flags import set_for_flag
from paratune.config.load import load_config


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
