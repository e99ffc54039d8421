"""Commands in processes that are forked from this one, which has imported torch already: a trial imports nothing.

The processes that a command starts with `python -P -m paratune` (ranks, runs of a sweep) are forked as well, by a
subclass of `subprocess.Popen` that the forked process gets; all other programs are started as always.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import logging
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PRELOADED = (
    "paratune.cli",
    "paratune.commands.train",
    "paratune.commands.infer",
    "paratune.api.predict",
    "paratune.commands.certify",
    "paratune.commands.certify_trial",
    "paratune.commands.certify_part",
    "paratune.commands.sweep",
    "paratune.api.sweep_train",
    "paratune.commands.bundle",
    "paratune.commands.bundle_contents",
    "paratune.commands.tokenizer",
    "paratune.commands.pseudo_label",
    "paratune.commands.report",
    "paratune.training.run",
    "paratune.infer.trained",
    "paratune.data.describe",
    "paratune.reports.figures.runs",
    "paratune.strategies.ddp",
    "paratune.strategies.fsdp",
    "paratune.strategies.zero1",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "transformers.models.bert.modeling_bert",
    "sklearn.metrics",
    "scipy.stats",
    "pandas",  # pyarrow imports it with the first array
)
WHERE_INSTALLED = ("deepspeed", "accelerate", "pyarrow.pandas_compat")
PROGRAM = [sys.executable, "-P", "-m", "paratune"]
_CHILD_SUBREAPER = 36
MAX_FILES = 4096
_POPEN = subprocess.Popen


def preload() -> None:
    """Import what commands import, and become the parent of what killed commands leave behind (Linux)."""
    for name in (*PRELOADED, *(name for name in WHERE_INSTALLED if find_spec(name))):
        importlib.import_module(name)
    gc.freeze()  # the collector would touch, and so copy, each page of all these modules in each process
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork(work: Callable[[], object]) -> int:
    """Run a function in a new process, which ends as a Python program does; return its number."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        _forget_what_ends_the_parent()
        code = _exit_code(work)
    finally:
        os._exit(code)


def _forget_what_ends_the_parent() -> None:
    """Drop what the parent has to do at its end, such as deleting its temporary folders."""
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    for needed in (logging.shutdown, multiprocessing.util._exit_function):
        atexit.register(needed)


def _exit_code(work: Callable[[], object]) -> int:
    code = 0
    try:
        work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


def redirect_output(path: Path) -> None:
    """Send what this process prints to a file, which is emptied first."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    _redirect(file, 2)


def run_paratune(words: Sequence[str]) -> None:
    """Run the command line in this process, which has to be a new one."""
    sys.argv = ["paratune", *words]
    runpy.run_module("paratune", run_name="__main__", alter_sys=False)


def start(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Path,
    first: Callable[[], object] = lambda: None,
) -> int:
    """Start a command in a session of its own; what it prints is added to `output`; return its number.

    Args:
        words: After `paratune`.
        folder: Working directory.
        environment: Variables besides this process' own.
        output: For stdout and stderr.
        first: Called in the new process before the command.
    """

    def work() -> None:
        os.setsid()
        os.chdir(folder)
        _redirect(os.open(os.devnull, os.O_RDONLY), 0)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        _redirect(file, 2)
        os.environ.update(environment)
        subprocess.Popen = WarmPopen
        first()
        run_paratune(words)

    return fork(work)


def _redirect(file: int, number: int) -> None:
    os.dup2(file, number)
    if file != number:
        os.close(file)


class WarmPopen(_POPEN):
    """Forks where the program is paratune and this process has one thread; else it is `subprocess.Popen`."""

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(_POPEN._execute_child).bind(self, *arguments).arguments
        words = list(given["args"]) if not isinstance(given["args"], str) else []
        if words[: len(PROGRAM)] != PROGRAM or len(list(Path("/proc/self/task").iterdir())) > 1:
            super()._execute_child(*arguments)
            return
        self.pid = fork(lambda: _as_started(words[len(PROGRAM) :], given))
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))


def _as_started(words: Sequence[str], given: Mapping[str, Any]) -> None:
    """Make this forked process what a new interpreter would be, as far as the command can see, and run it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for handler in list(logging.getLogger().handlers):
        logging.getLogger().removeHandler(handler)
    for name, number in (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2)):
        if given[name] != -1:
            os.dup2(given[name], number)
    os.closerange(3, MAX_FILES)  # a new program has none of them, nor the locks that they hold
    if given["env"] is not None:
        os.environ.clear()
        os.environ.update(given["env"])
    if given["cwd"] is not None:
        os.chdir(given["cwd"])
    if given["start_new_session"]:
        os.setsid()
    if given["preexec_fn"] is not None:
        given["preexec_fn"]()
    run_paratune(words)
