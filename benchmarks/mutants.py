"""Measures the share of small faults that the unit tests detect, with a seeded sample of mutants.

    python -m pip install mutmut
    python benchmarks/mutants.py --out mutants.jsonl
    python benchmarks/mutants.py --out again.jsonl --survivors mutants.jsonl

A mutant is the package with one expression changed by one of mutmut's operators (`<` becomes `<=`, an argument becomes
None, a string becomes another). Lines are drawn, then one mutant of each line. Each mutant runs the unit test at the
mirrored path or, without one, the unit tests of the same folder that import the module. With --survivors, all unit
tests that import the module run, or all of the folder. mutmut itself runs every test of the project first, and mutates
only functions; so this script uses only its operators.

A parent process imports torch and transformers once and forks for each mutant; the mutated package is in a temporary
folder, so that the checkout does not change. Linux only.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from affected import PACKAGE, UNIT, importing_tests, mirrored_tests  # noqa: E402

PACKAGES = ("engine", "strategies", "data", "checkpoint", "verdicts")
FASTEST_TIMEOUT_S, TIMEOUT_FACTOR = 20.0, 4.0
"""A mutant is stopped after the larger of the two: seconds, and a multiple of the duration without a mutation."""
MOST_BYTES = 8 * 2**30
"""Bytes of data that a mutant may allocate."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    """Relative to the package."""
    line: int
    """Line of the original file, from 1."""
    diff: str
    """The lines that differ, with - and +."""
    source: str
    """The whole changed file."""


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant: `killed`, `timeout`, `lived`, or `untested` if the module has no unit test."""

    path: str
    line: int
    diff: str
    result: str
    time_s: float


def draw(num_mutants: int, seed: int, packages: Sequence[str]) -> list[Mutant]:
    """Return a sample: lines from all files with equal chance, and one mutant per line, without changes of prose."""
    files = {path: _File(path) for package in packages for path in sorted((PACKAGE / package).rglob("*.py"))}
    lines = sorted((path, line) for path, file in files.items() for line in file.mutations)
    rng = random.Random(seed)
    drawn = sorted(rng.sample(lines, min(num_mutants, len(lines))))
    print(f"{len(lines)} lines of {len(files)} files have mutants; {len(drawn)} drawn with seed {seed}")
    return [files[path].mutant(line, rng.choice(files[path].mutations[line])) for path, line in drawn]


class _File:
    """The mutations of one file, by line."""

    def __init__(self, path: Path) -> None:
        import libcst as cst
        from libcst.metadata import MetadataWrapper, PositionProvider
        from mutmut.mutation.file_mutation import create_mutations

        self._path, self._code = path, path.read_text(encoding="utf-8")
        module, mutations, _, _ = create_mutations(str(path), self._code)
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider)
        self._module = wrapper.module
        self.mutations: dict[int, list[tuple[Any, Any]]] = {}
        for mutation in mutations:
            original = mutation.original_node
            is_prose = isinstance(original, cst.SimpleString) and " " in original.value
            if original in positions and not is_prose:
                line = positions[original].start.line
                self.mutations.setdefault(line, []).append((original, mutation.mutated_node))

    def mutant(self, line: int, mutation: tuple[Any, Any]) -> Mutant:
        changed = self._module.deep_replace(*mutation).code
        lines = list(unified_diff(self._code.splitlines(), changed.splitlines(), lineterm="", n=0))[2:]
        diff = "\n".join(line for line in lines if not line.startswith("@@"))
        return Mutant(str(self._path.relative_to(PACKAGE)), line, diff, changed)


def narrow_tests(path: Path) -> list[Path]:
    """Return the test at the mirrored path of a module, or the tests of the mirrored folder that import it."""
    folder = UNIT / path.relative_to(PACKAGE).parts[0]
    return mirrored_tests(path) or [test for test in importing_tests(path) if test.is_relative_to(folder)]


def wide_tests(path: Path) -> list[Path]:
    """Return the other tests that import a module; if no test does, all tests of the mirrored folder."""
    folder = UNIT / path.relative_to(PACKAGE).parts[0]
    others = [test for test in importing_tests(path) if test not in narrow_tests(path)]
    return others if others or narrow_tests(path) else sorted(folder.rglob("test_*.py"))


