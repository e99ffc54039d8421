import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raised import check_code, raises_code

from paratune.config.load import LoadedConfig, load_config, show_text
from paratune.config.plain import flatten, one_line
from paratune.config.strategy_sections import DDPOptions, OutsideStrategy
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.errors import ConfigError


def load(path: Path, text: str, *overrides: str) -> LoadedConfig:
    path.write_text(text)
    return load_config(path, overrides)


def test_a_good_file_loads_with_the_origin_of_every_leaf(good):
    loaded = load_config(good, ["train.learning_rate=1e-4"])
    assert loaded.config.train.learning_rate == 1e-4
    assert loaded.config.batch.global_ == 32
    assert loaded.source == good
    assert set(loaded.origin) == set(flatten(loaded.values))
    assert loaded.origin["task.labels"] == "good.yaml:3"
    assert loaded.origin["batch.global"] == "good.yaml:16"
    assert loaded.origin["train.learning_rate"] == "--set"
    assert loaded.origin["run.seed"] == "default"
    assert loaded.values["batch"]["global"] == 32


def test_the_run_is_named_after_the_file_unless_it_has_a_name(good, good_text):
    assert load_config(good).config.run.name == "good"
    assert load_config(good).origin["run.name"] == "default"
    assert load_config(good, ["run.name=mine"]).values["run"]["name"] == "mine"
    odd = good.with_name("my run (2).yaml")
    assert load(odd, good_text).config.run.name == "my-run-2-"


def test_a_file_whose_name_cannot_be_a_folder_needs_a_name(good, good_text):
    odd = good.with_name("é.yaml")
    with raises_code("config.required", "run.name"):
        load(odd, good_text)
    assert load(odd, good_text, "run.name=e").config.run.name == "e"


def test_values_are_json_data(good, good_text):
    loaded = load(good, good_text.replace("[negative, positive]", "{0: negative, 1: positive}"))
    assert json.loads(json.dumps(loaded.values)) == loaded.values
    assert loaded.config.task == ClassificationTask(kind="classification", labels={0: "negative", 1: "positive"})
    assert loaded.values["task"]["labels"] == {"0": "negative", "1": "positive"}


def test_words_stand_for_sections(good, good_text):
    text = good_text.replace("  kind: classification\n  labels: [negative, positive]\n", "").replace(
        "task:", "task: regression"
    )
    loaded = load(good, text + "strategy: ddp\n")
    assert loaded.config.task == RegressionTask(kind="regression")
    assert loaded.config.strategy == DDPOptions(kind="ddp")
    assert loaded.origin["strategy.kind"] == "good.yaml:15"
    assert loaded.origin["strategy.bucket_cap_mb"] == "default"


def test_an_outside_strategy_is_named_in_full(good, good_text):
    loaded = load(good, good_text + "strategy: {kind: 'my.module:Mine', options: {depth: 2}}\n")
    assert loaded.config.strategy == OutsideStrategy(kind="my.module:Mine", options={"depth": 2})
    assert load_config(good, ["strategy=my:Other"]).config.strategy.kind == "my:Other"


def test_an_empty_section_is_its_defaults(good, good_text):
    text = good_text + "measure:\nevaluate:\n  # best: accuracy\nstrategy:\n"
    assert load(good, text).values == load(good, good_text).values


def test_show_text_has_an_origin_behind_each_leaf(good):
    text = show_text(load_config(good, ["run.seed=7"]))
    assert "  seed: 7  # --set\n" in text
    assert "  epochs: 2.0  # good.yaml:14\n" in text
    assert "  keep: 2  # default\n" in text
    assert text.count("  # ") == len(flatten(load_config(good).values))


