"""Describes the options of each section: key, help, default, and the allowed values in words; the JSON schema."""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from paratune.config.glue import GLUE
from paratune.config.layers import EXTENDS
from paratune.config.section import Section
from paratune.config.sections import Config

_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "letters, digits, '.', '_' and '-', with a letter or digit first",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "package.module:Class",
    r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$": "a name (letters, digits and _ . @ + -)",
    r"^(\d+-)?\d+(:\d+){0,2}$": 'a time in quotes: "30" minutes, "08:00:00" or "2-12"',
    r"^\d+[KMGT]?$": 'memory in quotes: "64G", or "0" for all',
    r"^(.|tab)$": "one character, or tab",
    r"^(.|none)$": "one character, or none",
}
_PLURALS = {name: f"{name}s" for name in ("text", "whole number", "number", "mapping")}
_PLURALS["true or false"] = "true or false"


@dataclass(frozen=True)
class Option:
    """One key of a section."""

    key: str
    """As in a file."""
    help: str
    """What it does, in one line."""
    required: bool
    """Whether it has no default."""
    default: Any
    """None also for required options."""
    allowed: str
    """The allowed values, in words."""
    nullable: bool
    """Whether null is allowed."""
    sections: tuple[type[Section], ...]
    """For a section: its class, or the classes of its kinds. Empty for a plain value."""
    listed: bool = False
    """Whether it is a list of sections."""
    words: tuple[str, ...] = ()
    """For a section: words that are allowed in its place."""
    is_text: bool = False
    """Whether it is any text, or perhaps a list of texts, and nothing else."""

    @property
    def by_kind(self) -> bool:
        return bool(self.sections) and "kind" in self.sections[0].model_fields


@cache
def section_options(section: type[Section]) -> Mapping[str, Option]:
    """Return the options of a section by key, in the order of the class."""
    return {field.alias or name: _option(field.alias or name, field) for name, field in section.model_fields.items()}


def kinds(option: Option) -> dict[str, type[Section]]:
    """Return the class of each named kind of a section; the class for `package.module:Class` is not included."""
    return {
        get_args(section.model_fields["kind"].annotation)[0]: section
        for section in option.sections
        if get_origin(section.model_fields["kind"].annotation) is Literal
    }


def outside_kind(option: Option) -> type[Section] | None:
    """Return the section for the user's own class (`kind: package.module:Class`); None where there is none."""
    return next((section for section in option.sections if section not in kinds(option).values()), None)


def allowed_kinds(option: Option) -> str:
    """Return the allowed kinds in words."""
    words = list(kinds(option)) + ["package.module:Class of your own"] * (outside_kind(option) is not None)
    return _either(words)


def sections_at(key: str) -> list[type[Section]]:
    """Return the classes of a section by its dotted key, of all kinds."""
    sections: list[type[Section]] = [Config]
    for name in key.split(".") if key else ():
        options = [section_options(section).get(name) for section in sections]
        sections = [inner for option in options if option is not None for inner in option.sections]
    return sections


def find_key(key: Any, section: type[Section], prefix: str = "") -> str | None:
    """Return the dotted key of the first option with this key in a section and its subsections, or None."""
    if key == "kind":
        return None
    for option in section_options(section).values():
        if option.key == key:
            return prefix + option.key
        for inner in option.sections:
            inner_key = find_key(key, inner, f"{prefix}{option.key}.")
            if inner_key:
                return inner_key
    return None


def _option(key: str, field: FieldInfo) -> Option:
    listed = get_origin(field.annotation) is list
    inner = get_args(field.annotation)[0] if listed else field.annotation
    sections = tuple(member for member in _members(inner) if isinstance(member, type) and issubclass(member, Section))
    literals = [member for member in _members(inner) if get_origin(member) is Literal] if sections else []
    words = tuple(word for literal in literals for word in get_args(literal))
    allowed = f"a {'list of mappings' if listed else 'mapping'} of options"
    allowed = f"{_either(list(words))}, or {allowed}" if words else allowed
    if not sections:
        allowed = describe(field.annotation, tuple(field.metadata))
    # A section without a text of its own has that of its class.
    described = field.description or (sections[0].__doc__ if len(sections) == 1 else None) or ""
    text = "The kind." if key == "kind" else " ".join(described.split())
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    nullable = type(None) in _members(field.annotation) or field.annotation is Any
    is_listed = listed and bool(sections)
    members = {get_origin(member) or member for member in _members(field.annotation)}
    is_text = str in members <= {str, list, type(None)}
    return Option(key, text, field.is_required(), default, allowed, nullable, sections, is_listed, words, is_text)


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for argument in get_args(annotation) for member in _members(argument))
    return (annotation,)


