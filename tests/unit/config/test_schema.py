import re
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.config.load import load_config
from paratune.config.options import kinds, section_options
from paratune.config.schema import init_text, json_schema, options_markdown
from paratune.config.sections import Config
from paratune.config.yaml_tree import read_tree

TASKS = list(kinds(section_options(Config)["task"]))
CONFIGS = Path(__file__).parents[3] / "configs"


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether a value fits a schema, as far as the keywords go that pydantic writes for our sections."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if not set(schema.get("required", ())) <= set(value if isinstance(value, dict) else ()):
        return False
    if "anyOf" in schema and not any(fits(value, choice, root) for choice in schema["anyOf"]):
        return False
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        return False
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    kind = schema.get("type")
    if kind == "null":
        return value is None
    if kind and (not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(
            value >= schema.get("minimum", value)
            and value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        )
    if isinstance(value, list) and "items" in schema:
        return all(fits(item, schema["items"], root) for item in value)
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        return all(key in known and fits(item, known[key], root) for key, item in value.items())
    return True


def test_the_schema_accepts_every_file_in_configs_and_the_files_to_start_from():
    schema = json_schema()
    files = CONFIGS.rglob("*.yaml")
    texts = [
        path.read_text()
        for path in files
        if path.parent.name not in ("corpus", "sites") and path.name != "published.yaml"
    ]
    configurations = [text for text in texts if "\naxes:" not in text]  # no matrices of runs
    for text in [*configurations, *map(init_text, TASKS)]:
        assert fits(read_tree(text, "here").value, schema, schema)  # as editors do: 5e-5 is a number in YAML 1.2


@pytest.mark.parametrize(
    "value",
    [
        {"trian": {}},
        {"train": {"learning_rate": "high"}},
        {"train": {"learning_rte": 1}},
        {"batch": {"global": 0}},
        {"batch": {"global_": 8}},
        {"precision": "fp8"},
        {"strategy": "pipelines"},
        {"strategy": {"kind": "single", "bucket_cap_mb": 3}},
        {"task": "classification"},  # needs labels
        {"extends": 3},
        {"data": {"split": {"validation": 1.0}}},
    ],
)
def test_the_schema_refuses(value):
    assert not fits(value, json_schema(), json_schema())


@pytest.mark.parametrize(
    "value",
    [
        {"extends": ["a.yaml", "b.yaml"]},
        {"strategy": "ddp"},
        {"task": "regression"},
        {"strategy": {"kind": "my.module:Mine", "options": {"x": 1}}},
        {"strategy": {"bucket_cap_mb": 3}},  # completes a file that it extends
        {"measure": None, "data": {"split": None}},
    ],
)
def test_the_schema_accepts(value):
    assert fits(value, json_schema(), json_schema())


def test_the_schema_has_the_help_of_every_option():
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$defs"]["Train"]["properties"]["learning_rate"]["description"] == "Peak learning rate."
    for key, option in section_options(Config).items():
        assert schema["properties"][key]["description"] == option.help


@pytest.mark.parametrize("task", TASKS)
def test_the_file_to_start_from_loads_as_it_is(tmp_path, task):
    path = tmp_path / "mine.yaml"
    path.write_text(init_text(task))
    config = load_config(path).config
    assert config.task.kind == task
    assert config.data.train in ("data/train.csv", "data/train.txt", "data/train.conll")


@pytest.mark.parametrize("task", TASKS)
def test_its_commented_lines_are_the_defaults(tmp_path, task):
    path = tmp_path / "mine.yaml"
    text = init_text(task)
    path.write_text(text)
    before = load_config(path).values
    # The section of a tracker switches it on, with any content.
    text = text.partition("# Trackers ")[0]
    # So is that of an adapter.
    text = re.sub(r"^  #adapter:\n(?:    .*\n)+", "", text, flags=re.MULTILINE)
    own, _, other = text.partition("  # With kind: ddp")
    rest = other[other.index("\n\n") :]
    path.write_text(re.sub(r"^( *)#(?=\w+:)", r"\1", own + rest, flags=re.MULTILINE))
    assert path.read_text().count("\n  #seed:") == 0
    assert load_config(path).values == before
    # The options of ddp, too, are there with their defaults.
    ddp = re.findall(r"^  #(\w+): (.*)$", other[: other.index("# With kind")], flags=re.MULTILINE)
    loaded = load_config(path, ["strategy=ddp", *(f"strategy.{key}={value}" for key, value in ddp)]).values["strategy"]
    assert loaded == load_config(path, ["strategy=ddp"]).values["strategy"]
    assert len(loaded) == len(ddp) + 1


@pytest.mark.parametrize("task", TASKS)
def test_it_has_every_option_and_no_long_line(task):
    text = init_text(task)
    for _, section in section_options(Config).items():
        for inner in section.sections:
            if section.key != "task" or inner is kinds(section)[task]:
                for key in section_options(inner):
                    assert re.search(rf"^ *#?{key}:", text, flags=re.MULTILINE), key
    assert max(map(len, text.splitlines())) <= 120


def test_another_task_is_refused():
    with raises_code("task.unknown_kind", "regresion", "classification"):
        init_text("regresion")


def test_the_table_of_options_has_every_option():
    text = options_markdown()
    for key in ("run", "task", "data.columns", "train", "batch", "strategy", "trackers.mlflow"):
        assert f"### `{key}`" in text, key
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    names = {option.key for option in section_options(Config).values() if not option.sections}
    assert names <= set(rows)
    assert {"hang_timeout_s", "learning_rate", "micro_batch_size", "stages"} <= set(rows)
