from pathlib import Path
from typing import Any

import pytest

from paratune.config.options import json_schema, section_options
from paratune.config.sections import Config
from paratune.config.yaml_tree import read_tree

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


def test_the_schema_accepts_every_file_in_configs():
    schema = json_schema()
    files = CONFIGS.rglob("*.yaml")
    texts = [
        path.read_text()
        for path in files
        if path.parent.name not in ("corpus", "sites", "tables") and path.name != "published.yaml"
    ]
    configurations = [text for text in texts if "\naxes:" not in text]  # no matrices of runs
    for text in configurations:
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
        {"model": {"adapter": "lora"}},
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
