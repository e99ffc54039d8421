"""Finds and imports Python code outside paratune that a configuration names as package.module:attribute."""

import hashlib
import importlib
import inspect
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from paratune.config.permission import REMOTE_CODE, NamedCode, as_options, is_allowed, require_allowed
from paratune.config.sources import CODE
from paratune.errors import ConfigError, ParatuneError, did_you_mean

if TYPE_CHECKING:  # pydantic, which commands such as watch do not need
    from paratune.config.section import OwnCode
    from paratune.config.sections import Config

RECIPE_KEY = "task.recipe"
HEAD_KEY = "model.head"
CLASS_KEY = "model.class"
METRICS_KEY = "evaluate.metrics"
CALLBACKS_KEY = "run.callbacks"
NOT_COMPARED = (CALLBACKS_KEY, "data.")
"""Starts of the options whose code is not compared between runs and sessions: callbacks do not change the training, and
data sets are compared by their rows."""


def named_code(values: Mapping[str, Any]) -> list[NamedCode]:
    """Return the code that options name, of a configuration or of the record of a model.

    Args:
        values: Checked or not: wrong types are allowed.
    """
    strategy = values.get("strategy")
    kind = strategy.get("kind") if isinstance(strategy, Mapping) else strategy
    found = [_code("strategy.kind", kind, _unchecked(values, "strategy.options"))] if ":" in str(kind or "") else []
    for key in ("task.loss", RECIPE_KEY, HEAD_KEY, CLASS_KEY, "train.optimizer", "train.schedule"):
        value = _unchecked(values, key)
        if isinstance(value, Mapping):
            found.append(_code(f"{key}.function", value.get("function"), value.get("options")))
        elif value and key in (RECIPE_KEY, CLASS_KEY):  # for the other keys a word is a name of paratune
            found.append(_code(key, value, _unchecked(values, "task.options") if key == RECIPE_KEY else None))
    for key in (CALLBACKS_KEY, METRICS_KEY):
        entries = _unchecked(values, key)
        for number, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
            if isinstance(entry, Mapping):
                inside = f"{key}[{number}]" if key == CALLBACKS_KEY else f"{key}.{entry.get('name')}"
                found.append(_code(inside, entry.get("function") or entry.get("evaluate"), entry.get("options")))
    for key in ("train", "validation", "test", "extra", "predict"):
        value = _unchecked(values, f"data.{key}")
        listed = value if isinstance(value, list) else [value]
        named = value.items() if isinstance(value, Mapping) else [(None, one) for one in listed]
        for name, source in named:
            if isinstance(source, str) and source.startswith(CODE):
                found.append(source_code(source, f"data.{key}" if name is None else f"data.{key}.{name}"))
    if _unchecked(values, REMOTE_CODE):
        names = (_unchecked(values, "model.name"), _unchecked(values, "model.tokenizer"))
        found += [NamedCode(REMOTE_CODE, str(name), shown="true") for name in dict.fromkeys(names) if name]
    return found


def _code(key: str, name: Any, options: Any) -> NamedCode:
    return NamedCode(key, str(name), as_options(options if isinstance(options, Mapping) else None))


def source_code(source: str, key: str) -> NamedCode:
    """Return the code of a source of data, code:package.module:function?key=value."""
    name, _, query = source.removeprefix(CODE).partition("?")
    return NamedCode(key, name, as_options(dict(parse_qsl(query, keep_blank_values=True))), shown=source)


def imported_code(values: Mapping[str, Any]) -> list[str]:
    """Return the options that name Python code, as lines such as "strategy.kind: my_module:MyStrategy"."""
    return list(dict.fromkeys(map(str, named_code(values))))


def importable_parts(config: "Config") -> "Config":
    """Return a configuration without the data sets, the head, the class and the model's own code that may not run here.

    For commands that check a configuration, and import its code only with --run-code. Code that they never call stays,
    and so do a recipe (`task.recipe`) and a strategy, which nothing replaces.
    """
    data, model = config.data, config.model
    named: dict[str, Any] = {name: _readable(getattr(data, name)) for name in ("train", "validation", "test")}
    for name in ("extra", "predict"):
        named[name] = {key: value for key, value in getattr(data, name).items() if _readable(value) is not None}
    refused: dict[str, Any] = {}
    if model.head is not None and not is_allowed(model.head.function):
        refused["head"] = None
    if model.class_ is not None and not is_allowed(model.class_):
        refused["class_"] = None
    if model.trust_remote_code and not is_allowed(model.name):
        refused["trust_remote_code"] = False
    return config.model_copy(update={"data": data.model_copy(update=named), "model": model.model_copy(update=refused)})


def _readable(value: Any) -> Any:
    """Return the sources of a split without those whose code may not run here; None where there is none."""
    if isinstance(value, list):
        return [source for source in value if _readable(source) is not None] or None
    is_code = isinstance(value, str) and value.startswith(CODE)
    return None if is_code and not is_allowed(source_code(value, "").name) else value


