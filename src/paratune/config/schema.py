"""Generates a JSON schema for editors, a first configuration file, and the reference of options.

All three come from the classes of `config.sections` and the texts under their fields.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from paratune.config.glue import GLUE
from paratune.config.layers import EXTENDS
from paratune.config.options import Option, allowed_kinds, kinds, outside_kind, section_options
from paratune.config.plain import one_line
from paratune.config.section import OwnCode, Section
from paratune.config.sections import Config
from paratune.errors import ConfigError, did_you_mean

_WIDTH = 110
_HEAD = """\
# A run of paratune: {task}. All options with their help.
# A line such as "#seed: 42" shows a default; remove its # to change it. Then: paratune train THIS_FILE
"""
_FILLED: dict[str, dict[str, Any]] = {
    "classification": {
        "task.labels": ["negative", "positive"],
        "data.columns.label": "label",
        "data.split.stratify": True,
        "evaluate.best": "accuracy",
    },
    "mlm": {"data.train": "data/train.txt", "evaluate.best": "perplexity"},
    "multi_label": {
        "task.labels": ["praise", "complaint", "question"],
        "data.columns.label": "labels",
        "evaluate.best": "f1_micro",
    },
    "multiple_choice": {
        "data.train": "data/train.csv",
        "data.columns.text": "question",
        "data.columns.choices": ["a", "b", "c", "d"],
        "data.columns.label": "answer",
        "evaluate.best": "accuracy",
    },
    "ordinal": {
        "task.labels": ["low", "medium", "high"],
        "data.columns.label": "grade",
        "data.split.stratify": True,
        "evaluate.best": "qwk",
    },
    "regression": {"data.columns.label": "score", "evaluate.best": "rmse"},
    "qa": {
        "data.train": "data/train.csv",
        "data.columns.text": "question",
        "data.columns.text_pair": "context",
        "data.columns.label": "answers",
        "data.columns.id": "id",
        "data.split.group_by": "context",
        "evaluate.best": "f1",
    },
    "token_classification": {
        "task.labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
        "data.train": "data/train.conll",
        "data.columns.text": "tokens",
        "data.columns.label": "tags",
        "evaluate.best": "f1",
    },
    "embedding": {"data.columns.text": "question", "data.columns.text_pair": "answer", "evaluate.best": "mrr"},
    "own": {
        "task.recipe": "my_tasks:Ranking",
        "task.scores": ["pair_accuracy"],
        "data.columns.text": "better",
        "data.columns.text_pair": "worse",
        "evaluate.best": "own_pair_accuracy",
    },
}
"""Values in the first configuration file, by task, besides `task.kind`."""
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


def init_text(task: str, values: Mapping[str, Any] | None = None) -> str:
    """Return a first configuration file, with all options, their help and their defaults.

    Args:
        values: Values of the file by dotted key; None for those of an example.

    Raises:
        ConfigError: There is no such task.
    """
    if task not in _FILLED:
        message = f"{task!r} is not a task{did_you_mean(task, _FILLED)}; allowed: {', '.join(_FILLED)}"
        raise ConfigError(message, code="task.unknown_kind", task=task)
    filled = dict(values) if values is not None else {**_FILLED_ALWAYS, "task.kind": task, **_FILLED[task]}
    return "\n".join([_HEAD.format(task=task).rstrip(), *_template(Config, "", 0, filled)]) + "\n"


def _template(section: type[Section], prefix: str, depth: int, filled: dict[str, Any]) -> Iterator[str]:
    indent = "  " * depth
    for key, option in section_options(section).items():
        dotted = f"{prefix}{key}"
        if option.sections and not option.listed and not option.words and option.sections != (OwnCode,):
            yield from [""] * (depth == 0)
            yield from _comment(option.help, indent)
            yield f"{indent}{'#' if _is_off(option, dotted, filled) else ''}{key}:"
            yield from _template_of_section(option, f"{dotted}.", depth + 1, filled)
        else:
            yield from [""] * (depth == 0)
            yield from _template_of_value(option, dotted, indent, filled)


def _is_off(option: Option, dotted: str, filled: Mapping[str, Any]) -> bool:
    """Return whether a section is off by default and has no value in the file."""
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
        # Only options of the chosen task; of strategies also those of other kinds, which all have defaults.
        if section is None or (kind != chosen and (option.key == "task" or not _needs_only_kind(section))):
            continue
        options = [inner for key, inner in section_options(section).items() if key != "kind"]
        if options and kind != chosen:
            yield from _comment(f"With kind: {kind}", indent)
        for inner in options:
            yield from _template_of_value(inner, prefix + inner.key, indent, filled)


def _template_of_value(option: Option, dotted: str, indent: str, filled: dict[str, Any]) -> Iterator[str]:
    yield from _comment(f"{option.help} Allowed: {option.allowed}.", indent)
    if dotted in filled:
        yield f"{indent}{option.key}: {one_line(filled[dotted])}"
    else:
        yield f"{indent}#{option.key}: {one_line(option.default)}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def options_markdown() -> str:
    """Return all options as Markdown, one table per section, for the page *Options* of the documentation."""
    return "\n".join(_tables(Config, "", "")).strip() + "\n"


def _tables(section: type[Section], path: str, condition: str) -> Iterator[str]:
    options = section_options(section)
    plain = [option for option in options.values() if not option.sections or option.listed or option.words]
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
        for inner in option.sections[:1]:
            yield from _tables(inner, dotted, "")
        return
    for kind, section in {**kinds(option), "package.module:Class": outside_kind(option)}.items():
        if section is not None:
            yield from _tables(section, dotted, f" with `kind: {kind}`")


def _row(option: Option) -> str:
    default = "required" if option.required else f"`{one_line(option.default)}`"
    cells = (f"`{option.key}`", default, option.allowed, option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
