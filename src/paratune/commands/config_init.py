"""`paratune config init`: a first configuration file, with columns, labels and task read from the data."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paratune.api.apply import allow_source
from paratune.base.text import plain
from paratune.commands.config import write_new
from paratune.commands.options import Json, LabelColumn, PairColumn, TextColumn
from paratune.config.plain import one_line
from paratune.console import print_json
from paratune.errors import EXIT_OK, ConfigError, DataError, Fault, ParatuneError

if TYPE_CHECKING:
    import pyarrow as pa

    from paratune.data.guess import OptionGuess

_DEMO_MODEL = "demo:minilm"
TaskKind = Literal[
    "classification",
    "embedding",
    "mlm",
    "multi_label",
    "multiple_choice",
    "ordinal",
    "qa",
    "regression",
    "token_classification",
]
_HUB_MODEL = "google-bert/bert-base-uncased"
"""Without --model: the model that comes with the extra `demo` where it is installed, else one of the hub."""
_LARGEST_BATCH = 32
_SMALLEST_BATCH = 4


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
) -> int:
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
    if path.exists():
        write_new(path, "")  # refuses it, before the data is read
    if train is None:
        message = "name the training data: paratune config init my.yaml --train reviews.csv"
        raise ConfigError(message, code="cli.argument_missing", option="--train")
    sources = {"train": train, "validation": validation, "test": test}
    for source in sources.values() if run_code else ():
        allow_source(source or "")
    guess = _read_and_guess(
        {name: source for name, source in sources.items() if source is not None},
        {"text": text, "text_pair": text_pair, "label": label},
        task,
        model,
    )
    content = _checked_text(guess, path)
    write_new(path, content)
    if json:
        print_json({"path": str(path), "task": guess.kind, "config": guess.values, "reasons": guess.reasons})
        return EXIT_OK
    lines = [f"{key} = {guess.values[key]}: {reason}" for key, reason in guess.reasons.items()]
    lines.append(f"written: {path}; look at the data: paratune data {path}; train: paratune train {path}")
    print("\n".join(map(plain, lines)))  # noqa: T201
    return EXIT_OK


def _read_and_guess(
    sources: dict[str, str], columns: dict[str, str | None], task: str | None, model: str | None
) -> "OptionGuess":
    """Return the options for the data files and the model; all that are missing are reported at once."""
    from paratune.data.guess import guess_options
    from paratune.data.read import read_table
    from paratune.models.locate import locate

    faults: list[Fault] = []
    tables: dict[str, pa.Table] = {}

    def attempt(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except ParatuneError as error:
            faults.extend(error.faults)

    for name, source in sources.items():
        tables[name] = attempt(partial(read_table, source))
    attempt(partial(locate, model or _default_model()))
    if faults:
        kind = DataError if any(table is None for table in tables.values()) else ConfigError
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
    guess.put("model.name", model or _default_model(), None if model else "no --model was given")
    guess.put("train.epochs", 3)
    guess.put("train.learning_rate", 5e-5 if guess.values["model.name"] == _DEMO_MODEL else 2e-5)
    guess.put("train.warmup_ratio", 0.1)
    guess.put("batch.global", _batch_size(tables["train"].num_rows))
    return guess


def _default_model() -> str:
    from importlib.util import find_spec

    from paratune.config.feasibility import DEMO_PACKAGE

    return _DEMO_MODEL if find_spec(DEMO_PACKAGE) else _HUB_MODEL


def _batch_size(num_rows: int) -> int:
    """Return the largest power of two up to 32 with which an epoch has at least 8 steps; at least 4."""
    size = _LARGEST_BATCH
    while size > _SMALLEST_BATCH and num_rows < 10 * size:
        size //= 2
    return size


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
        raise ConfigError(
            "the given options are not a valid configuration",
            code=problems[0].code,
            faults=[Fault(problem.code, problem.message) for problem in problems],
        )
    if guess.kind not in ("qa", "mlm"):  # their rows need the tokenizer
        load_samples(loaded.config.data, loaded.config.task)
    return content


_ORDER = ("task", "data", "model", "train", "batch", "evaluate", "strategy")
"""Sections in the order of the file."""


def short_text(values: Mapping[str, Any], reasons: Mapping[str, str], head: str) -> str:
    """Return a configuration file with these values only; sections within sections are on one line.

    Args:
        values: Values by dotted key, such as data.columns.text.
        reasons: Comments by dotted key; those of values on one line are joined.
        head: Comment of the first line.
    """
    sections: dict[str, dict[str, Any]] = {section: {} for section in _ORDER}
    comments: dict[tuple[str, str], list[str]] = {}
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        name, _, inner = key.partition(".")
        if inner:
            sections[section].setdefault(name, {})[inner] = value
        else:
            sections[section][name] = value
        if dotted in reasons:
            label = f"{inner}: " if inner else ""
            comments.setdefault((section, name), []).append(f"{label}{reasons[dotted]}")
    lines = [f"# {head}"]
    for section, options in sections.items():
        if options:
            lines.append(f"{section}:")
        for name, value in options.items():
            comment = "; ".join(comments.get((section, name), ()))
            lines.append(f"  {name}: {one_line(value)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"