def describe(annotation: Any, constraints: tuple[Any, ...] = ()) -> str:
    """Return the allowed values of a type in words: `int | None` with ge=1 is "a whole number at least 1, or null".

    Args:
        annotation: A plain type, Literal, list, dict, union or Annotated of these.
        constraints: Its metadata of `annotated_types` and pydantic.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [argument.metadata if isinstance(argument, FieldInfo) else [argument] for argument in arguments[1:]]
        return describe(arguments[0], (*chain.from_iterable(inner), *constraints))
    if origin in (Union, types.UnionType):
        words = [describe(argument, constraints) for argument in arguments]
        return words[0] + "".join(f", or {word}" for word in words[1:])
    if origin is Literal:
        return _either([str(argument) for argument in arguments])
    if origin is list:
        count = f"{limit} " if (limit := _constraint(constraints, "min_length")) and limit > 1 else ""
        return f"a list of {count}{_plural(arguments[0])}"
    if origin is dict:
        keys_to_values = "" if arguments[1] is Any else f" of {_plural(arguments[0])} to {_plural(arguments[1])}"
        return f"a mapping{keys_to_values}"
    if annotation is str:
        pattern = _constraint(constraints, "pattern")
        return "text" if pattern is None else _PATTERNS.get(pattern, f"text like {pattern}")
    if annotation in (int, float):
        limits = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}
        given = {words: _constraint(constraints, name) for name, words in limits.items()}
        range_words = " and ".join(f"{words} {limit}" for words, limit in given.items() if limit is not None)
        return f"a {'whole ' if annotation is int else ''}number {range_words}".rstrip()
    return {bool: "true or false", type(None): "null", Any: "anything"}.get(annotation, str(annotation))


def _plural(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return _either([_plural(argument) for argument in get_args(annotation)])
    word = describe(annotation).removeprefix("a ")
    for singular, plural in _PLURALS.items():
        if word.startswith(singular):
            return plural + word.removeprefix(singular)
    return word


def _constraint(constraints: tuple[Any, ...], name: str) -> Any:
    return next((value for constraint in constraints if (value := getattr(constraint, name, None)) is not None), None)


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


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
    sections: list[tuple[type[Section], dict[str, Any]]] = [(Config, schema)]
    for section, part in sections:  # grows: sections in sections
        for key, option in section_options(section).items():
            if not option.sections:
                continue
            sections += [(inner, schema["$defs"][inner.__name__]) for inner in option.sections]
            part["properties"][key]["description"] = option.help
            # Where only the kind is required, it may be written in place of the section.
            required = {
                kind: [inner.key for inner in section_options(of_kind).values() if inner.required]
                for kind, of_kind in (kinds(option).items() if option.by_kind else ())
            }
            words = [kind for kind, keys in required.items() if keys == ["kind"]] + list(GLUE if key == "task" else ())
            if words:
                part["properties"][key]["anyOf"].append({"enum": words})
    extends = {
        "description": "File, or list of files, that this file extends; relative to this file.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema["properties"] = {EXTENDS: extends, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A run of paratune"}


def _loosen(schema: Any) -> None:
    """Let, in place, sections be empty; remove required options, and keywords of OpenAPI that are not JSON schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("required"), list):
            del schema["required"]
        if "oneOf" in schema:
            schema["anyOf"] = schema.pop("oneOf")
            schema.pop("discriminator", None)
        for inner in schema.values():
            _loosen(inner)
        if isinstance(schema.get("$ref"), str):
            schema["anyOf"] = [{"$ref": schema.pop("$ref")}, {"type": "null"}]
    elif isinstance(schema, list):
        for inner in schema:
            _loosen(inner)
