"""The pages that are generated from the code: options, commands, Python, fields of records, errors, findings.

python docs/site/reference.py        # writes them into the repository
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from code_pages import errors_page, findings_page, left_page, trainer_page
from python_reference import python_page
from record_fields import record_fields_page

from paratune.cli import app, complete_help
from paratune.commands import COMMANDS, EXAMPLES
from paratune.config.options import Option, kinds, outside_kind, section_options
from paratune.config.plain import one_line
from paratune.config.section import Section
from paratune.config.sections import Config


def options_page() -> str:
    """Return every option of a configuration file: default, allowed values, meaning."""
    return (
        "# Options\n\n"
        "Every option of a configuration file, generated from the code. "
        "[Configuration](configuration.md) describes how files are read and combined. "
        "`paratune config show FILE` prints the value of each one in a file.\n\n" + _options_markdown()
    )


def _options_markdown() -> str:
    """Return all options as Markdown, one table per section."""
    return "\n".join(_tables(Config, "", "")).strip() + "\n"


def _tables(section: type[Section], path: str, condition: str) -> Iterator[str]:
    options = section_options(section)
    plain = [option for option in options.values() if not option.sections or option.listed or option.words]
    title = f"`{path}`{condition}" if path else "Options without a section"
    about = " ".join((section.__doc__ or "").split()) if path else ""
    rows = [_row(option) for option in plain]
    head = ["| option | default | allowed | what it does |", "|---|---|---|---|"] if rows else []
    table = [f"### {title}", "", about, "", *head, *rows]
    inner = [line for option in options.values() for line in _inner_tables(option, path)]
    yield from [*table, "", *inner] if path else [*inner, *table]


def _inner_tables(option: Option, path: str) -> Iterator[str]:
    dotted = f"{path}.{option.key}" if path else option.key
    if not option.by_kind:
        for inner in option.sections[:1]:
            yield from _tables(inner, dotted, "")
        return
    for kind, section in {**kinds(option), "package.module:Class": outside_kind(option)}.items():
        if section is not None:
            yield from _tables(section, dotted, f" with `kind: {kind}`")


def _row(option: Option) -> str:
    default = "required" if option.required else f"`{one_line(option.default)}`"
    cells = (f"`{option.key}`", default, option.allowed, option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def commands_page() -> str:
    """Return every command with its arguments and options, as `--help` shows them."""
    for name in dict.fromkeys((*COMMANDS, *EXAMPLES)):  # also those of `config`
        complete_help(name.split())
    with patch.object(sys, "argv", ["paratune"]):  # cyclopts takes the name of the program from it
        text: str = app.generate_docs(output_format="markdown")
    _, _, rest = text.partition("\n")
    return (
        "# Commands\n\nEvery command, generated from the command line. `paratune COMMAND --help` prints the same. "
        "[Exit codes](exit_codes.md) are the same for all commands.\n" + rest
    )


PAGES = {
    "docs/reference/options.md": options_page,
    "docs/reference/commands.md": commands_page,
    "docs/reference/python.md": python_page,
    "docs/reference/record_fields.md": record_fields_page,
    "docs/reference/findings.md": findings_page,
    "docs/reference/trainer_map.md": trainer_page,
    "docs/reference/what_left.md": left_page,
    "docs/errors.md": errors_page,
}
"""Path of a generated page -> function that returns it."""
COMMAND = "python docs/site/reference.py"
FIRST_LINE = f"<!-- made by `{COMMAND}`; do not edit -->\n\n"


def generated(name: str) -> str:
    """Return the text of a generated page."""
    return FIRST_LINE + PAGES[name]()


if __name__ == "__main__":
    for name in PAGES:
        (Path(__file__).parents[2] / name).write_text(generated(name), encoding="utf-8")