def run_tests(tests: Sequence[Path], source: Path, timeout_s: float) -> str:
    """Run tests in a forked process with the package in a folder; return `passed`, `failed` or `timeout`."""
    child = os.fork()
    if child == 0:
        _be_the_child(tests, source)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            _end_group(child)  # processes that tests started and left
            return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.05)
    _end_group(child)
    os.waitpid(child, 0)
    return "timeout"


def _be_the_child(tests: Sequence[Path], source: Path) -> None:
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        os.chdir(ROOT)
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)  # for processes that tests start
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu and not slurm"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins that transformers has imported already
        code = int(pytest.main([*options, f"--basetemp={source.parent / 'pytest'}", *map(str, tests)]))
        import paratune

        assert Path(paratune.__file__).is_relative_to(source), "the tests ran the package of the checkout"
    finally:
        os._exit(code)


def _end_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Runner:
    """Runs mutants in a copy of the package, and measures the duration of its tests without a mutation."""

    def __init__(self, folder: Path, choose: Callable[[Path], list[Path]]) -> None:
        """Copy the package.

        Args:
            folder: Folder of the copy.
            choose: Returns the tests of a module.
        """
        self._choose = choose
        self._source = folder / "src"
        shutil.copytree(PACKAGE, self._source / "paratune", ignore=shutil.ignore_patterns("__pycache__"))
        self._durations_s: dict[tuple[Path, ...], float | None] = {}
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")

    def outcome(self, mutant: Mutant) -> Outcome:
        """Write the mutant over its file, run its tests, and put the file back."""
        target, began, result = self._source / "paratune" / mutant.path, time.monotonic(), "untested"
        tests = self._choose(PACKAGE / mutant.path)
        # Tests that fail without a mutation are not used.
        if tests and (duration_s := self._duration_s(tests)) is not None:
            target.write_text(mutant.source, encoding="utf-8")
            try:
                ended = run_tests(tests, self._source, max(FASTEST_TIMEOUT_S, TIMEOUT_FACTOR * duration_s))
            finally:
                shutil.copy(PACKAGE / mutant.path, target)
            result = {"passed": "lived", "failed": "killed", "timeout": "timeout"}[ended]
        return Outcome(mutant.path, mutant.line, mutant.diff, result, round(time.monotonic() - began, 1))

    def _duration_s(self, tests: Sequence[Path]) -> float | None:
        """Return how long tests take without a mutation, in seconds; None if they do not pass."""
        key = tuple(tests)
        if key not in self._durations_s:
            began = time.monotonic()
            is_sound = run_tests(tests, self._source, 600) == "passed"
            self._durations_s[key] = time.monotonic() - began if is_sound else None
            if not is_sound:
                print("tests that fail without a mutation:", *(str(test.relative_to(UNIT)) for test in tests))
        return self._durations_s[key]


def recorded(path: Path) -> dict[tuple[str, int, str], str]:
    """Return the results of recorded mutants by path, line and diff; empty if there is no file."""
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(record["path"], record["line"], record["diff"]): record["result"] for record in records}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines, one mutant each; mutants in this file are not run again"
    )
    parser.add_argument("--num-mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--survivors", type=Path, help="run the surviving mutants of this record, with more tests")
    options = parser.parse_args()
    mutants = draw(options.num_mutants, options.seed, options.packages)
    if options.survivors:
        lived = {key for key, result in recorded(options.survivors).items() if result in ("lived", "untested")}
        mutants = [mutant for mutant in mutants if (mutant.path, mutant.line, mutant.diff) in lived]
    existing = recorded(options.out)
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    with tempfile.TemporaryDirectory() as folder, options.out.open("a") as file:
        runner = Runner(Path(folder), wide_tests if options.survivors else narrow_tests)
        for mutant in mutants:
            if (mutant.path, mutant.line, mutant.diff) in existing:
                continue
            outcome = runner.outcome(mutant)
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
    print(dict(Counter(recorded(options.out).values())))


if __name__ == "__main__":
    main()
