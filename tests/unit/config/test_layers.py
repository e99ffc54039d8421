from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raises_code

from paratune.config import yaml_tree
from paratune.config.layers import MAPPINGS, OWN_CODE, Layer, merge
from paratune.config.load import load_config
from paratune.config.options import section_options
from paratune.config.overrides import read_layers
from paratune.config.plain import flatten
from paratune.config.problems import SET, SourceLocation
from paratune.config.section import Section
from paratune.config.sections import Config
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_a_file_overrides_the_files_that_it_extends(tmp_path):
    write(
        tmp_path,
        base="a: {x: 1, y: 2, z: [1, 2]}\nb: 1\nc: {d: 1}\n",
        top="extends: base.yaml\n\na:\n  y: 3\n  z: [9]\nb:\nc: 4\n",
    )
    layer = read_layers(tmp_path / "top.yaml", [])
    assert layer.values == {"a": {"x": 1, "y": 3, "z": [9]}, "b": None, "c": 4}
    assert layer.places["a.x"] == SourceLocation("base.yaml", 1)
    assert layer.places["a.y"] == SourceLocation("top.yaml", 4)
    assert layer.places["b"] == SourceLocation("top.yaml", 6)
    assert "c.d" not in layer.places
    assert "a.z[1]" not in layer.places


def test_the_later_file_of_a_list_wins_and_paths_are_relative_to_the_file_with_extends(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", one="extends: ../zero.yaml\na: 1\nb: 1\n", two="b: 2\n")
    write(tmp_path, zero="z: 0\na: 0\n", top="extends: [sub/one.yaml, sub/two.yaml]\n")
    layer = read_layers(tmp_path / "top.yaml", [])
    assert layer.values == {"z": 0, "a": 1, "b": 2}
    assert [layer.places[key].origin for key in "zab"] == ["zero.yaml:1", "sub/one.yaml:2", "sub/two.yaml:1"]


def test_two_files_may_extend_the_same_file(tmp_path):
    write(tmp_path, root="a: 1\n", left="extends: root.yaml\n", right="extends: root.yaml\n")
    write(tmp_path, top="extends: [left.yaml, right.yaml]\n")
    assert read_layers(tmp_path / "top.yaml", []).problems == []


def test_a_file_that_extends_itself_is_a_problem_with_the_cycle(tmp_path):
    write(tmp_path, a="x: 1\nextends: b.yaml\n", b="extends: c.yaml\n", c="extends: a.yaml\n")
    layer = read_layers(tmp_path / "a.yaml", [])
    (problem,) = layer.problems
    assert (problem.code, problem.place) == ("config.extends", SourceLocation("c.yaml", 1))
    assert "a.yaml -> b.yaml -> c.yaml -> a.yaml" in problem.message
    assert not layer.whole


@pytest.mark.parametrize(
    ("extends", "what"),
    [
        ("bas.yaml", "base.yaml"),
        ("nowhere/bas.yaml", "nowhere"),
        ("3", "file name"),
        ("[base.yaml, 3]", "file name"),
        ("''", "file name"),
    ],
)
def test_an_invalid_extends_is_a_problem_of_its_line(tmp_path, extends, what):
    write(tmp_path, base="a: 1\n", top=f"b: 1\nextends: {extends}\n")
    layer = read_layers(tmp_path / "top.yaml", [])
    (problem,) = layer.problems
    assert (problem.code, problem.place) == ("config.extends", SourceLocation("top.yaml", 2))
    assert what in problem.message
    assert not layer.whole


def test_set_comes_last_and_the_later_one_wins(tmp_path):
    write(tmp_path, top="a: {x: 1, y: 2}\nd: 5\n")
    overrides = ["a.x=5", "a.x=2e-5", "b.c.d=[1, no]", "d=", "e={f: {g: 1}}", "h=a=b"]
    layer = read_layers(tmp_path / "top.yaml", overrides)
    assert layer.values == {
        "a": {"x": 2e-5, "y": 2},
        "b": {"c": {"d": [1, "no"]}},
        "d": None,
        "e": {"f": {"g": 1}},
        "h": "a=b",
    }
    assert {key for key, place in layer.places.items() if place == SET} == {
        "a.x", "b.c.d", "d", "e", "e.f", "e.f.g", "h",
    }  # fmt: skip
    assert layer.places["a"] == SourceLocation("top.yaml", 1)


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("train.epochs", "'train.epochs'"),
        ("=3", "'=3'"),
        ("train..x=3", "'train..x=3'"),
        ("extends=a.yaml", "extends"),
        ("a.b=[1, 2", "a.b: '[1, 2'"),
    ],
)
def test_an_invalid_set_is_a_problem(tmp_path, override, what):
    write(tmp_path, top="a: 1\n")
    layer = read_layers(tmp_path / "top.yaml", [override])
    assert [(problem.code, problem.place) for problem in layer.problems] == [("cli.invalid_value", SET)]
    assert what in layer.problems[0].message


