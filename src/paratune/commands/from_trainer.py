"""`paratune config from-trainer`: the settings of a Hugging Face Trainer as a configuration."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from paratune.base.text import plain
from paratune.commands.options import Json, LabelColumn, PairColumn, TextColumn
from paratune.console import print_json
from paratune.errors import EXIT_OK

if TYPE_CHECKING:
    from paratune.config.trainer.conversion import Conversion


def from_trainer(
    file: Path,
    *,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    task: str | None = None,
    labels: str | None = None,
    model: str | None = None,
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    json: Json = False,
) -> int:
    """Convert a JSON file of Hugging Face TrainingArguments to a configuration, and name keys without an equivalent.

    Give task, data and model by options: the file does not have them. Missing ones are marked FILL IN.

    Args:
        output: YAML file to write; default: stdout
        task: kind of the task, or the name of a GLUE task
        labels: label values in the order of their ids, comma-separated
        model: value of model.name
        train: value of data.train
        validation: value of data.validation
        test: value of data.test
    """
    from paratune.commands.config import write_new
    from paratune.config.trainer.convert import check_text, convert
    from paratune.config.trainer.settings import read_settings

    named = {
        "task": task,
        "task.labels": [word.strip() for word in labels.split(",")] if labels is not None else None,
        "model.name": model,
        "data.train": train,
        "data.validation": validation,
        "data.test": test,
        "data.columns.text": text,
        "data.columns.text_pair": text_pair,
        "data.columns.label": label,
    }
    conversion = convert(read_settings(file), str(file), {key: value for key, value in named.items() if value})
    content = conversion.text(file.name)
    check_text(content, str(file))
    if output is not None:
        write_new(output, content)
    if json:
        print_json(_as_dict(conversion, output))
        return EXIT_OK
    if output is None:
        print(content, end="")  # noqa: T201
    _print_keys(conversion, file, output)
    return EXIT_OK


def _print_keys(conversion: "Conversion", path: Path, output: Path | None) -> None:
    """Print the result for every key, to stderr: stdout may be the file."""
    lines = [f"{path}: {len(conversion.used)} keys became options: {', '.join(conversion.used) or 'none'}"]
    for title, left in conversion.groups():
        lines += [f"{title}:", *(f"  {key}" for key in left)]
    if conversion.ignored:
        lines.append(f"without an equivalent, at their defaults: {', '.join(conversion.ignored)}")
    if blank := _to_fill_in(conversion):
        lines.append(f"to fill in: {', '.join(blank)}")
    if output is not None:
        lines.append(f"written: {output}; check it, then: paratune data {output}")
    print("\n".join(map(plain, lines)), file=sys.stderr)  # noqa: T201


def _to_fill_in(conversion: "Conversion") -> list[str]:
    from paratune.config.trainer.conversion import FILL_IN

    return [key for key, comment in conversion.comments.items() if comment.startswith(FILL_IN)]


def _as_dict(conversion: "Conversion", output: Path | None) -> dict[str, Any]:
    return {
        "config": conversion.values,
        "origin": conversion.comments,
        "used": conversion.used,
        "decide": [asdict(key) for key in conversion.decide],
        "not_known": [asdict(key) for key in conversion.not_known],
        "no_equal": [asdict(key) for key in conversion.no_equal],
        "ignored": conversion.ignored,
        "fill_in": _to_fill_in(conversion),
        "output": None if output is None else str(output),
    }
