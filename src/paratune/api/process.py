"""Runs work in a process that continues afterwards, such as a notebook, or in another process."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paratune.base.stop_signals import STOP_SIGNALS
from paratune.console import log_as_before
from paratune.errors import EXIT_OK, EXIT_STOPPED, Fault, LaunchError, ParatuneError, Stopped
from paratune.launch.local import PROGRAM


@contextmanager
def process_as_before() -> Iterator[None]:
    """Restore signal handlers, the log and torch's random state after the block, also when it raises."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS} if is_main else {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    torch = sys.modules.get("torch")
    state = None if torch is None else torch.get_rng_state()
    try:
        with log_as_before():
            yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: it was not installed from Python, and cannot be restored
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if torch is not None:
            torch.set_rng_state(state)


def run_command(arguments: Sequence[str], *, results: Collection[int] = (EXIT_OK,)) -> Any:
    """Run `paratune ARGUMENTS --json` in another process, show its stderr here, and return the document it prints.

    A KeyboardInterrupt is passed on as SIGINT, on which a training saves a checkpoint.

    Args:
        results: Exit codes with which the command prints a result.

    Raises:
        ParatuneError: The command failed; with the class, the codes and the facts of its error.
        KeyboardInterrupt: It was interrupted before it had anything to save.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        # A new session: Ctrl-C must reach it only through this process, which passes it on once.
        process = subprocess.Popen(
            [*PROGRAM, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            is_interrupted = _show_stderr(process)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            if process.stderr is not None:
                process.stderr.close()
        output.seek(0)
        document = _last_document(output.read())
    if code in results and not (isinstance(document, dict) and "errors" in document):
        return document
    if is_interrupted and code != EXIT_STOPPED:
        raise KeyboardInterrupt
    raise _error(arguments, code, document)


def _show_stderr(process: "subprocess.Popen[str]") -> bool:
    """Copy the lines of a process to stderr until it ends; return whether an interrupt was passed on to it."""
    assert process.stderr is not None
    is_interrupted = False
    while True:
        try:
            for line in process.stderr:
                sys.stderr.write(line)
                sys.stderr.flush()
            return is_interrupted
        except KeyboardInterrupt:
            is_interrupted = True
            process.send_signal(signal.SIGINT)


def _last_document(text: str) -> Any:
    lines = text.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def _error(arguments: Sequence[str], code: int, document: Any) -> ParatuneError:
    """Return the error of a command from its exit code, and its printed document if it has one."""
    printed = document.get("errors") if isinstance(document, dict) else None
    if not printed:
        how = f"paratune {arguments[0]} ended with " + (f"signal {-code}" if code < 0 else f"exit code {code}")
        if code == EXIT_STOPPED:
            return Stopped(f"{how}: a signal stopped it; resume it", code="stopped.signal")
        return LaunchError(f"{how}; its messages on stderr have the reason", code="launch.process_died")
    kind = {kind.exit_code: kind for kind in ParatuneError.__subclasses__()}.get(code, ParatuneError)
    faults = [Fault(fault["code"], fault["message"], fault["facts"]) for fault in printed]
    if len(faults) > 1:
        return kind(f"paratune {arguments[0]}: {len(faults)} problems", code=faults[0].code, faults=faults)
    error = kind(faults[0].message, code=faults[0].code)
    error.faults = tuple(faults)
    return error
