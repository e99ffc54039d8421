"""`paratune config show|schema|init`."""

from collections.abc import Sequence
from pathlib import Path

from paratune.base.text import plain
from paratune.config.load import load_config, show_text
from paratune.config.own_code import own_code
from paratune.config.schema import init_text, json_schema
from paratune.console import print_json
from paratune.errors import EXIT_OK, ConfigError


def show_command(path: Path, overrides: Sequence[str], *, as_json: bool) -> int:
    """Print the resolved configuration; return the exit code."""
    loaded = load_config(path, overrides)
    if as_json:
        print_json({"config": loaded.values, "origin": loaded.origin})
    else:
        print(show_text(loaded), end="")  # noqa: T201
        for line in own_code(loaded.values):
            print(plain(f"# training imports Python code that does not come with paratune: {line}"))  # noqa: T201
    return EXIT_OK


def schema_command() -> int:
    """Print the JSON schema; return the exit code."""
    print_json(json_schema(), indent=2)
    return EXIT_OK


def init_command(path: Path, task: str, *, as_json: bool = False) -> int:
    """Write a template; return the exit code.

    Raises:
        ConfigError: The file exists, or its folder does not.
    """
    write_new(path, init_text(task))
    text = f"{path}: fill in the data files, columns and model; then: paratune data {path}"
    if as_json:
        print_json({"path": str(path), "task": task})
    else:
        print(text)  # noqa: T201
    return EXIT_OK


def write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet.

    Raises:
        ConfigError: It exists, or its folder does not.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists and was not touched; name another file", code="output.exists", path=path
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", code="output.not_writable", path=path
        ) from error
