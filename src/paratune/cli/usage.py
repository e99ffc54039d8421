"""Messages about a command line that cannot be parsed."""

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError

from paratune.commands import EXAMPLES
from paratune.errors import Fault


def usage_error(error: CycloptsError) -> str:
    """Return the error of a command line in the format of paratune, with an example when an argument is missing."""
    name = " ".join(error.command_chain or ())
    if isinstance(error, UnknownOptionError) and (hint := _set_for_option(error)) is not None:
        return f"error: {Fault(code='cli.unknown_option', message=hint).text()}"
    if not isinstance(error, MissingArgumentError) or name not in EXAMPLES:
        return f"error: {Fault(code='cli.usage', message=str(error)).text()}"
    assert error.argument is not None
    if error.keyword or error.argument.tokens:
        problem = f"{error}".rstrip(".")
    else:
        is_positional = error.argument.index is not None
        problem = (
            f"{error.argument.name.removeprefix('--').upper() if is_positional else error.argument.name} is missing"
        )
    message = f"{problem}; for example: {EXAMPLES[name]} (paratune {name} --help shows all options)"
    return f"error: {Fault(code='cli.argument_missing', message=message).text()}"


def _set_for_option(error: UnknownOptionError) -> str | None:
    """Return a message with the `--set` for an unknown option of a command that has `--set`; None for other options."""
    from paratune.config.validate import set_for_flag

    option = (error.token.keyword or error.token.value).partition("=")[0]
    has_set = any("--set" in argument.names for argument in error.argument_collection)
    setting = set_for_flag(option, error.root_input_tokens or ()) if has_set else None
    return None if setting is None else f"{option} is not an option of the command line; use {setting}"
