"""`paratune config`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from paratune.cli.options import Json, LabelColumn, Overrides, PairColumn, TextColumn

config_app = App(name="config", help="Show, describe or create a configuration file.")


@config_app.command
def show(config: Path, *, set_: Overrides = None, json: Json = False) -> int:
    """Print the complete configuration of a run, with the origin of each value."""
    from paratune.commands.config import show_command

    return show_command(config, set_ or [], as_json=json)


@config_app.command
def schema(*, json: Json = True) -> int:
    """Print the JSON schema of configuration files, for editors."""
    from paratune.commands.config import schema_command

    return schema_command()


@config_app.command
def init(
    path: Path,
    *,
    task: Annotated[
        Literal["classification", "mlm", "multi_label", "ordinal", "qa", "regression"],
        Parameter(help="kind of the task"),
    ],
    json: Json = False,
) -> int:
    """Write a commented configuration file with every option to PATH."""
    from paratune.commands.config import init_command

    return init_command(path, task, as_json=json)


@config_app.command(name="from-trainer")
def from_trainer(
    file: Path,
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="YAML file to write; default: stdout")
    ] = None,
    task: Annotated[str | None, Parameter(help="kind of the task, or the name of a GLUE task")] = None,
    labels: Annotated[str | None, Parameter(help="label values in the order of their ids, comma-separated")] = None,
    model: Annotated[str | None, Parameter(help="model.name")] = None,
    train: Annotated[str | None, Parameter(help="data.train")] = None,
    validation: Annotated[str | None, Parameter(help="data.validation")] = None,
    test: Annotated[str | None, Parameter(help="data.test")] = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    json: Json = False,
) -> int:
    """Convert a JSON file of Hugging Face TrainingArguments to a configuration, and name every key that has no equal.

    Give task, data and model by options: the file does not have them. Missing ones are marked FILL IN.
    """
    from paratune.commands.from_trainer import from_trainer_command

    named = {
        "task": task,
        "task.labels": [each.strip() for each in labels.split(",")] if labels is not None else None,
        "model.name": model,
        "data.train": train,
        "data.validation": validation,
        "data.test": test,
        "data.columns.text": text,
        "data.columns.text_pair": text_pair,
        "data.columns.label": label,
    }
    return from_trainer_command(file, {key: value for key, value in named.items() if value}, output, as_json=json)
