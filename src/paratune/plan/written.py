"""The configuration that the plan advises, written as a file that extends the given one and runs as it stands."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.config.layers import Layer, read_overrides
from paratune.config.load import LoadedConfig, load_config
from paratune.config.plain import yaml_lines
from paratune.config.strategy_sections import strategy_options
from paratune.errors import ConfigError
from paratune.plan.enumerate import JobOption
from paratune.plan.predict import Prediction, start_command


def check_writable(path: Path, option: str = "--write", *, is_data: bool = False) -> None:
    """Refuse, before anything is computed, to write where something is or nothing can be.

    Args:
        path: The file.
        option: That names it.
        is_data: Whether it is a JSON file, and no configuration.

    Raises:
        ConfigError: The file exists, has another suffix, or its folder does not exist.
    """
    what, suffixes = ("the plan of a matrix", (".json",)) if is_data else ("a configuration", (".yaml", ".yml"))
    if path.suffix not in suffixes:
        raise ConfigError(
            f"{option} {path}: {what} is a {suffixes[0]} file, such as {path.stem or 'best'}{suffixes[0]}",
            code="output.format",
            option=option,
            path=path,
        )
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"{option} {path}: it exists and was not touched; name another file",
            code="output.exists",
            option=option,
            path=path,
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"{option} {path}: there is no folder {path.parent}; make it first",
            code="output.no_folder",
            option=option,
            path=path,
        )


def write_config(path: Path, loaded: LoadedConfig, overrides: Sequence[str], chosen: Prediction | None) -> str:
    """Write what is advised; return what was written, in words.

    Args:
        path: Of `check_writable`.
        loaded: The configuration that was planned.
        overrides: Its `--set`.
        chosen: What to run.

    Raises:
        ConfigError: Nothing is advised, or the file cannot be written.
    """
    if chosen is None:
        raise ConfigError(
            f"--write {path}: the plan has no recommendation, so nothing was written; see what the plan "
            f"suggests to try",
            code="plan.nothing_to_write",
            option="--write",
            value=path,
        )
    text = _text(path, loaded, overrides, chosen)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"--write {path}: it cannot be written: {error.strerror}",
            code="output.not_writable",
            option="--write",
            value=path,
        ) from error
    if not _says_the_same(path, chosen.option):
        # The base's strategy has options of another kind, or its batch another rule, that merging would leave there.
        path.write_text(_whole(loaded, chosen), encoding="utf-8")
    return f"{path}: {chosen.label}; start it with: {start_command(path, chosen)}"


def _text(path: Path, loaded: LoadedConfig, overrides: Sequence[str], chosen: Prediction) -> str:
    values = read_overrides(Layer(), overrides).values
    values.update(_changed(chosen.option))
    batch = values.pop("batch", {}) | _batch(chosen.option)
    run = {"run": values.pop("run", {}) | {"name": path.stem}}
    base = Path(os.path.relpath(loaded.source, path.parent)).as_posix()
    lines = _lines({"extends": base, **run, **values, "batch": batch})
    return "\n".join([*_comments(loaded, chosen), *lines]) + "\n"


def _whole(loaded: LoadedConfig, chosen: Prediction) -> str:
    """Return the configuration without a base, every option of it."""
    values = chosen.option.config.model_dump(mode="json", by_alias=True)
    values["batch"] |= _batch(chosen.option)
    return "\n".join([*_comments(loaded, chosen), *_lines(values)]) + "\n"


def _lines(values: dict[str, Any]) -> list[str]:
    return [line.removesuffix("  # ") for line in yaml_lines(values, lambda key: "")]


def _comments(loaded: LoadedConfig, chosen: Prediction) -> list[str]:
    return [f"# paratune plan {loaded.source}: {chosen.label}"]


def _changed(option: JobOption) -> dict[str, Any]:
    """Return strategy and precision; a strategy without options of its own as a word, which replaces the base's."""
    strategy = option.config.strategy
    given = {
        key: value
        for key, value in strategy_options(strategy).items()
        if value != type(strategy).model_fields[key].default
    }
    section: Any = {"kind": strategy.kind, **given} if given else strategy.kind
    return {"strategy": section, "precision": option.config.precision}


def _batch(option: JobOption) -> dict[str, int]:
    """Return the micro-batch: under `batch.global` as that option, else the two that keep the samples of a step."""
    if option.config.batch.per_device is None:
        return {"micro_batch_size": option.setup.micro_batch_size}
    return {"per_device": option.setup.micro_batch_size, "grad_accum_steps": option.setup.grad_accum_steps}


def _says_the_same(path: Path, option: JobOption) -> bool:
    """Say whether the file is read as what was meant, but for where it is from and how its run is called."""
    try:
        found = load_config(path).config
    except ConfigError:
        return False
    wanted = option.config
    return (
        found.strategy == wanted.strategy
        and found.precision == wanted.precision
        and found.train == wanted.train
        and found.data == wanted.data
        and found.model == wanted.model
    )
