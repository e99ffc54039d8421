"""A trial: a command is killed, restarted until it finishes, and compared with an undisturbed one."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import killer, warm
from .findings import DIFFERENCE, STUCK, TRACEBACK, Finding
from .kinds import Kind
from .results import Result, first_difference, remains

POLL_S = 0.005
LEFT_S = 60.0
"""Seconds that processes may run after the started one has exited: ranks first save a checkpoint."""
MOST_KILLS = 3
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
MAIN, ONE, ALL = TARGETS = ("main", "one", "all")
CODES = (0, 75, 5)
"""Exit codes after a signal, besides the signal itself: it had finished, it saved, or it lost a process."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Reference:
    """A kind, with the result of its undisturbed command."""

    kind: Kind
    world: Path
    """The folder that each trial copies."""
    result: Result
    operations: int
    """File operations; 0 if they cannot be counted."""
    seconds: float


@dataclass(frozen=True)
class Disturbance:
    """One signal."""

    number: signal.Signals
    order: killer.Order | None = None
    """At a file operation; otherwise `after_s`."""
    after_s: float = 0.0
    target: str = MAIN
    """At a time: the started process, one of its child processes, or all."""


@dataclass(frozen=True)
class Attempt:
    """The result of a command."""

    code: int
    """Exit code; the negative signal number if a signal killed the command."""
    was_hit: bool
    """Whether the signal reached a running process."""
    output: str
    is_stuck: bool
    num_left: int
    """Processes that did not exit by themselves."""
    operations: int


def refer(kind: Kind, folder: Path, has_killer: bool) -> Reference:
    """Create the files of a kind and run its command once.

    Raises:
        RuntimeError: The exit code is not 0.
    """
    world, copy = folder / "world", folder / "reference"
    world.mkdir(parents=True)
    log = folder / "prepare.out"
    pid = warm.fork(lambda: (warm.redirect_output(log), kind.prepare(world)))
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(f"{kind.name}: its files could not be created: {log.read_text('utf-8', 'replace')[-2000:]}")
    if kind.before:
        _must_end_well(kind, attempt(kind.before, world, None, 600.0))
    shutil.copytree(world, copy, symlinks=True)
    began = time.monotonic()
    order = Disturbance(signal.SIGKILL, killer.Order()) if has_killer else None
    result = attempt(kind.words, copy, order, 600.0)
    _must_end_well(kind, result)
    return Reference(kind, world, kind.result(copy), result.operations, time.monotonic() - began)


def _must_end_well(kind: Kind, result: Attempt) -> None:
    if result.code != 0 or result.is_stuck:
        raise RuntimeError(f"{kind.name}: exited with {result.code} without a disturbance:\n{result.output[-4000:]}")


def run_trial(reference: Reference, number: int, seed: int, folder: Path) -> tuple[int, list[Finding]]:
    """Run one trial in a new folder, which is deleted if there are no findings.

    Returns:
        Number of signals that reached a running process, and the findings.
    """
    kind, draw = reference.kind, random.Random(f"{seed}/{reference.kind.name}/{number}")
    limit_s = max(120.0, 30 * reference.seconds)
    shutil.copytree(reference.world, folder, symlinks=True)
    findings: list[Finding] = []
    words, num_hits, log = kind.words, 0, []

    def note(sort: str, text: str) -> None:
        findings.append(Finding(sort, kind.name, number, text))

    planned = [disturbance(draw, reference) for _ in range(draw.randint(1, MOST_KILLS))]
    for step in [*planned, None]:
        result = attempt(words, folder, step, limit_s)
        num_hits += result.was_hit
        log.append(f"== {' '.join(words)}\n== {step}\n== code {result.code}, hit {result.was_hit}\n{result.output}")
        check_attempt(kind, step if result.was_hit else None, result, note)
        if findings or (result.code == 0 and step is None):
            break
        if result.code == 0 and not kind.again:
            break
        words = (*kind.words, *kind.again)
    if not findings:
        check_end(reference, folder, note)
    if findings:
        (folder / "soak_log.txt").write_text("\n".join(log))
    else:
        shutil.rmtree(folder)
    return num_hits, findings


