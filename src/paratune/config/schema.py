"""The options as others read them: a JSON schema for editors, a file to start from, tables for the documentation.

All three come from the classes of `config.sections` (tasks and strategies included) and the lines under their fields.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from paratune.config.glue import GLUE
from paratune.config.layers import EXTENDS
from paratune.config.options import Option, allowed_kinds, kinds, options_of, outside_kind
from paratune.config.plain import one_line
from paratune.config.section import Section
from paratune.config.sections import Config
from paratune.errors import ConfigError, did_you_mean

_WIDTH = 110
_HEAD = """\
# A run of paratune: {task}. Each option is here with what it does.
# A line such as "#seed: 42" holds a default; take its # away to change it. Then: paratune train THIS_FILE
"""
_FILLED: dict[str, dict[str, Any]] = {
    "classification": {
        "task.kind": "classification",
        "task.labels": ["negative", "positive"],
        "data.columns.label": "label",
        "data.split.stratify": True,
        "evaluate.best": "accuracy",
    },
    "mlm": {
        "task.kind": "mlm",
        "data.train": "data/train.txt",
        "evaluate.best": "perplexity",
    },
    "multi_label": {
        "task.kind": "multi_label",
        "task.labels": ["praise", "complaint", "question"],
        "data.columns.label": "labels",
        "evaluate.best": "f1_micro",
    },
    "ordinal": {
        "task.kind": "ordinal",
        "task.labels": ["low", "medium", "high"],
        "data.columns.label": "grade",
        "data.split.stratify": True,
        "evaluate.best": "qwk",
    },
    "regression": {
        "task.kind": "regression",
        "data.columns.label": "score",
        "evaluate.best": "rmse",
    },
    "qa": {
        "task.kind": "qa",
        "data.train": "data/train.csv",
        "data.columns.text": "question",
        "data.columns.text_pair": "context",
        "data.columns.label": "answers",
        "data.columns.id": "id",
        "data.split.group_by": "context",
        "evaluate.best": "f1",
    },
}
"""What the file to start from says, by task."""
_FILLED_ALWAYS: dict[str, Any] = {
    "data.train": "data/train.csv",
    "data.columns.text": "text",
    "data.split.validation": 0.1,
    "model.name": "demo:minilm",
    "train.epochs": 3,
    "batch.global": 32,
    "strategy.kind": "single",
}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a configuration file, for editors.

    No option is required in it: a file may extend another one or be completed by `--set`. That nothing is missing, and
    what cannot be combined, is checked when the file is loaded.
    """
    schema = Config.model_json_schema(by_alias=True)
    _loosen(schema)
    for task in GLUE.values():
        kind = schema["$defs"][kinds(options_of(Config)["task"])[task.kind].__name__]["properties"]["kind"]
        kind.pop("const", None)
        kind["enum"] = [task.kind, *(name for name, each in GLUE.items() if each.kind == task.kind)]
    _let_be_empty(schema, Config, schema["$defs"])
    extends = {
        "description": "File, or list of files, that this one builds on; relative to this file.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema["properties"] = {EXTENDS: extends, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A run of paratune"}


def _let_be_empty(schema: dict[str, Any], section: type[Section], definitions: dict[str, Any]) -> None:
    """Allow, in place, sections in a section to be empty, and those in them."""
    for key, option in options_of(section).items():
        if option.sections:
            schema["properties"][key] = _section_schema(schema["properties"][key], option)
        for inner in option.sections:
            _let_be_empty(definitions[inner.__name__], inner, definitions)


def _section_schema(found: dict[str, Any], option: Option) -> dict[str, Any]:
    """Return the schema of a section that may also be empty or, where that says all, a word."""
    choices = [each for each in found.get("anyOf") or [{"$ref": found["$ref"]}] if each != {"type": "null"}]
    words = [kind for kind, section in kinds(option).items() if _says_all(section)] if option.by_kind else []
    words += GLUE if option.key == "task" else ()
    shorthand = [{"enum": words}] if words else []
    return {"description": option.help, "anyOf": [*choices, *shorthand, {"type": "null"}]}


def _says_all(section: type[Section]) -> bool:
    """Return whether the kind is the only required option."""
    return [option.key for option in options_of(section).values() if option.required] == ["kind"]


def _loosen(schema: Any) -> None:
    """Drop, in place, what holds only for a whole configuration or is not JSON schema but OpenAPI."""
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


