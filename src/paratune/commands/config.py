"""`paratune config`: shows, describes or creates a configuration file."""

from pathlib import Path

from cyclopts import App

from paratune.base.text import plain
from paratune.commands.options import Json, Overrides
from paratune.config.own_code import imported_code
from paratune.console import print_json
from paratune.errors import EXIT_OK, ConfigError

config_app = App(name="config")
config_app.command("paratune.commands.from_trainer:from_trainer", name="from-trainer")
config_app.command("paratune.commands.config_init:init", name="init")


@config_app.command
def show(config: Path, *, set_: Overrides = (), json: Json = False) -> int:
    """Print the complete configuration of a run, with the origin of each value."""
    from paratune.config.load import load_config, show_text

    loaded = load_config(config, set_)
    if json:
        print_json({"config": loaded.values, "origin": loaded.origin})
    else:
        print(show_text(loaded), end="")  # noqa: T201
        for line in imported_code(loaded.values):
            print(plain(f"# training imports Python code that does not come with paratune: {line}"))  # noqa: T201
    return EXIT_OK


@config_app.command
def schema(*, json: bool = True) -> int:
    """Print the JSON schema of configuration files, for editors."""
    from paratune.config.options import json_schema

    print_json(json_schema(), indent=2)
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
