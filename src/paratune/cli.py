"""The command line: finds the command, runs it, and prints its error. A command is imported when it is called.

Exit codes are those of `paratune.errors`; docs/reference/exit_codes.md lists them.
"""

import errno
import faulthandler
import inspect
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownOptionError
from rich.text import Text

from paratune import __version__
from paratune.base.system_errors import forward_error, system_error
from paratune.commands import COMMANDS, EXAMPLES, GROUPS, PLACES
from paratune.errors import EXIT_FAILED, EXIT_OK, Fault, LaunchError, ParatuneError


def usage_error(error: CycloptsError) -> str:
    """Return the error of a command line in the format of paratune, with an example when an argument is missing.

    For an unknown option of a command that has --set, it names the setting with this name.
    """
    from paratune.config.validate import set_for_flag

    name, fault = " ".join(error.command_chain or ()), Fault(code="cli.usage", message=str(error))
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        has_set = any("--set" in argument.names for argument in error.argument_collection)
        setting = set_for_flag(option, error.root_input_tokens or ()) if has_set else None
        if setting is not None:
            message = f"{option} is not an option of the command line; use {setting}"
            fault = Fault(code="cli.usage", message=message)
    elif isinstance(error, MissingArgumentError) and name in EXAMPLES:
        assert error.argument is not None
        missing = error.argument.name
        if error.argument.index is not None:  # it is positional
            missing = missing.removeprefix("--").upper()
        problem = f"{error}".rstrip(".") if error.keyword or error.argument.tokens else f"{missing} is missing"
        message = f"{problem}; for example: {EXAMPLES[name]} (paratune {name} --help shows all options)"
        fault = Fault(code="cli.required", message=message)
    return f"error: {fault.text()}"


app = App(
    name="paratune",
    help="Train, measure, resume and compare BERT-family models on one device or many, from one file.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` prints it
    default_parameter=Parameter(
        negative=(), show_default=lambda value: None if value in (None, (), "") or value is False else str(value)
    ),
    error_formatter=lambda error: Text(usage_error(error)),
)
for _number, (_heading, _names) in enumerate(GROUPS.items()):
    _group = Group(_heading, sort_key=_number)
    for _at, _name in enumerate(_names):
        _place = PLACES.get(_name, "{0}:{0}".format(_name.replace("-", "_")))
        app.command(f"paratune.commands.{_place}", name=_name, help=COMMANDS[_name], group=_group, sort_key=_at)


_other = Group("Other", sort_key=len(GROUPS))
for _name in ("--help", "--version"):
    app[_name].group = _other


@app.command(group=_other)
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script with which SHELL completes commands, options and their values.

    For bash, add this line to ~/.bashrc: source <(paratune completion bash)
    """
    print(app.generate_completion(shell=shell), end="")  # noqa: T201


_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""What writing to a full disk or a lost terminal raises; for other errors a traceback is more useful."""


def complete_help(words: Sequence[str]) -> None:
    """Set the help of the commands in `words` to the text of their docstrings, with an example.

    cyclopts would show the line of `COMMANDS`, which stands for the docstring as long as a command is not imported.
    """
    names, commands, _ = app.parse_commands(words)
    for command in commands:
        if command.default_command is not None:
            text, _, _ = inspect.cleandoc(command.default_command.__doc__ or "").partition("\n\nArgs:")
            paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
            example = EXAMPLES.get(" ".join(name for name in names if not name.startswith("-")))
            command.help = "\n\n".join([*paragraphs, *([f"Example: {example}"] if example else [])])


def run(words: Sequence[str]) -> object:
    """Run the command line `words`, and return the exit code of the command."""
    complete_help(words)
    return app(words, result_action="return_value")


def _open_closed_streams() -> None:
    """Open the null device for stdin, stdout and stderr where they are closed (`>&-`).

    Otherwise the next file that is opened gets their number, and the text that libraries and child processes print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  takes the lowest free number, which is that of the stream
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _exit_without_trackers(code: int) -> None:
    """Exit at once when a tracker did not end in time: its package may block the exit of the interpreter for ever."""
    session = sys.modules.get("paratune.trackers.session")
    if session is not None and session.unfinished_trackers():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _note_exit_code(code: int) -> int:
    """Write the exit code where the batch script of `paratune launch` reads it; return that of this process."""
    if "PARATUNE_EXIT_CODES" not in os.environ:
        return code
    from paratune.processes.place import note_exit_code

    return note_exit_code(code)


def _drop_output() -> None:
    """Discard the buffered part of stdout, which Python would write at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_system_error(error: Exception) -> int | None:
    """Print an error of the operating system and return the exit code; None for other errors."""
    from paratune.console import print_error

    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
        _drop_output()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    explained = system_error(error) or forward_error(error)
    if explained is not None:
        print_error(explained, as_json="--json" in sys.argv and os.environ.get("RANK", "0") == "0")
    return None if explained is None else explained.exit_code


def main() -> None:
    """Run the command line and exit with a code of `paratune.errors`."""
    # multiprocessing and packages start Python with -c and -m, which would import modules of the current folder first.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    _open_closed_streams()
    with suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr that has a descriptor
        if not faulthandler.is_enabled():
            faulthandler.enable()  # prints the stacks of Python when native code crashes
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
        if (write_error := getattr(sys.stdout, "error", None)) is not None:
            raise OSError(write_error.errno, write_error.strerror)
    except ParatuneError as error:
        from paratune.console import print_error
        from paratune.processes.place import POLL_S, RENDEZVOUS_VARIABLE

        if isinstance(error, LaunchError) and RENDEZVOUS_VARIABLE in os.environ:
            time.sleep(4 * POLL_S)  # the launcher first reports which rank ended, and why
        print_error(error, as_json="--json" in sys.argv and os.environ.get("RANK", "0") == "0")
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of the output has ended (`| head`).
        _drop_output()
        code = 128 + signal.SIGPIPE
    except Exception as error:
        code = _show_system_error(error)
        if code is None:  # a bug
            _note_exit_code(EXIT_FAILED)
            raise
    from paratune.base.stop_signals import STOP_SIGNALS

    for number in STOP_SIGNALS:
        # Python drops its handlers before it ends, and a signal after that would change the exit code.
        signal.signal(number, signal.SIG_IGN)
    code = code if isinstance(code, int) else EXIT_OK
    code = _note_exit_code(code)
    _exit_without_trackers(code)
    sys.exit(code)
