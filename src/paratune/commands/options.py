"""Types and checks of options that several commands have."""

import functools
import inspect
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from paratune.config.problems import overlap
from paratune.errors import ConfigError, option_error, os_error_as

Overrides = Annotated[
    Sequence[str], Parameter(name="--set", help="section.key=value, replaces a value of the file; may be repeated")
]
All = Annotated[bool, Parameter(name="--all", negative="", help="print more than one screen")]
Json = Annotated[bool, Parameter(help="print the result as JSON on stdout")]
RunCode = Annotated[bool, Parameter(help="run Python code that does not come with paratune")]
TextColumn = Annotated[str | None, Parameter(help="column of the text")]
PairColumn = Annotated[str | None, Parameter(help="column of the second text of a pair")]
LabelColumn = Annotated[str | None, Parameter(help="column of the label, target or answer")]
BatchSize = Annotated[int, Parameter(help="samples of a forward pass for the longest samples; more for shorter ones")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="device")]
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("runs", "model"), str),
    **dict.fromkeys(("baseline", "data"), str | None),
    **dict.fromkeys(("out", "plan"), Path | None),
    **dict.fromkeys(("by", "allow", "target", "labels", "margin"), Sequence[str]),
}
"""Types of options by the name of an argument of a public function that takes more types than a command line has."""
SHORT_NAMES = {
    "model": "model.name",
    "epochs": "train.epochs",
    "max_steps": "train.max_steps",
    "lr": "train.learning_rate",
    "batch_size": "batch.global",
    "seed": "run.seed",
}
"""Setting of each short name of `paratune train`."""


def short_names(work: Callable[..., int]) -> Callable[..., int]:
    """Return a command with an option for each of `SHORT_NAMES`, which it adds to its `set_`."""

    @functools.wraps(work)
    def run(*arguments: Any, set_: Sequence[str] = (), **options: Any) -> int:
        settings = []
        for name, key in SHORT_NAMES.items():
            if (value := options.pop(name, None)) is None:
                continue
            option = f"--{name.replace('_', '-')}"
            if same := [text for text in set_ if overlap(key, text.partition("=")[0].strip())]:
                message = f"{option} {value} and --set {same[0]} both set {key}; use one of them"
                raise ConfigError(message, code="cli.conflict", options=(option, "--set"))
            settings.append(f"{key}={value}")
        return work(*arguments, set_=[*set_, *settings], **options)

    signature = inspect.signature(work)
    shown: Any = {
        name: Annotated[str | None, Parameter(help=f"short for --set {key}=")] for name, key in SHORT_NAMES.items()
    }
    first, *others = signature.parameters.values()
    added = [inspect.Parameter(name, first.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in shown.items()]
    run.__signature__ = signature.replace(parameters=[first, *added, *others])  # type: ignore[attr-defined]
    run.__annotations__ = {**work.__annotations__, **shown}
    return run


def command(function: Callable[..., Any], show: Callable[[Any, bool], int | None]) -> Callable[..., int | None]:
    """Return the command of a public function: its arguments are the options, its docstring is the help.

    Args:
        function: Its first argument is positional, the others have names.
        show: Prints the result of the function, as JSON where its second argument is true; returns the exit code.
    """

    # Without `process_as_before`: a process ends after its command, and JSON has the warnings of its log.
    work = getattr(function, "__wrapped__", function)

    def run(*arguments: Any, json: bool = False, **options: Any) -> int | None:
        return show(work(*arguments, **options), json)

    about, _, entries = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    texts = dict(re.findall(r"(?ms)^ {4}(\w+): (.*?)(?=\n {4}\w|\n\n|\Z)", entries))
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        text = " ".join(texts[name].split()).rstrip(".")
        text = text if text[1].isupper() else text[0].lower() + text[1:]
        is_several = parameter.kind == parameter.VAR_POSITIONAL
        kind = parameter.KEYWORD_ONLY if parameters else parameter.kind if is_several else parameter.POSITIONAL_ONLY
        annotation: Any = Annotated[_TYPES.get(name, parameter.annotation), Parameter(help=text)]
        parameters.append(parameter.replace(kind=kind, annotation=annotation))
    parameters.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__, run.__name__ = about, function.__name__
    return run


def require_some(names: Sequence[object], kinds: str) -> None:
    """Raise a `ConfigError` when a command line names nothing."""
    if not names:
        raise ConfigError(f"name at least one of {kinds}", code="cli.required")


def check_output(
    path: Path, *, option: str = "--out", overwrite: bool | None = None, suffixes: Sequence[str] = ()
) -> None:
    """Raise a `ConfigError` for a file that cannot be written, before the work that makes its content.

    Args:
        option: Option that names the file.
        overwrite: Whether an existing file is replaced; None for a command without --overwrite.
        suffixes: Allowed suffixes; all, if there are none.
    """
    if suffixes and path.suffix not in suffixes:
        raise option_error(option, path, f"its suffix must be one of {', '.join(suffixes)}", code="output.format")
    if path.is_dir():
        raise option_error(option, path, "it is a folder; name a file in it", code="output.not_writable")
    if path.exists() and not overwrite:
        message = f"{path} exists; choose another {option}{'' if overwrite is None else ', or use --overwrite'}"
        raise ConfigError(message, code="output.exists", path=path)
    if not path.parent.is_dir():
        raise option_error(option, path, f"{path.parent} is not a folder; create it first", code="output.not_writable")
    failure, facts = f"{option} {path} cannot be written", {"option": option, "value": path}
    with os_error_as(ConfigError, failure, "choose another folder", code="output.not_writable", **facts):
        # A check of permissions is not enough: root has them on a disk that is read-only or full.
        tempfile.TemporaryFile(dir=path.parent).close()