def init_text(task: str) -> str:
    """Return a configuration file to start from, with every option, what it does and its default.

    Args:
        task: The kind of the task, such as classification.

    Raises:
        ConfigError: There is no such task.
    """
    if task not in _FILLED:
        raise ConfigError(
            f"{task!r} is not a task{did_you_mean(task, _FILLED)}; allowed: {', '.join(_FILLED)}",
            code="task.unknown_kind",
            task=task,
        )
    filled = {**_FILLED_ALWAYS, **_FILLED[task]}
    return "\n".join([_HEAD.format(task=task).rstrip(), *_template(Config, "", 0, filled)]) + "\n"


def _template(section: type[Section], prefix: str, depth: int, filled: dict[str, Any]) -> Iterator[str]:
    indent = "  " * depth
    for key, option in options_of(section).items():
        dotted = f"{prefix}{key}"
        if option.sections:
            yield from [""] * (depth == 0)
            yield from _comment(option.help, indent)
            yield f"{indent}{'#' if _is_off(option, dotted, filled) else ''}{key}:"
            yield from _template_of_section(option, f"{dotted}.", depth + 1, filled)
        else:
            yield from [""] * (depth == 0)
            yield from _template_of_value(option, dotted, indent, filled)


def _is_off(option: Option, dotted: str, filled: Mapping[str, Any]) -> bool:
    """Say whether a section is one that is there only when it is given, and is not."""
    return not option.required and option.default is None and not any(key.startswith(f"{dotted}.") for key in filled)


def _template_of_section(option: Option, prefix: str, depth: int, filled: dict[str, Any]) -> Iterator[str]:
    if not option.by_kind:
        yield from _template(option.sections[0], prefix, depth, filled)
        return
    is_off, indent = f"{prefix}kind" not in filled, "  " * depth
    chosen = next(iter(kinds(option))) if is_off else filled[f"{prefix}kind"]
    yield from _comment(f"Allowed: {allowed_kinds(option)}.", indent)
    yield f"{indent}{'#' if is_off else ''}kind: {chosen}"
    others = {**kinds(option), "package.module:Class": outside_kind(option)}
    for kind, section in others.items():
        # The task is chosen already; strategies differ in options that all have defaults.
        if section is None or (kind != chosen and (option.key == "task" or not _says_all(section))):
            continue
        options = [each for key, each in options_of(section).items() if key != "kind"]
        if options and kind != chosen:
            yield from _comment(f"With kind: {kind}", indent)
        for each in options:
            yield from _template_of_value(each, prefix + each.key, indent, filled)


def _template_of_value(option: Option, dotted: str, indent: str, filled: dict[str, Any]) -> Iterator[str]:
    yield from _comment(f"{option.help} Allowed: {option.allowed}.", indent)
    if dotted in filled:
        yield f"{indent}{option.key}: {one_line(filled[dotted])}"
    else:
        yield f"{indent}#{option.key}: {one_line(option.default)}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def options_markdown() -> str:
    """Return all options as Markdown, one table per section: the page *Options* of the site."""
    return "\n".join(_tables(Config, "", "")).strip() + "\n"


def _tables(section: type[Section], path: str, condition: str) -> Iterator[str]:
    options = options_of(section)
    plain = [option for option in options.values() if not option.sections]
    title = f"`{path}`{condition}" if path else "Options without a section"
    about = " ".join((section.__doc__ or "").split()) if path else ""
    rows = [_row(option) for option in plain]
    head = ["| option | default | allowed | what it does |", "|---|---|---|---|"] if rows else []
    table = [f"### {title}", "", about, "", *head, *rows]
    inner = [line for option in options.values() for line in _inner_tables(option, path)]
    yield from [*table, "", *inner] if path else [*inner, *table]


def _inner_tables(option: Option, path: str) -> Iterator[str]:
    dotted = f"{path}.{option.key}" if path else option.key
    if not option.by_kind:
        for each in option.sections[:1]:
            yield from _tables(each, dotted, "")
        return
    for kind, section in {**kinds(option), "package.module:Class": outside_kind(option)}.items():
        if section is not None:
            yield from _tables(section, dotted, f" with `kind: {kind}`")


def _row(option: Option) -> str:
    default = "required" if option.required else f"`{one_line(option.default)}`"
    cells = (f"`{option.key}`", default, option.allowed, option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
