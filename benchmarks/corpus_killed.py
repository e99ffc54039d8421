"""Do commands hang when a process of datatrove's executors is killed? Kills one of each run, and counts the hangs.

python benchmarks/corpus_killed.py

A run makes 60 documents in 12 shards with two tasks, 0.1 s each. In every second run the process is that which makes a
shard, in the others a random one of the executor: also its main process, its manager, or an actor of Ray.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psutil
import pyarrow as pa
from corpus_work import slow

from paratune.commands.corpus_executor import FOLDER, RUNNING, run_local, run_ray, spread_shards, start_apart
from paratune.console import Display, set_up_logging
from paratune.corpus.stage import Stage, run_stage

TESTS = Path(__file__).parents[1] / "tests"
SHARDS = [(start, start + 5) for start in range(0, 60, 5)]
HANG_S = 180.0


def make(folder: Path, executor: str) -> None:
    """Make the shards in this process, or with an executor."""
    set_up_logging(speaks=True)
    stage = Stage("killed", folder / "stage", pa.schema([("number", pa.int64())]), slow, 1, [1])
    run = {"local": partial(run_local, 2), "ray": partial(run_ray, 1)}.get(executor)
    workers = 1 if run is None else partial(spread_shards, folder, 2, partial(start_apart, run))
    run_stage(stage, SHARDS, workers=workers, display=Display(speaks=False))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "stage").iterdir())}


def candidates(command: int, executor: str, logs: Path, *, is_any: bool) -> list[int]:
    """Return the processes of which one is killed."""
    makers = [int(path.name.split()[0]) for path in logs.glob(f"{RUNNING}-*/* of *")]
    if not makers or not is_any:
        return makers
    if executor == "local":
        return [process.pid for process in psutil.Process(command).children(recursive=True)]
    actors = [process.pid for process in psutil.process_iter(["cmdline"]) if "RankWorker" in str(process.info)]
    return list({*makers, *actors})


def killed(folder: Path, executor: str, *, is_any: bool) -> tuple[float | None, str]:
    """Run with one kill; return the seconds, None for a hang, and the output."""
    command = [sys.executable, __file__, "--one", str(folder), "--executor", executor]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        began = time.monotonic()
        while not (pids := candidates(process.pid, executor, folder / FOLDER / "killed", is_any=False)):
            if time.monotonic() - began > HANG_S or process.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(random.random() * 2)
        pids = candidates(process.pid, executor, folder / FOLDER / "killed", is_any=is_any)
        if pids:
            name = " ".join(psutil.Process(pid := random.choice(pids)).cmdline())[-60:]
            print(f"killed {pid}: {name}", file=output, flush=True)
            os.kill(pid, 9)
        try:
            process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, (folder / "output").read_text()
    return time.monotonic() - began, (folder / "output").read_text()


@contextmanager
def cluster(executor: str) -> Iterator[None]:
    if executor == "ray":
        import ray

        options = {"num_cpus": 2, "_memory": 4 * 2**30, "object_store_memory": 10**8, "include_dashboard": False}
        ray.init(_node_ip_address="127.0.0.1", log_to_driver=False, **options)
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--executor", choices=("local", "ray"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        make(chosen.one, chosen.executor)
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    random.seed(1)
    print(", ".join(f"{name} {version(name)}" for name in ("datatrove", "ray", "pyarrow")), "\n")
    print(
        "| executor | killed | runs | hangs | exit code 0, same files | a death was logged | seconds, median (range) |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as whole:
        make(Path(whole), "none")
        expected = content(Path(whole))
    for executor in [chosen.executor] if chosen.executor else ["local", "ray"]:
        with cluster(executor):
            for is_any in (False, True):
                times, num_hangs, num_same, num_logged = [], 0, 0, 0
                for _ in range(chosen.runs // 2):
                    with tempfile.TemporaryDirectory() as folder:
                        seconds, output = killed(Path(folder), executor, is_any=is_any)
                        num_hangs += seconds is None
                        times += [] if seconds is None else [seconds]
                        num_same += content(Path(folder)) == expected
                        num_logged += "made again" in " ".join(output.split())
                        print(output, file=sys.stderr, flush=True)
                times.sort()
                spread = f"{times[len(times) // 2]:.0f} ({times[0]:.0f}-{times[-1]:.0f})" if times else "n/a"
                who = "any process of the executor" if is_any else "the process that makes a shard"
                runs = chosen.runs // 2
                print(
                    f"| {executor} | {who} | {runs} | {num_hangs} | {num_same} | {num_logged} | {spread} |", flush=True
                )


if __name__ == "__main__":
    main()
