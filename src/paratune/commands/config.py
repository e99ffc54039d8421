"""`paratune config`: shows, describes or creates a configuration file."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from paratune.api.apply import allow_source
from paratune.base.text import listing, plain
from paratune.commands.options import Json, LabelColumn, Overrides, PairColumn, TextColumn, check_output
from paratune.config.own_code import imported_code
from paratune.config.plain import yaml_lines
from paratune.console import print_json
from paratune.errors import ConfigError, DataError, Fault, ParatuneError

if TYPE_CHECKING:
    import pyarrow as pa

    from paratune.data.guess import OptionGuess

config_app = App(name="config")
_DEMO_MODEL = "demo:minilm"
TaskKind = Literal[
    "classification", "embedding", "mlm", "multi_label", "multiple_choice", "ordinal", "qa", "regression",
    "token_classification",
]  # fmt: skip
_HUB_MODEL = "google-bert/bert-base-uncased"
"""Without --model: the model that comes with the extra `demo` where it is installed, else one of the hub."""
_LARGEST_BATCH, _SMALLEST_BATCH = 32, 4
"""The batch is the largest power of two between them with which an epoch has at least 8 steps."""


@config_app.command
def show(config: Path, *, set_: Overrides = (), json: Json = False) -> None:
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
def schema(*, json: bool = True) -> None:
    """Print the JSON schema of configuration files, for editors."""
    from paratune.config.options import json_schema

    print_json(json_schema(), indent=2)


@config_app.command
def init(
    path: Path,
    *,
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    task: TaskKind | None = None,
    model: str | None = None,
    run_code: bool = False,
    json: Json = False,
) -> None:
    """Write a configuration file that runs: task, columns and labels are read from the data in --train.

    A comment gives the reason for each guess. Give an option to replace a guess.

    Args:
        train: training data, as data.train
        validation: validation data; default: a tenth of --train
        test: test data; default: a tenth of --train, unless --validation is given
        task: kind of the task
        model: model folder or hub name
        run_code: read data sets of Python code (code:...)
    """
    check_output(path, option="PATH")
    if train is None:
        message = "name the training data: paratune config init my.yaml --train reviews.csv"
        raise ConfigError(message, code="cli.argument_missing", option="--train")
    given = {"train": train, "validation": validation, "test": test}
    sources = {name: source for name, source in given.items() if source is not None}
    for source in sources.values() if run_code else ():
        allow_source(source)
    guess = _read_and_guess(sources, {"text": text, "text_pair": text_pair, "label": label}, task, model)
    content = _checked_text(guess, path)
    path.write_text(content, encoding="utf-8")
    if json:
        print_json({"path": str(path), "task": guess.kind, "config": guess.values, "reasons": guess.reasons})
        return
    lines = [f"{key} = {guess.values[key]}: {reason}" for key, reason in guess.reasons.items()]
    lines.append(f"written: {path}; look at the data: paratune data {path}; train: paratune train {path}")
    print("\n".join(map(plain, lines)))  # noqa: T201


def _read_and_guess(
    sources: dict[str, str], columns: dict[str, str | None], task: str | None, model: str | None
) -> "OptionGuess":
    """Return the options for the data files and the model; all that are missing are reported at once."""
    from paratune.config.feasibility import DEMO_PACKAGE
    from paratune.data.guess import guess_options
    from paratune.data.read import read_table
    from paratune.models.locate import locate

    name_of_model = model or (_DEMO_MODEL if find_spec(DEMO_PACKAGE) else _HUB_MODEL)
    faults: list[Fault] = []
    tables: dict[str, pa.Table] = {}
    for name, source in [*sources.items(), ("model", name_of_model)]:
        try:
            if name == "model":
                locate(source)
            else:
                tables[name] = read_table(source)
        except ParatuneError as error:
            faults.extend(error.faults)
    if faults:
        kind = DataError if sources.keys() - tables else ConfigError
        raise kind(f"{len(faults)} {'problem' if len(faults) == 1 else 'problems'}", code=faults[0].code, faults=faults)
    guess = guess_options(
        tables["train"],
        sources["train"],
        task=task,
        columns=columns,
        others=[table for name, table in tables.items() if name != "train"],
        separate_validation="validation" in sources,
        separate_test="test" in sources,
    )
    guess.values = {**{f"data.{name}": source for name, source in sources.items()}, **guess.values}
    guess.put("model.name", name_of_model, None if model else "no --model was given")
    guess.put("train.epochs", 3)
    guess.put("train.learning_rate", 5e-5 if name_of_model == _DEMO_MODEL else 2e-5)
    guess.put("train.warmup_ratio", 0.1)
    size = _LARGEST_BATCH
    while size > _SMALLEST_BATCH and tables["train"].num_rows < 10 * size:
        size //= 2
    guess.put("batch.global", size)
    return guess


def _checked_text(guess: "OptionGuess", path: Path) -> str:
    """Return the text of the file, after it was loaded, and its rows were read, as a run does."""
    from paratune.config.layers import Layer, expand_shorthands
    from paratune.config.load import check_layer
    from paratune.config.yaml_tree import read_tree
    from paratune.data.load import load_samples

    head = f"Written by paratune config init from {plain(str(guess.values['data.train']))}; a comment has the reason."
    content = short_text(guess.values, guess.reasons, head)
    tree = read_tree(content, str(path))
    assert isinstance(tree.value, dict), tree.problems
    loaded, problems = check_layer(expand_shorthands(Layer(tree.value, tree.places)), path)
    if loaded is None or problems:
        faults = [Fault(problem.code, problem.message) for problem in problems]
        raise ConfigError("the given options are not a valid configuration", code=problems[0].code, faults=faults)
    if guess.kind not in ("qa", "mlm"):  # their rows need the tokenizer
        load_samples(loaded.config.data, loaded.config.task)
    return content


_ORDER = ("task", "data", "model", "train", "batch", "evaluate", "strategy")
"""Sections in the order of the file."""


def short_text(values: Mapping[str, Any], reasons: Mapping[str, str], head: str) -> str:
    """Return a configuration file with these values only.

    Args:
        values: Values by dotted key, such as data.columns.text.
        reasons: Comments by dotted key.
        head: Comment of the first line.
    """
    nested: dict[str, Any] = {section: {} for section in _ORDER}
    for dotted, value in values.items():
        *path, last = dotted.split(".")
        section = nested
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    lines = yaml_lines({name: options for name, options in nested.items() if options}, lambda key: reasons.get(key, ""))
    return "\n".join([f"# {head}", *(line.removesuffix("  # ") for line in lines)]) + "\n"


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
    from paratune.config.trainer.conversion import FILL_IN
    from paratune.config.trainer.convert import check_text, convert
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
    check_text(content, source)
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
