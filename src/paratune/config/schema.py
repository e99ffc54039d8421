"""Generates a JSON schema for editors, from the classes of `config.sections` and the texts under their fields."""

from typing import Any

from paratune.config.glue import GLUE
from paratune.config.layers import EXTENDS
from paratune.config.options import Option, kinds, section_options
from paratune.config.section import Section
from paratune.config.sections import Config


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a configuration file, for editors.

    No option is required in the schema: a file may extend another one, or `--set` may add options. Loading a file
    checks required options and combinations.
    """
    schema = Config.model_json_schema(by_alias=True)
    _loosen(schema)
    for task in GLUE.values():
        kind = schema["$defs"][kinds(section_options(Config)["task"])[task.kind].__name__]["properties"]["kind"]
        kind.pop("const", None)
        kind["enum"] = [task.kind, *(name for name, glue_task in GLUE.items() if glue_task.kind == task.kind)]
    _let_be_empty(schema, Config, schema["$defs"])
    extends = {
        "description": "File, or list of files, that this file extends; relative to this file.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema["properties"] = {EXTENDS: extends, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A run of paratune"}


def _let_be_empty(schema: dict[str, Any], section: type[Section], definitions: dict[str, Any]) -> None:
    """Allow, in place, the sections in a section to be empty, at all levels."""
    for key, option in section_options(section).items():
        if option.sections and not option.listed and not option.words:
            schema["properties"][key] = _section_schema(schema["properties"][key], option)
        for inner in option.sections:
            _let_be_empty(definitions[inner.__name__], inner, definitions)


def _section_schema(schema: dict[str, Any], option: Option) -> dict[str, Any]:
    """Return the schema of a section that may also be empty or, where only the kind is required, the kind."""
    choices = [choice for choice in schema.get("anyOf") or [{"$ref": schema["$ref"]}] if choice != {"type": "null"}]
    words = [kind for kind, section in kinds(option).items() if _needs_only_kind(section)] if option.by_kind else []
    words += GLUE if option.key == "task" else ()
    shorthand = [{"enum": words}] if words else []
    return {"description": option.help, "anyOf": [*choices, *shorthand, {"type": "null"}]}


def _needs_only_kind(section: type[Section]) -> bool:
    """Return whether the kind is the only required option."""
    return [option.key for option in section_options(section).values() if option.required] == ["kind"]


def _loosen(schema: Any) -> None:
    """Remove, in place, required options, and keywords of OpenAPI that are not JSON schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("required"), list):
            del schema["required"]
        if "oneOf" in schema:
            schema["anyOf"] = schema.pop("oneOf")
            schema.pop("discriminator", None)
        for inner in schema.values():
            _loosen(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _loosen(inner)