NAMES = st.text(min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(
    labels=st.lists(NAMES | st.integers(), min_size=2, max_size=4, unique_by=str)
    | st.dictionaries(st.integers(), NAMES, min_size=2, max_size=3).filter(lambda names: len(set(names.values())) > 1),
    separator=st.text(max_size=5),
    overrides=st.dictionaries(NAMES, st.none() | st.floats(allow_nan=False) | st.lists(st.integers()), max_size=3),
    rate=st.floats(min_value=1e-12, max_value=10),
    kind=st.sampled_from(["single", "ddp"]),
)
def test_show_text_loads_as_the_same_configuration(good, labels, separator, overrides, rate, kind):
    values = {
        "task": {"kind": "classification", "labels": labels},
        "data": {"train": "a", "columns": {"text": ["a", "b"], "label": "c", "separator": separator}},
        "model": {"name": "m", "overrides": overrides},
        "train": {"max_steps": 3, "learning_rate": rate},
        "batch": {"per_device": 2},
        "strategy": {"kind": kind},
    }
    first = load(good, one_line(values))
    second = load(good, show_text(first))
    assert second.config == first.config
    assert second.values == first.values
    assert second.config.task.labels == labels
    assert second.config.model.overrides == overrides


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(tmp_path, good, good_text):
    (tmp_path / "x.yaml").write_text(
        "extends: good.yaml\n"
        "train:\n"
        "  learning_rte: 1e-4\n"
        "  weight_decay: -1\n"
        "strategy: {kind: single, bucket_cap_mb: 3}\n"
        "evaluate:\n"
        "  patience: 2\n"
        "  patience: 3\n"
    )
    good.write_text(good_text.replace("epochs: 2", "epochs: many"))
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "x.yaml", ["precision=fp8", "nonsense"])
    assert str(caught.value).startswith(f"{tmp_path}/x.yaml: 8 problems\n  line 3: ")
    assert [(fault.code, fault.facts["file"], fault.facts["line"]) for fault in caught.value.faults] == [
        ("config.unknown_key", "x.yaml", 3),
        ("config.invalid_value", "x.yaml", 4),
        ("config.unknown_key", "x.yaml", 5),
        ("config.required", "x.yaml", 7),
        ("config.duplicate_key", "x.yaml", 8),
        ("config.invalid_value", "good.yaml", 14),
        ("cli.invalid_value", "--set", None),
        ("config.invalid_value", "--set", None),
    ]


def test_one_problem_is_one_problem(complain):
    assert complain("train.epochs=0").startswith("x.yaml: 1 problem\n  --set: train.epochs is 0")


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("", "config.syntax", ["x.yaml", "paratune config init"]),
        ("# nothing\n", "config.syntax", ["x.yaml"]),
        ("- a\n", "config.syntax", ["line 1", "a list"]),
        ("hello\n", "config.syntax", ["line 1", "hello"]),
        ("task: [\n", "config.syntax", ["line 1"]),
        ("task: a: b\n", "config.syntax", ["line 1", "a: b"]),
    ],
)
def test_a_file_without_a_configuration_is_refused(tmp_path, text, code, values):
    (tmp_path / "x.yaml").write_text(text)
    with raises_code(code, *values):
        load_config(tmp_path / "x.yaml")


def test_an_unreadable_file_is_the_only_reported_problem(tmp_path):
    # Whatever else seems to be missing may be in there.
    (tmp_path / "x.yaml").write_text("extends: [gone.yaml]\ntrain: {epochs: -1}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "x.yaml")
    check_code(caught.value, "config.extends", "line 1: extends: ")
    assert "gone.yaml" in str(caught.value)


def test_a_missing_file_names_the_nearest(good):
    with raises_code("config.file_unreadable", "god.yaml", "good.yaml"):
        load_config(good.with_name("god.yaml"))


def test_every_file_in_configs_loads():
    paths = sorted((Path(__file__).parents[3] / "configs").rglob("*.yaml"))
    # Matrices of runs, published figures and their tables, corpora and sites have tests of their own.
    configs = [f for f in paths if f.parent.name not in ("corpus", "sites", "tables") and f.name != "published.yaml"]
    files = [f for f in configs if "\naxes:" not in f.read_text(encoding="utf-8")]
    assert [file.name for file in files if load_config(file).values] == [file.name for file in files]
    assert len(files) >= 5


def test_the_quickstart_is_the_same_experiment_but_for_the_strategy():
    folder = Path(__file__).parents[3] / "configs" / "quickstart"
    single, ddp = (flatten(load_config(folder / f"{name}.yaml").values) for name in ("single", "ddp"))
    different = {key for key in {*single, *ddp} if single.get(key) != ddp.get(key)}
    assert {key.partition(".")[0] for key in different - {"run.name"}} == {"strategy"}


def test_loading_a_configuration_needs_no_torch():
    code = "import sys, paratune.config.load, paratune.config.options; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
