"""`paratune config`: shows, describes or creates a configuration file."""

import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from paratune.api.apply import allow_source
from paratune.base.text import listing, plain
from paratune.commands.options import Json, LabelColumn, Overrides, PairColumn, TextColumn, check_output
from paratune.config.own_code import imported_code
from paratune.config.plain import flatten, one_line
from paratune.console import print_json, print_result, print_table
from paratune.errors import ConfigError

config_app = App(name="config")
TaskKind = Literal[
    "classification", "embedding", "mlm", "multi_label", "multiple_choice", "ordinal", "qa", "regression",
    "token_classification",
]  # fmt: skip
_HUB_MODEL = "google-bert/bert-base-uncased"
"""Without --model: the model that comes with the extra `demo` where it is installed, else one of the hub."""


@config_app.command
def show(config: Path, /, *, set_: Overrides = (), json: Json = False) -> None:
    """Print the complete configuration of a run, with the origin of each value."""
    from paratune.config.load import load_config, show_text

    loaded = load_config(config, set_)
    if json:
        print_json({"config": loaded.values, "origin": loaded.origin})
    else:
        print(show_text(loaded), end="")  # noqa: T201
        for line in imported_code(loaded.values):
            print(plain(f"# training imports Python code that does not come with paratune: {line}"))  # noqa: T201


@config_app.command
def schema(*, json: Json = True) -> None:
    """Print the JSON schema of configuration files, for editors."""
    from paratune.config.options import json_schema

    print_json(json_schema(), indent=2)


@config_app.command
def init(
    path: Path,
    /,
    *,
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    task: TaskKind | None = None,
    model: str | None = None,
    set_: Overrides = (),
    run_code: bool = False,
    json: Json = False,
) -> None:
    """Write a configuration file that runs: task, columns and labels are read from the data in --train.

    A comment gives the reason for each guess. Give an option, or --set, to replace a guess.

    Args:
        train: training data, as data.train
        validation: validation data; default: a tenth of --train
        test: test data; default: a tenth of --train, unless --validation is given
        task: kind of the task
        model: model folder or hub name
        run_code: read data sets of Python code (code:...)
    """
    from paratune.commands.config_init import check, read_and_guess, short_text
    from paratune.config.feasibility import DEMO_MODEL, DEMO_PACKAGE
    from paratune.config.layers import Layer, expand_shorthands
    from paratune.config.overrides import read_overrides
    from paratune.config.problems import refuse
    from paratune.config.sections import Data
    from paratune.config.validate import validate_as
    from paratune.console import log_each_message_once, set_up_logging
    from paratune.data.guess import example_row
    from paratune.reports.text import shorten

    check_output(path, option="PATH")
    set_up_logging(speaks=True)
    log_each_message_once()  # files are read several times
    given = expand_shorthands(read_overrides(Layer(), set_))
    refuse([*given.problems, *validate_as(Data, given.values.get("data") or {}, "data", "data")[1].problems])
    if train is None:
        message = "name the training data: paratune config init my.yaml --train reviews.csv"
        raise ConfigError(message, code="cli.required", option="--train")
    named = {"train": train, "validation": validation, "test": test}
    sources = {name: source for name, source in named.items() if source is not None}
    for source in sources.values() if run_code else ():
        allow_source(source)
    chosen = flatten(given.values)  # what other settings are guessed from
    model = chosen.get("model.name", model)
    name_of_model = model or (DEMO_MODEL if find_spec(DEMO_PACKAGE) else _HUB_MODEL)
    columns = {"text": text, "text_pair": text_pair, "label": label}
    for key in columns:
        names = chosen.get(f"data.columns.{key}")
        columns[key] = ",".join(names) if isinstance(names, list) else str(names) if names is not None else columns[key]
    guess, tables = read_and_guess(sources, columns, chosen.get("task.kind", task), name_of_model, given)
    guess.reasons |= {} if model else {"model.name": "no --model was given"}
    checked = check(guess, tables, path)
    head = f"Written by paratune config init from {plain(train)}; a comment has the reason."
    path.write_text(short_text(guess.values, guess.reasons, head), encoding="utf-8")
    example = example_row(tables["train"], guess.values)
    if json:
        about = {"task": guess.kind, "config": guess.values, "reasons": guess.reasons, "example": example}
        print_json({"path": str(path), **about, "doubts": guess.doubts, "checked": checked})
        return
    rows = []
    shown = [key for key in guess.values if key in guess.reasons or key in example]
    for key in sorted(shown, key=lambda key: (key != "task.kind", key not in example)):
        name, *why = one_line(guess.values[key]), *([guess.reasons[key]] if key in guess.reasons else [])
        value = f": {shorten(example[key], 100)}" if key in example else ""
        rows.append((key.removeprefix("data.columns."), f"{name}{''.join(f' ({reason})' for reason in why)}{value}"))
    rows += [("possible, too", doubt) for doubt in guess.doubts]
    print_table(("", ""), [*rows, ("checked", checked)])
    print_result(f"written: {path}", is_prose=True)
    print_result(f"look at the data: paratune data {path}; train: paratune train {path}", is_prose=True)


@config_app.command(name="from-trainer")
def from_trainer(
    *files: str,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
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
) -> None:
    """Convert the settings of a Hugging Face Trainer to a configuration, and name keys without an equivalent.

    Give task, data and model by options if the files do not have them. Missing ones are marked FILL IN.

    Args:
        files: JSON or YAML of TrainingArguments, a script with the command line, or the line itself in quotes; files of
            Accelerate and DeepSpeed beside it
        out: YAML file to write; default: stdout
        task: kind of the task, or the name of a GLUE task
        labels: label values in the order of their ids, comma-separated
        model: value of model.name
        train: value of data.train
        validation: value of data.validation
        test: value of data.test
    """
    from paratune.config.load import check_text
    from paratune.config.trainer.conversion import FILL_IN
    from paratune.config.trainer.convert import convert
    from paratune.config.trainer.read import read_settings

    if out is not None:
        check_output(out)
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
    settings = read_settings(files)
    source = plain(", ".join(Path(name).name if Path(name).exists() else "the command line" for name in files))
    conversion = convert(settings, source, {key: value for key, value in named.items() if value})
    content = conversion.text(source)
    check_text(content, Path("converted.yaml"))
    if out is not None:
        out.write_text(content, encoding="utf-8")
    blank = [key for key, comment in conversion.comments.items() if comment.startswith(FILL_IN)]
    if json:
        lists = {
            name: [asdict(key) for key in getattr(conversion, name)] for name in ("decide", "not_known", "no_equal")
        }
        about = {"used": conversion.used, "ignored": conversion.ignored, "fill_in": blank, **lists}
        file_written = None if out is None else str(out)
        print_json({"config": conversion.values, "origin": conversion.comments, "output": file_written, **about})
        return
    if out is None:
        print(content, end="")  # noqa: T201
    lines = [f"{source}: {len(conversion.used)} keys became options: {', '.join(conversion.used) or 'none'}"]
    for title, left in conversion.groups():
        lines += [f"{title}:", *(f"  {key}" for key in left)]
    if conversion.ignored:
        lines.append(f"without an equivalent, left out without effect: {listing(conversion.ignored)}")
    if blank:
        lines.append(f"to fill in: {', '.join(blank)}")
    if out is not None:
        lines.append(f"written: {out}; check it, then: paratune data {out}")
    print("\n".join(map(plain, lines)), file=sys.stderr)  # noqa: T201 - stdout may be the file