def test_a_kind_replaces_the_section_and_a_mapping_adds_to_it(tmp_path):
    write(tmp_path, base="strategy: {kind: ddp, bucket_cap_mb: 3}\ntask: regression\n")
    write(tmp_path, word="extends: base.yaml\nstrategy: single\n", more="extends: word.yaml\nstrategy: {x: 1}\n")
    word = read_layers(tmp_path / "word.yaml", [])
    assert word.values == {"strategy": {"kind": "single"}, "task": {"kind": "regression"}}
    assert word.places["strategy.kind"] == SourceLocation("word.yaml", 2)
    assert "strategy.bucket_cap_mb" not in word.places
    more = read_layers(tmp_path / "more.yaml", ["task.kind=classification"])
    assert more.values == {"strategy": {"kind": "single", "x": 1}, "task": {"kind": "classification"}}
    assert more.places["strategy.kind"] == SourceLocation("word.yaml", 2)


def test_labels_are_replaced_whole(tmp_path):
    write(tmp_path, base="task: {labels: {0: a, 1: b}}\n", top="extends: base.yaml\ntask: {labels: {x: c, y: d}}\n")
    assert read_layers(tmp_path / "top.yaml", []).values == {"task": {"labels": {"x": "c", "y": "d"}}}


@pytest.mark.parametrize("key", OWN_CODE)
def test_another_function_replaces_the_options_of_the_lower_one(tmp_path, key):
    section, option = key.split(".")
    write(
        tmp_path,
        base=f"{section}: {{{option}: {{function: 'a:f', options: {{x: 1}}, elementwise: true}}}}\n",
        same=f"extends: base.yaml\n{section}: {{{option}: {{function: 'a:f', options: {{y: 2}}}}}}\n",
    )
    merged = {"function": "a:f", "options": {"x": 1, "y": 2}, "elementwise": True}
    assert read_layers(tmp_path / "same.yaml", []).values == {section: {option: merged}}
    layer = read_layers(tmp_path / "same.yaml", [f"{key}.function=b:g", f"{key}.options.z=3"])
    assert layer.values == {section: {option: {"function": "b:g", "options": {"z": 3}}}}
    assert f"{key}.elementwise" not in layer.places


@pytest.mark.parametrize("key", sorted(MAPPINGS))
def test_an_empty_mapping_removes_lower_entries(tmp_path, key):
    *sections, option = key.split(".")

    def within(text: str) -> str:
        for section in reversed(sections):
            text = f"{section}: {{{text}}}"
        return f"{text}\n"

    def found(layer: Layer) -> dict[Any, Any]:
        values = layer.values
        for section in sections:
            values = values[section]
        return values

    write(
        tmp_path,
        base=within(f"other: 1, {option}: {{a: 1, b: 2}}"),
        adds=f"extends: base.yaml\n{within(f'{option}: {{c: 3}}')}",
        clears=f"extends: base.yaml\n{within(f'{option}: {{}}')}",
    )
    assert found(read_layers(tmp_path / "adds.yaml", [])) == {"other": 1, option: {"a": 1, "b": 2, "c": 3}}
    for layer in (read_layers(tmp_path / "clears.yaml", []), read_layers(tmp_path / "adds.yaml", [f"{key}={{}}"])):
        assert found(layer) == {"other": 1, option: {}}
        assert f"{key}.a" not in layer.places
    again = read_layers(tmp_path / "adds.yaml", [f"{key}={{}}", f"{key}.d=4"])
    assert found(again)[option] == {"d": 4}