def _unchecked(values: Any, key: str) -> Any:
    """Return the value of a dotted key; None where it is missing, or a section is not a mapping."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def own_model_options(model: Any) -> dict[str, Any]:
    """Return the options `head` and `class` of the section model that are set."""
    known = model if isinstance(model, Mapping) else {}
    return {key: known[key] for key in ("head", "class") if known.get(key) is not None}


def add_to_path(folder: Path) -> None:
    """Append a folder to the places where Python looks for modules, if it is not among them."""
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))


def import_callable(name: str, key: str, options: Mapping[str, Any] | None = None) -> Any:
    """Return the object that an option names as package.module:attribute. The current folder is searched last.

    Args:
        options: What the object will be called with; None where it is not called, or without options of the user.

    Raises:
        ConfigError: It may not run in this process (`permission`); the module is missing or cannot be imported, has no
            such attribute, or it cannot be called.
    """
    require_allowed(name, key, options)
    module_name, _, attribute = name.partition(":")
    add_to_path(Path.cwd())
    try:
        with same_folder():
            module = importlib.import_module(module_name)
    except OWN_ERRORS as error:  # a user's module may raise anything
        message = f"{key}: {name} cannot be imported: {type(error).__name__}: {error}. Python looks in installed "
        message += "packages, PYTHONPATH, the folder of the configuration file and the current folder"
        raise ConfigError(message, code="own_code.not_found", key=key, value=name) from error
    value = getattr(module, attribute, None)
    if not callable(value):
        near = did_you_mean(attribute, [other for other in vars(module) if not other.startswith("_")])
        reason = f"{getattr(module, '__file__', module_name)} has no {attribute}{near}"
        if hasattr(module, attribute):
            reason = f"it is of type {type(value).__name__}, which cannot be called; name a function or a class"
        raise ConfigError(f"{key}: {name} cannot be used: {reason}", code="own_code.not_found", key=key, value=name)
    return value


def call_own_code(code: "OwnCode", key: str, *arguments: Any) -> Any:
    """Return what an own function returns, called with the arguments and its options.

    Raises:
        ConfigError: The function cannot be imported, or raises an error.
    """
    function = import_callable(code.function, key, code.options)
    with own_code_errors(code.function, key, call=f"options {code.options}"):
        return function(*arguments, **code.options)


OWN_ERRORS = (Exception, SystemExit)
"""What own code may raise: `sys.exit` in it must not end the run without an error. Ctrl-C stays what it is."""


@contextmanager
def own_code_errors(name: str, key: str, *, method: str | None = None, call: str | None = None) -> Iterator[None]:
    """Replace an error of own code that is called inside by a `ConfigError` with the line of that code.

    The current folder is afterwards what it was.

    Args:
        method: The method that is called, if the option names a class.
        call: The arguments, for messages.

    Raises:
        ConfigError: The code raised an error that is not one of paratune, and memory did not run out.
    """
    try:
        with same_folder():
            yield
    except ParatuneError:
        raise
    except OWN_ERRORS as error:
        # The run itself answers when memory ran out; torch is not imported for the type of its error.
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & {"MemoryError", "OutOfMemoryError"} or "not enough memory" in str(error):
            raise
        function = name if method is None else f"{name}.{method}"
        called = "" if call is None else f". It was called with {call}"
        message = f"{key}: {function} raised {described_error(error)}{called}"
        raise ConfigError(message, code="own_code.raised", key=key, value=name) from error


@contextmanager
def same_folder() -> Iterator[None]:
    """Return to the current folder at the end: files of a run are named relative to it."""
    try:
        before: Path | None = Path.cwd()
    except FileNotFoundError:  # it was deleted
        before = None
    try:
        yield
    finally:
        if before is not None:
            os.chdir(before)


def described_error(error: BaseException) -> str:
    """Return type, text, file and line of an error of own code; without a line where only libraries were called."""
    libraries = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")))
    place = ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in libraries):
            place = f" ({path.name}, line {frame.lineno})"
            break
    return f"{type(error).__name__}: {error}{place}"


def wrong_result(function: str, key: str, returned: str, wanted: str) -> ConfigError:
    """Return the error for an own function that returns something else than it should."""
    message = f"{key}: {function} returned {returned}; return {wanted}"
    return ConfigError(message, code="own_code.wrong_result", key=key, value=function)


def source_hash(name: str, key: str) -> str | None:
    """Return the SHA-256 of the file that defines the object of an option; None where it has no Python source.

    Args:
        name: package.module:attribute, or a script of the library `evaluate`.

    Raises:
        ConfigError: As `import_callable`.
    """
    if ":" not in name:
        return hashlib.sha256(metric_script(name, key).read_bytes()).hexdigest()
    value = import_callable(name, key)
    defined_in = getattr(value, "__module__", None) or name.partition(":")[0]
    try:
        source = inspect.getsourcefile(sys.modules[defined_in])
    except (KeyError, TypeError):  # built in
        return None
    return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else None


def own_code_record(config: "Config") -> dict[str, dict[str, Any]]:
    """Return the code outside paratune that a run calls, by option: `function`, `options` and `sha256`.

    The hash is that of the file that defines the function; None where it has no Python source. The strategy, and files
    of a model folder, are recorded elsewhere.

    Raises:
        ConfigError: The code cannot be imported.
    """
    record: dict[str, dict[str, Any]] = {}
    for code in named_code(config.model_dump(by_alias=True)):
        if code.key not in ("strategy.kind", REMOTE_CODE):
            key = f"{code.key}: {code.name}" if code.key.startswith("data.") else code.key.removesuffix(".function")
            options, sha256 = json.loads(code.options), source_hash(code.name, code.key)
            record[key] = {"function": code.name, "options": options, "sha256": sha256}
    return record


def metric_script(name: str, key: str) -> Path:
    """Return the script of a metric of the library `evaluate`: FOLDER/FOLDER.py, or the file itself.

    Raises:
        ConfigError: There is no such file on this machine; nothing is downloaded.
    """
    path = Path(name)
    script = path / f"{path.resolve().name}.py" if path.is_dir() else path
    if script.suffix != ".py" or not script.is_file():
        message = f"{key}: {name} is not a metric of the library evaluate on this machine: {script} does not exist. "
        message += "Metrics of the hub are Python code and are not downloaded; copy the folder of the metric, and "
        message += "name it"
        raise ConfigError(message, code="own_code.not_found", key=key, value=name)
    return script
