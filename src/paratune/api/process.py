"""Runs work in a process that continues afterwards, such as a notebook, or in another process."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

from paratune.base.stop_signals import STOP_SIGNALS
from paratune.console import log_as_before, set_up_logging
from paratune.errors import EXIT_OK, EXIT_STOPPED, Fault, LaunchError, ParatuneError, Stopped
from paratune.hardware import core_quota

log = logging.getLogger(__name__)

_ONE_CALL = threading.RLock()
"""Held by the call that uses the state of the process. A second call of the same thread may have it, too: a callback of
a training may train."""
# In a process that was forked meanwhile, nobody would release it.
os.register_at_fork(after_in_child=_ONE_CALL._at_fork_reinit)  # type: ignore[attr-defined]


@contextmanager
def process_as_before() -> Iterator[None]:
    """Let one call use the state of the process at a time, and restore this state at its end, also when it raises.

    Random numbers, signal handlers, logs, warnings, stdout and switches of PyTorch exist once in a process: two calls
    in two threads would train other weights without an error. So the second call waits; an interrupt (Ctrl-C) ends the
    waiting in the main thread. `sys.path` keeps the folders of own code, whose objects may import from there later.

    `paratune serve` does not take part: its threads use a model without this block, and switch nothing of the process.
    """
    if not _ONE_CALL.acquire(blocking=False):
        log.info("another call of paratune uses this process: this one waits until it ends")
        _ONE_CALL.acquire()
    try:
        with (
            redirect_stdout(sys.stdout),
            redirect_stderr(sys.stderr),
            warnings.catch_warnings(),
            _environment_and_signals_as_before(),
            _random_numbers_as_before(),
            _messages_of_transformers_as_before(),
            log_as_before(),
        ):
            yield
    finally:
        _ONE_CALL.release()


def several(value: Any) -> Any:
    """Return one value or several as a tuple, and None as None. A text is one value: iterating gives its characters."""
    if value is None:
        return None
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def set_up_process(rank: int = 0) -> None:
    """Log to stderr, of other ranks than 0 errors only, and respect the quota; call it before torch is imported."""
    set_up_logging(speaks=rank == 0, rank=rank)
    respect_quota()


def respect_quota() -> None:
    """Set OMP_NUM_THREADS to the CPU quota of the container, unless it is set or there is no quota.

    OpenMP respects the CPU affinity but not a quota: more threads than the quota wait for each other at every barrier.
    Must be called before torch is imported, which reads the variable once.
    """
    quota, num_cores = core_quota(), os.cpu_count() or 1
    if quota is None or quota >= num_cores or "OMP_NUM_THREADS" in os.environ or "torch" in sys.modules:
        return
    num_threads = max(1, int(quota))
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    log.info("OMP_NUM_THREADS=%d: the container grants %.3g of %d cores", num_threads, quota, num_cores)


@contextmanager
def _environment_and_signals_as_before() -> Iterator[None]:
    before, mask = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
        for number, handler in handlers.items():
            if handler is not None:  # None: it was not installed from Python, and cannot be restored
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _random_numbers_as_before() -> Iterator[None]:
    """Restore the global generators; those of a library that the block imports are as after its import."""
    state = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    numpy_state = None if numpy is None else numpy.random.get_state()
    on_cpu = None if torch is None else torch.get_rng_state()
    on_cuda = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_rng_state(torch.Generator().get_state() if on_cpu is None else on_cpu)
            if on_cuda is not None:
                torch.cuda.set_rng_state_all(on_cuda)
            elif torch.cuda.is_initialized():  # in the block, with the seed that both kinds of devices have
                torch.cuda.manual_seed_all(torch.initial_seed())


@contextmanager
def _messages_of_transformers_as_before() -> Iterator[None]:
    """Restore the log level and the progress bars of transformers, which loading a model switches off."""
    name = "transformers.utils.logging"
    module = sys.modules.get(name)
    before = None if module is None else (module.get_verbosity(), module.is_progress_bar_enabled())
    try:
        yield
    finally:
        if (module := sys.modules.get(name)) is not None:
            hub = sys.modules["huggingface_hub.constants"]
            level, has_bars = before or (module.WARNING, not hub.HF_HUB_DISABLE_PROGRESS_BARS)
            module.set_verbosity(level)
            if has_bars and not module.is_progress_bar_enabled():
                module.enable_progress_bar()


def run_command(arguments: Sequence[str], *, results: Collection[int] = (EXIT_OK,)) -> Any:
    """Run `paratune ARGUMENTS --json` in another process, show its stderr here, and return the document it prints.

    A KeyboardInterrupt is passed on as SIGINT, on which a training saves a checkpoint.

    Args:
        results: Exit codes with which the command prints a result.

    Raises:
        ParatuneError: The command failed; with the class, the codes and the facts of its error.
        KeyboardInterrupt: It was interrupted before it had anything to save.
    """
    from paratune.processes.local import PROGRAM  # imports pydantic, which no --help needs

    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        # A new session: Ctrl-C must reach it only through this process, which passes it on once.
        process = subprocess.Popen(
            [*PROGRAM, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
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
        lines, document = output.read().strip().splitlines(), None
    with suppress(ValueError, IndexError):
        document = json.loads(lines[-1])
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


def _error(arguments: Sequence[str], code: int, document: Any) -> ParatuneError:
    """Return the error of a command from its exit code, and its printed document if it has one."""
    printed = document.get("errors") if isinstance(document, dict) else None
    if not printed:
        how = f"paratune {arguments[0]} ended with " + (f"signal {-code}" if code < 0 else f"exit code {code}")
        if code == EXIT_STOPPED:
            return Stopped(f"{how}: a signal stopped it; resume it", code="stopped.signal")
        return LaunchError(f"{how}; its messages on stderr have the reason", code="launch.rank_lost")
    kind = {kind.exit_code: kind for kind in ParatuneError.__subclasses__()}.get(code, ParatuneError)
    faults = [Fault(fault["code"], fault["message"], fault["facts"]) for fault in printed]
    if len(faults) > 1:
        return kind(f"paratune {arguments[0]}: {len(faults)} problems", code=faults[0].code, faults=faults)
    error = kind(faults[0].message, code=faults[0].code)
    error.faults = tuple(faults)
    return error
