"""Writes the recommended configuration to a file that extends the planned one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.config.layers import Layer, read_overrides
from paratune.config.load import LoadedConfig, load_config
from paratune.config.plain import yaml_lines
from paratune.config.strategy_sections import strategy_options
from paratune.errors import ConfigError, option_error, os_error_as
from paratune.planning.enumerate import JobOption
from paratune.planning.predict import Prediction, start_command


def check_writable(path: Path, option: str = "--write", *, is_data: bool = False) -> None:
    """Check that the file of an option can be written, before anything is computed.

    With `is_data` it is a JSON file, and not a configuration.

    Raises:
        ConfigError: The file exists, has another suffix, or its folder does not exist.
    """
    kind, suffixes = ("the plan of a matrix", (".json",)) if is_data else ("a configuration", (".yaml", ".yml"))
    if path.suffix not in suffixes:
        reason = f"{kind} is a {suffixes[0]} file, such as {path.stem or 'best'}{suffixes[0]}"
        raise option_error(option, path, reason, code="output.format", path=path)
    if path.exists() or path.is_symlink():
        reason = "it exists and was not touched; name another file"
        raise option_error(option, path, reason, code="output.exists", path=path)
    if not path.parent.is_dir():
        reason = f"there is no folder {path.parent}; make it first"
        raise option_error(option, path, reason, code="output.no_folder", path=path)


def write_config(path: Path, loaded: LoadedConfig, overrides: Sequence[str], chosen: Prediction | None) -> str:
    """Write the configuration of the recommended option; return a sentence with the start command.

    The path was checked by `check_writable`; `overrides` are the values of `--set`.

    Raises:
        ConfigError: Nothing is recommended, or the file cannot be written.
    """
    if chosen is None:
        reason = "the plan has no recommendation, and its advice says what to try; nothing was written"
        raise option_error("--write", path, reason, code="plan.nothing_to_write")
    text = _text(path, loaded, overrides, chosen)
    failed = os_error_as(
        ConfigError, f"--write {path}: it cannot be written", code="output.not_writable", option="--write", value=path
    )
    with failed, path.open("x", encoding="utf-8") as file:
        file.write(text)
    if not _has_same_options(path, chosen.option):
        # Merging would keep options of the base that do not apply to this strategy or batch.
        path.write_text(_text_without_base(loaded, chosen), encoding="utf-8")
    return f"{path}: {chosen.label}; start it with: {start_command(path, chosen)}"


def _text(path: Path, loaded: LoadedConfig, overrides: Sequence[str], chosen: Prediction) -> str:
    values = read_overrides(Layer(), overrides).values
    values.update(_strategy_and_precision(chosen.option))
    batch = values.pop("batch", {}) | _batch(chosen.option)
    run = {"run": values.pop("run", {}) | {"name": path.stem}}
    base = Path(os.path.relpath(loaded.source, path.parent)).as_posix()
    lines = _lines({"extends": base, **run, **values, "batch": batch})
    return _with_comment(lines, loaded, chosen)


def _text_without_base(loaded: LoadedConfig, chosen: Prediction) -> str:
    """Return the whole configuration as text, without a base."""
    values = chosen.option.config.model_dump(mode="json", by_alias=True)
    values["batch"] |= _batch(chosen.option)
    return _with_comment(_lines(values), loaded, chosen)


def _lines(values: dict[str, Any]) -> list[str]:
    return [line.removesuffix("  # ") for line in yaml_lines(values, lambda key: "")]


def _with_comment(lines: Sequence[str], loaded: LoadedConfig, chosen: Prediction) -> str:
    return "\n".join([f"# paratune plan {loaded.source}: {chosen.label}", *lines]) + "\n"


def _strategy_and_precision(option: JobOption) -> dict[str, Any]:
    """Return strategy and precision; a strategy with default options is only its kind, which replaces the base's."""
    strategy = option.config.strategy
    given = {
        key: value
        for key, value in strategy_options(strategy).items()
        if value != type(strategy).model_fields[key].default
    }
    section: Any = {"kind": strategy.kind, **given} if given else strategy.kind
    return {"strategy": section, "precision": option.config.precision}


def _batch(option: JobOption) -> dict[str, int]:
    """Return the batch options: the micro-batch size under `batch.global`, else size and number of micro-batches."""
    if option.config.batch.per_device is None:
        return {"micro_batch_size": option.setup.micro_batch_size}
    return {"per_device": option.setup.micro_batch_size, "grad_accum_steps": option.setup.grad_accum_steps}


def _has_same_options(path: Path, option: JobOption) -> bool:
    """Return whether the file loads with the options of the prediction."""
    try:
        config = load_config(path).config
    except ConfigError:
        return False
    sections = ("strategy", "precision", "train", "data", "model")
    return all(getattr(config, name) == getattr(option.config, name) for name in sections)