def test_the_mappings_are_those_of_the_sections():
    def mappings(section: type[Section], path: str) -> Iterator[str]:
        for key, option in section_options(section).items():
            for inner in () if option.listed else option.sections:  # a list is replaced
                yield from mappings(inner, f"{path}{key}.")
            if key in section.model_fields and get_origin(section.model_fields[key].annotation) is dict:
                yield f"{path}{key}"

    assert set(mappings(Config, "")) == MAPPINGS


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("goood.yaml", ("config.file_unreadable", "goood.yaml")),
        ("zzz.yaml", ("config.file_unreadable",)),
        ("no/good.yaml", ("config.file_unreadable",)),
        ("", ("config.file_unreadable", "YAML")),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(good, name, refused):
    with raises_code(*refused) as caught:
        read_layers(good.parent / name, [])
    assert str(good.parent / name) in str(caught.value)
    if name != "no/good.yaml":
        assert "good.yaml" in str(caught.value)


def test_a_file_that_is_not_utf8_is_an_error(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"a: caf\xe9\n")
    with raises_code("config.file_unreadable", "8", "0xe9", "6"):
        read_layers(tmp_path / "x.yaml", [])
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_layers(tmp_path / "x.yaml", []).values == {"a": 1}


VALUES = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(st.none() | st.integers() | st.lists(st.integers(), max_size=2),
                 lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_size=3,
)  # fmt: skip


@given(a=VALUES, b=VALUES, c=VALUES)
def test_the_top_layer_wins_and_merging_again_changes_nothing(a, b, c):
    merged = merge(merge(Layer(a), Layer(b)), Layer(c)).values
    assert merge(Layer(merged), Layer(c)).values == merged
    assert merge(Layer(merged), Layer()).values == merged
    assert merge(Layer(), Layer(merged)).values == merged
    for key, value in c.items():
        if not isinstance(value, dict):
            assert merged[key] == value
    assert set(merged) == {*a, *b, *c}


def test_a_matrix_of_480_cells_parses_its_file_once(tmp_path, monkeypatch, good_text):
    base = "".join(f"  {line}\n" for line in good_text.splitlines())
    axes = f"  run.seed: {[*range(8)]}\n  train.warmup_steps: {[*range(6)]}\n  data.max_length: {[*range(64, 74)]}\n"
    (tmp_path / "m.yaml").write_text(f"base:\n{base}axes:\n{axes}")
    texts = []
    read = yaml_tree._Reader.read
    monkeypatch.setattr(yaml_tree._Reader, "read", lambda reader, text: texts.append(text) or read(reader, text))
    cells = cells_of(read_matrix(tmp_path / "m.yaml"), need_files=False)
    assert len([cell for cell in cells if cell.loaded is not None]) == 480
    assert len(texts) == 1


FULL = """\
task: {kind: classification, labels: [a, b]}
data: {train: a.csv, columns: {text: text, label: label}, split: {validation: 0.1, stratify: true}}
model: {name: m, revision: v1}
train: {epochs: 1, betas: [0.9, 0.98], warmup_ratio: 0.1, schedule: polynomial, schedule_power: 2}
batch: {global: 32, micro_batch_size: 4}
evaluate: {every: steps, steps: 5, best: accuracy}
strategy: {kind: zero3, cpu_offload: true}
"""


@pytest.mark.parametrize(
    ("override", "superseded"),
    [
        ("train.max_steps=12", ["train.epochs"]),
        ("train={max_steps: 12}", ["train.epochs"]),
        ("train.warmup_steps=2", ["train.warmup_ratio"]),
        ("train.schedule=constant", ["train.schedule_power"]),
        ("batch.per_device=8", ["batch.global", "batch.micro_batch_size"]),
        ("data.validation=v.csv", ["data.split"]),  # to stratify has no effect without a share
        ("evaluate.every=epoch", ["evaluate.steps"]),
        ("evaluate.every=never", ["evaluate.best", "evaluate.steps"]),
        ("strategy={kind: ddp}", []),  # its options are not those of zero3
        ("strategy.kind=zero2", []),  # which has cpu_offload, too
        ("model.name=other", ["model.revision"]),
        ("model.name=m", []),  # as in the file
        ("train.epochs=2", []),
    ],
)
def test_the_command_line_replaces_what_a_setting_excludes(tmp_path: Path, override: str, superseded: list[str]):
    write(tmp_path, a=FULL)
    loaded = load_config(tmp_path / "a.yaml", [override])
    given = {override.partition("=")[0], "train.max_steps", "strategy.kind"}
    assert sorted(key for key, origin in loaded.origin.items() if origin == "--set" and key not in given) == superseded


