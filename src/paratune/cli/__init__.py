"""The command line. Each command imports what it needs when it is called, so that --help is instant.

Exit codes are those of `paratune.errors`; docs/reference/exit_codes.md lists them.
"""

import errno
import faulthandler
import os
import signal
import sys
import time
from contextlib import suppress

from cyclopts import App
from rich.text import Text

from paratune import __version__
from paratune.cli import cluster, models, planning, records, training
from paratune.cli.config import config_app
from paratune.cli.corpus import corpus_app
from paratune.cli.tokenizer import tokenizer_app
from paratune.cli.usage import usage_error
from paratune.errors import EXIT_FAILED, EXIT_OK, LaunchError, ParatuneError
from paratune.errors.system import system_error

app = App(
    name="paratune",
    help="Fine-tune BERT-family models on one device or many: one file, measured, resumable, compared.",
    version=__version__,
    help_format="plaintext",
    error_formatter=lambda error: Text(usage_error(error)),
)
_COMMANDS = (
    *(training.train, training.sweep, training.certify),
    *(cluster.launch, cluster.jobs, cluster.cancel, cluster.toy_cluster),
    *(models.evaluate, models.predict, models.fill_mask, models.pseudo_label, models.glue_submit),
    *(records.report, records.watch, records.compare),
    *(planning.data, planning.plan, planning.doctor, planning.bundle, planning.unbundle),
    *(config_app, corpus_app, tokenizer_app),
)
for _command in _COMMANDS:
    app.command(_command)
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""What writing to a file, a full disk or a lost terminal gives; of all else a traceback is of more use."""


def _show_stacks_of_a_crash() -> None:
    """Have native code that crashes (SIGSEGV, SIGABRT, SIGBUS) leave the stacks of Python on stderr."""
    with suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr that has a descriptor
        if not faulthandler.is_enabled():
            faulthandler.enable()


def _let_the_launcher_speak_first(error: ParatuneError) -> None:
    """Wait, when a rank was lost, until what started this process has seen which one and of what."""
    from paratune.processes.place import LAUNCHER_POLL_S, RENDEZVOUS_VARIABLE

    if isinstance(error, LaunchError) and RENDEZVOUS_VARIABLE in os.environ:
        time.sleep(4 * LAUNCHER_POLL_S)


def _leave_trackers_behind(code: int) -> None:
    """End at once when a tracker did not end in time: what its package does at the interpreter's end may never end."""
    channel = sys.modules.get("paratune.trackers.channel")
    if channel is not None and channel.left_behind():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _note_exit_code(code: int) -> None:
    """Tell the batch script of `paratune launch` what this process ends with."""
    if "PARATUNE_EXIT_CODES" in os.environ:
        from paratune.processes.place import note_exit_code

        note_exit_code(code)


def _drop_output() -> None:
    """Send to nowhere what Python still holds of stdout and would write at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_system_error(error: Exception) -> int | None:
    """Print what the operating system refused and return the exit code; None where something else is the cause."""
    from paratune.console import print_error

    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
        _drop_output()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    explained = system_error(error)
    if explained is not None:
        print_error(explained, as_json="--json" in sys.argv and os.environ.get("RANK", "0") == "0")
    return None if explained is None else explained.exit_code


def main() -> None:
    """Run the command line and exit with a code of `paratune.errors`."""
    _show_stacks_of_a_crash()
    try:
        code = app(result_action="return_value")
        sys.stdout.flush()
        if (lost := getattr(sys.stdout, "error", None)) is not None:
            raise OSError(lost.errno, lost.strerror)
    except ParatuneError as error:
        from paratune.console import print_error

        _let_the_launcher_speak_first(error)
        print_error(error, as_json="--json" in sys.argv and os.environ.get("RANK", "0") == "0")
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        # Who read the output has enough of it (`| head`).
        _drop_output()
        code = 128 + signal.SIGPIPE
    except Exception as error:
        code = _show_system_error(error)
        if code is None:  # a bug
            _note_exit_code(EXIT_FAILED)
            raise
    from paratune.base.stop_signals import STOP_SIGNALS

    for number in STOP_SIGNALS:
        # All is done. Python drops its handlers before it ends, and a signal then would change the exit code.
        signal.signal(number, signal.SIG_IGN)
    code = code if isinstance(code, int) else EXIT_OK
    _note_exit_code(code)
    _leave_trackers_behind(code)
    sys.exit(code)
