"""The pages of the reference that are generated from the code: options, commands, fields of records."""

from record_fields import record_fields_page

from paratune.cli import app
from paratune.config.schema import options_markdown


def options_page() -> str:
    """Return every option of a configuration file: default, allowed values, meaning."""
    return (
        "# Options\n\n"
        "Every option of a configuration file, generated from the code. "
        "[Configuration](configuration.md) describes how files are read and combined. "
        "`paratune config init FILE` writes a file that holds these options with the same text.\n\n"
        + options_markdown()
    )


def commands_page() -> str:
    """Return every command with its arguments and options, as `--help` shows them."""
    text: str = app.generate_docs(output_format="markdown")
    _, _, rest = text.partition("\n")
    return (
        "# Commands\n\nEvery command, generated from the command line. `paratune COMMAND --help` prints the same. "
        "[Exit codes](exit_codes.md) are the same for all commands.\n" + rest
    )


PAGES = {
    "docs/reference/options.md": options_page,
    "docs/reference/commands.md": commands_page,
    "docs/reference/record_fields.md": record_fields_page,
}
"""Path of a generated page in the site -> function that returns it."""