def check_attempt(kind: Kind, hit: Disturbance | None, result: Attempt, note: Callable[[str, str], None]) -> None:
    """Record errors in the end of a command; `hit` is the signal that reached it."""
    if result.is_stuck:
        note(STUCK, f"did not finish; end of its output: {result.output[-500:]}")
        return
    if result.num_left:
        note(STUCK, f"{result.num_left} processes still ran {LEFT_S:g} s after its end")
    if "Traceback (most recent call last)" in result.output:
        note(TRACEBACK, result.output[result.output.index("Traceback (most") :][:3000])
    allowed: tuple[int, ...] = (0, *kind.refuses)
    if hit is not None:
        allowed = (*CODES, *kind.refuses, *kind.allowed, -hit.number, 128 + hit.number)
    if result.code not in allowed:
        note(DIFFERENCE, f"exit code {result.code} after {hit}; the end of its output: {result.output[-1000:]}")


def check_end(reference: Reference, folder: Path, note: Callable[[str, str], None]) -> None:
    """Record differences from the undisturbed command, and remaining temporary files."""
    try:
        result = reference.kind.result(folder)
    except Exception as error:
        note(DIFFERENCE, f"its result cannot be read: {type(error).__name__}: {error}")
        return
    if difference := first_difference(reference.result, result):
        note(DIFFERENCE, f"another result: {difference}")
    if left := remains(folder):
        note(DIFFERENCE, f"temporary files are left: {', '.join(left)}")


def disturbance(draw: random.Random, reference: Reference) -> Disturbance:
    """Draw one signal: two of three are SIGKILL, and two of three come at a file operation if these are counted."""
    number = signal.SIGKILL if draw.random() < 2 / 3 else draw.choice(STOPS)
    at, part, moment = draw.random(), draw.randrange(1000), draw.choice(killer.MOMENTS)
    after_s, target, is_timed = draw.random() * reference.seconds, draw.choice(TARGETS), draw.random() < 1 / 3
    if reference.operations == 0 or is_timed:
        return Disturbance(number, None, after_s, target)
    return Disturbance(number, killer.Order(1 + int(at * reference.operations), number, moment, part))


def attempt(words: tuple[str, ...], folder: Path, step: Disturbance | None, limit_s: float) -> Attempt:
    """Run a command in a folder to its end, with or without a signal."""
    output, order = folder.with_name(f"{folder.name}.out"), folder.with_name(f"{folder.name}.order")
    output.unlink(missing_ok=True)
    ordered = step.order if step is not None else None
    environment = {**ENVIRONMENT, "PARATUNE_CACHE": str(folder / "cache")}
    if ordered is not None:
        killer.write_order(order, ordered, folder)
    pid = warm.start(words, folder, environment, output, (lambda: killer.arm(order)) if ordered else lambda: None)
    began, was_sent, code = time.monotonic(), False, None
    while code is None and time.monotonic() - began < limit_s:
        time.sleep(POLL_S)
        code = _reap(pid)
        if code is None and step and not ordered and not was_sent and time.monotonic() - began > step.after_s:
            was_sent = send(step, pid)
    is_stuck = code is None
    if is_stuck:
        kill_all(pid)
    num_left = _wait_for_the_rest()
    counted, num_sent = killer.counts(order) if ordered is not None else (0, int(was_sent))
    text = output.read_text("utf-8", "replace") if output.exists() else ""
    for path in (output, order):
        path.unlink(missing_ok=True)
    return Attempt(-9 if code is None else code, bool(num_sent), text, is_stuck, num_left, counted)


def send(step: Disturbance, pid: int) -> bool:
    """Send a signal to its target; return whether there was one."""
    with suppress(psutil.Error, ProcessLookupError):
        below = psutil.Process(pid).children(recursive=True)
        chosen = {MAIN: [pid], ALL: [pid, *(process.pid for process in below)]}.get(step.target)
        if chosen is None:
            chosen = [below[int(1000 * step.after_s) % len(below)].pid if below else pid]
        for number in chosen:
            with suppress(ProcessLookupError):
                os.kill(number, step.number)
        return True
    return False


def kill_all(pid: int) -> None:
    """Kill a process and all its descendants."""
    with suppress(psutil.Error):
        for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            with suppress(psutil.Error):
                process.kill()


def _reap(pid: int) -> int | None:
    """Reap exited processes; return the exit code of `pid` after it has exited."""
    while True:
        try:
            number, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if number == pid:
            return os.waitstatus_to_exitcode(status)
        if number == 0:
            return None


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:  # it has just ended
        return False


def _wait_for_the_rest() -> int:
    """Wait until this process has no children; kill those that remain and return their number."""
    began = time.monotonic()
    while time.monotonic() - began < LEFT_S:
        _reap(0)
        left = [process for process in psutil.Process().children(recursive=True) if _is_running(process)]
        if not left:
            return 0
        time.sleep(POLL_S)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    while psutil.Process().children():
        _reap(0)
        time.sleep(POLL_S)
    return len(left)
