"""Commands in processes forked from this one, which has already imported torch, so that a trial imports nothing.

The processes that a command starts with `python -P -m paratune` (ranks, runs of a sweep) are forked as well, by a
subclass of `subprocess.Popen` in the forked process; all other programs are started as usual.
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
    "paratune.verify.certify",
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
    "paratune.reports.systems.figures",
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
    """Import the modules of commands, and become the parent of processes that killed commands leave behind (Linux)."""
    for name in (*PRELOADED, *(name for name in WHERE_INSTALLED if find_spec(name))):
        importlib.import_module(name)
    gc.freeze()  # otherwise the collector would copy all pages of these modules in each process
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork(work: Callable[[], object]) -> int:
    """Run a function in a new process, which exits as a Python program does; return its process id."""
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
    """Remove the exit handlers of the parent, such as deleting its temporary folders."""
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
    """Redirect the output of this process to a file, which is emptied first."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    _redirect(file, 2)


def run_paratune(words: Sequence[str]) -> None:
    """Run the command line in this process, which must be new."""
    sys.argv = ["paratune", *words]
    runpy.run_module("paratune", run_name="__main__", alter_sys=False)


def start(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Path,
    first: Callable[[], object] = lambda: None,
) -> int:
    """Start a command in a new session; append its output to `output`; return its process id.

    Args:
        words: Arguments after `paratune`.
        folder: Working directory.
        environment: Variables in addition to those of this process.
        output: File for stdout and stderr.
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
    """Forks if the program is paratune and this process has one thread; otherwise like `subprocess.Popen`."""

    def _execute_child(self, *arguments: Any) -> None:
        options = inspect.signature(_POPEN._execute_child).bind(self, *arguments).arguments
        words = list(options["args"]) if not isinstance(options["args"], str) else []
        if words[: len(PROGRAM)] != PROGRAM or len(list(Path("/proc/self/task").iterdir())) > 1:
            super()._execute_child(*arguments)
            return
        self.pid = fork(lambda: _as_started(words[len(PROGRAM) :], options))
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(options[name] for name in ends))


def _as_started(words: Sequence[str], options: Mapping[str, Any]) -> None:
    """Make this forked process look like a new interpreter to the command, and run it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for handler in list(logging.getLogger().handlers):
        logging.getLogger().removeHandler(handler)
    for name, number in (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2)):
        if options[name] != -1:
            os.dup2(options[name], number)
    os.closerange(3, MAX_FILES)  # a new program has none of these files, and none of their locks
    if options["env"] is not None:
        os.environ.clear()
        os.environ.update(options["env"])
    if options["cwd"] is not None:
        os.chdir(options["cwd"])
    if options["start_new_session"]:
        os.setsid()
    if options["preexec_fn"] is not None:
        options["preexec_fn"]()
    run_paratune(words)