@pytest.mark.parametrize(
    ("overrides", "replaced"),
    [
        (["strategy.kind=ddp"], {"strategy.cpu_offload"}),
        (["strategy.kind=zero2"], set()),
        (["task.kind=regression", "evaluate.best=rmse", "data.split.stratify=false"], {"task.labels"}),
        (["batch.per_device=8"], {"batch.global", "batch.micro_batch_size"}),
        (["train.optimizer.function=a:f", "strategy.kind=ddp"], {"train.betas", "strategy.cpu_offload"}),
        (["train.optimizer=adafactor", "strategy.kind=ddp"], {"train.betas", "strategy.cpu_offload"}),
        (["train.learning_rate=1e-4", "run.seed=3", "train.epochs=2"], set()),
    ],
)
def test_what_the_command_line_replaces_is_named(tmp_path: Path, overrides: list[str], replaced: set[str]):
    write(tmp_path, a=FULL)
    assert set(load_config(tmp_path / "a.yaml", overrides).replaced) == replaced


def test_options_of_another_kind_in_a_file_stay_an_error(tmp_path: Path):
    write(tmp_path, a=FULL.replace("kind: zero3", "kind: ddp"))
    for overrides in ([], ["run.seed=3"], ["strategy.kind=ddp"], ["strategy.kind=single", "strategy.cpu_offload=true"]):
        with raises_code("config.unknown_key", "strategy.cpu_offload"):
            load_config(tmp_path / "a.yaml", overrides)


@pytest.mark.parametrize(
    "text", ["a # b", "a: b", "#a", "*a", "&a", "[a", "{a: 1}", "yes", "true", "1e5", "007", "- a", "%"]
)
def test_a_text_is_taken_as_it_is_typed(tmp_path: Path, text: str):
    write(tmp_path, a=FULL)
    keys = ["model.name", "run.folder", "data.train", "data.columns.id"]
    for key in keys if not text[0].isdecimal() and text != "true" else keys[:3]:  # a column may have a number
        section, *path = key.split(".")
        value = load_config(tmp_path / "a.yaml", [f"{key}={text}"]).values[section]
        for name in path:
            value = value[name]
        assert value == text


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ('model.name="a # b"', "a # b"),
        ("model.name='1e5'", "1e5"),
        ("data.train=[a.csv, b.csv]", ["a.csv", "b.csv"]),
        ("model.tokenizer=null", None),
        ("model.tokenizer=", None),
        ("train.epochs=2 # two", 2),
        ("model.overrides.x=1e5", 1e5),
    ],
)
def test_quotes_lists_null_and_other_types_are_yaml(tmp_path: Path, override: str, value: Any):
    write(tmp_path, a=FULL)
    section, name = override.partition("=")[0].split(".", 1)
    values = flatten(load_config(tmp_path / "a.yaml", [override]).values)
    assert values[f"{section}.{name}"] == value


@pytest.mark.parametrize("upper", [["train.max_steps=12", "train.epochs=2"], ["train={epochs: 2, max_steps: 12}"]])
def test_two_settings_of_one_place_stay_an_error(tmp_path: Path, upper: list[str]):
    write(tmp_path, a=FULL, b="extends: a.yaml\ntrain: {max_steps: 12}\n")
    for path, overrides in (("a.yaml", upper), ("b.yaml", [])):
        with raises_code("config.conflict"):
            load_config(tmp_path / path, overrides)


def test_a_file_of_validation_leaves_the_test_set_held_out(tmp_path: Path):
    split = "split: {validation: 0.1, stratify: true}"
    assert split in FULL
    held_out = "split: {held_out: x, group_by: g, validation: 0.1}"
    write(
        tmp_path, a=FULL.replace(split, held_out), b=FULL.replace(split, "split: {folds: 5, fold: 0, validation: 0.1}")
    )
    found = load_config(tmp_path / "a.yaml", ["data.validation=v.csv"]).config.data.split
    assert found is not None
    assert (found.held_out, found.validation) == ("x", None)
    with raises_code("config.conflict", "data.split.folds"):
        load_config(tmp_path / "b.yaml", ["data.validation=v.csv"])
