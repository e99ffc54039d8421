"""Loads the configuration of a call from Python: a file or a mapping, with overrides."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paratune.base.scratch import scratch_folder
from paratune.config.load import MAPPING, LoadedConfig, load_config, load_values, show_text
from paratune.errors import ConfigError

Configuration = str | os.PathLike[str] | Mapping[str, Any]
"""A YAML file, or the same sections as a mapping: `{"task": {"kind": "regression"}, "train": {"epochs": 1}, ...}`."""


def load(config: Configuration, overrides: Mapping[str, Any] | None, run_name: str | None = None) -> LoadedConfig:
    """Load and check a configuration.

    Args:
        config: A file, or its content. A mapping may also have dotted keys (`"train.epochs": 1`), and needs a
            `run.name`; its paths and `extends` are relative to the working directory.
        overrides: Values by dotted key, which replace those of `config`.
        run_name: Replaces `run.name`.

    Raises:
        ConfigError: The configuration has problems; the error lists all of them.
    """
    texts = set_texts(overrides, run_name)
    return load_values(config, texts) if isinstance(config, Mapping) else load_config(Path(config), texts)


@contextmanager
def written(
    config: Configuration, overrides: Mapping[str, Any] | None, run_name: str | None = None
) -> Iterator[list[str]]:
    """Yield the words of a command line that name the configuration: a file, and `--set` for each override."""
    words = [word for text in set_texts(overrides, run_name) for word in ("--set", text)]
    if not isinstance(config, Mapping):
        yield [os.fspath(config), *words]
        return
    with scratch_folder() as scratch:
        file = scratch / MAPPING.with_suffix(".yaml").name
        file.write_text(show_text(load(config, overrides, run_name)), encoding="utf-8")
        yield [str(file)]


def set_texts(overrides: Mapping[str, Any] | None, run_name: str | None = None) -> list[str]:
    """Return overrides as `--set` takes them: `section.key=value`, with the value as JSON, which is YAML."""
    texts = []
    for key, value in {**(overrides or {}), **({} if run_name is None else {"run.name": run_name})}.items():
        try:
            texts.append(f"{key}={json.dumps(value, ensure_ascii=False, allow_nan=False, default=os.fspath)}")
        except (TypeError, ValueError) as error:
            message = f"{key}: {value!r} is not plain data ({error}); allowed: text, numbers, booleans, None, paths, "
            message += "and lists and mappings of these"
            raise ConfigError(message, code="cli.invalid_value", key=str(key)) from error
    return texts
