"""Shards made by datatrove's executors: LocalPipelineExecutor here, SlurmPipelineExecutor in tests/slurm."""

from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from corpus_documents import content, extracted
from corpus_work import dies, dies_once, fails_at_1, waits
from raised import raises_code

from paratune.commands import corpus_executor as executors
from paratune.commands.corpus_executor import MakeShards, run_local, run_ray, spread_shards, start_apart, start_slurm
from paratune.console import Display
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import STORED_DOCUMENT_SCHEMA
from paratune.corpus.stage import Stage, begin, run_stage
from paratune.corpus.store import run_store, stored_documents

DISPLAY = Display(speaks=False)
STEPS = ["lines", "language", "variety", "quality", "duplicates", "decontaminate", "personal"]
SHARDS = [[f"texto {shard} {number}" for number in range(5)] for shard in range(5)]


def corpus(work):
    return Corpus.model_validate({"work": str(work), "clean": {"skip": STEPS}})


def stage(folder):
    return Stage("odd name", folder, STORED_DOCUMENT_SCHEMA, partial(stored_documents, 0.1), {}, "x")


def test_a_task_makes_the_shards_of_its_rank(tmp_path, monkeypatch):
    folder = extracted(tmp_path, *SHARDS)
    made = stage(tmp_path / "6")
    begin(made)
    todo = [(number, (folder / f"part-{number:05d}.parquet",)) for number in (0, 1, 2, 4)]
    (tmp_path / "running").mkdir()
    task = MakeShards(made, todo, tmp_path / "running")
    monkeypatch.chdir("/")
    # Of the shards 0 1 2 4 rank 1 of 3 has the second: 1; rank 0 the first and the fourth: 0 and 4.
    task(None, 1, 3)
    assert sorted(path.name for path in made.folder.glob("counts-*")) == ["counts-00001.json"]
    task(None, 0, 3)
    assert sorted(path.name[7:12] for path in made.folder.glob("counts-*")) == ["00000", "00001", "00004"]
    assert list((tmp_path / "running").iterdir()) == []
    before = (made.folder / "part-00001.parquet").stat().st_mtime_ns
    task(None, 1, 3)
    assert (made.folder / "part-00001.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize(("tasks", "workers"), [(9, 1), (2, 2)])
def test_the_result_is_that_of_processes(tmp_path, tasks, workers):
    for name in ("own", "spread"):
        extracted(tmp_path / name, *SHARDS)
    run_store(corpus(tmp_path / "own"), 1, DISPLAY)
    spread = partial(spread_shards, tmp_path / "spread", tasks, partial(start_apart, partial(run_local, workers)))
    run_store(corpus(tmp_path / "spread"), spread, DISPLAY)
    assert content(tmp_path / "own/6_store") == content(tmp_path / "spread/6_store")
    logs = tmp_path / "spread/executor/store_documents"
    assert len(list((logs / "completions").iterdir())) == min(tasks, len(SHARDS))


def test_shards_that_were_not_made_are_named_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "GRACE_S", 0.0)
    monkeypatch.setattr(executors, "POLL_S", 0.01)
    stopped: list[str] = []
    monkeypatch.setattr(executors.jobs, "queue", list)
    monkeypatch.setattr(executors.jobs, "cancel", stopped.extend)

    class Executor:
        job_id = 7

        def __init__(self, pipeline, logging_dir, tasks, **_):
            self.make, self.tasks, self.logs = pipeline[0], tasks, Path(logging_dir) / "slurm_logs"

        def run(self):
            self.make(None, 0, self.tasks)
            self.logs.mkdir()
            text = "Traceback\n    raise\nparatune.errors.DataError: x is \x1b bad\nend\n"
            (self.logs / "1_1.out").write_text(text)

    monkeypatch.setattr(executors, "_executor", lambda *_: Executor)
    folder = extracted(tmp_path, *SHARDS)
    inputs = [(folder / f"part-{number:05d}.parquet",) for number in range(5)]
    tasks = partial(spread_shards, tmp_path, 2, partial(start_slurm, {}))
    with raises_code("corpus.shards_failed", "2 of 5", "DataError", "x1b", "bad"):
        run_stage(stage(tmp_path / "6"), inputs, workers=tasks, display=DISPLAY)
    assert stopped == ["7"]
    # Without it, what is left is made by this machine.
    assert run_stage(stage(tmp_path / "6"), inputs, workers=1, display=DISPLAY)["kept"] == 25


def numbers(folder, work):
    return Stage("numbers", folder, pa.schema([("number", pa.int64())]), work, 1, [1])


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_shards_of_a_killed_task_are_made_again(tmp_path, monkeypatch, caplog, workers):
    monkeypatch.setattr(executors, "POLL_S", 0.1)
    tasks = partial(spread_shards, tmp_path, 2, partial(start_apart, partial(run_local, workers)))
    inputs = [(str(tmp_path / "flag"), number) for number in range(4)]
    totals = run_stage(numbers(tmp_path / "a", dies_once), inputs, workers=tasks, display=DISPLAY)
    assert (totals["kept"], (tmp_path / "flag").exists()) == (4, True)
    assert [record.code for record in caplog.records] == ["corpus.process_died"]


@pytest.mark.slow
def test_a_shard_that_kills_each_task_ends_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "POLL_S", 0.1)
    tasks = partial(spread_shards, tmp_path, 2, partial(start_apart, partial(run_local, 2)))
    with raises_code("corpus.shards_failed", "3 times", "during shard"):
        run_stage(numbers(tmp_path / "a", dies), [(7,), (8,)], workers=tasks, display=DISPLAY)


def test_tasks_that_never_begin_end_the_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "POLL_S", 0.1)
    monkeypatch.setattr(executors, "IDLE_S", 0.2)
    tasks = partial(spread_shards, tmp_path, 2, partial(start_apart, waits))
    with pytest.raises(BrokenProcessPool, match="no task"):
        next(tasks(numbers(tmp_path / "a", dies), [(0, (7,))]))


def test_an_error_of_a_task_ends_the_command(tmp_path):
    tasks = partial(spread_shards, tmp_path, 2, partial(start_apart, partial(run_local, 1)))
    with raises_code("corpus.damaged", "x.parquet"):
        run_stage(stage(tmp_path / "6"), [(tmp_path / "x.parquet",)], workers=tasks, display=DISPLAY)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray, at its start and end
def test_ray_gives_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    for name in ("own", "spread"):
        extracted(tmp_path / name, *SHARDS)
    run_store(corpus(tmp_path / "own"), 1, DISPLAY)
    options = {"num_cpus": 2, "_memory": 4 * 2**30, "object_store_memory": 10**8, "include_dashboard": False}
    ray.init(_node_ip_address="127.0.0.1", log_to_driver=False, **options)
    try:
        run_store(
            corpus(tmp_path / "spread"),
            partial(spread_shards, tmp_path / "spread", 2, partial(start_apart, partial(run_ray, 1))),
            DISPLAY,
        )
    finally:
        ray.shutdown()
    assert content(tmp_path / "own/6_store") == content(tmp_path / "spread/6_store")


def test_the_shard_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "POLL_S", 0.1)
    tasks = partial(spread_shards, tmp_path, 2, partial(start_apart, partial(run_local, 2)))
    with raises_code("corpus.shards_failed", "shard 1", "ValueError", "the reason"):
        run_stage(numbers(tmp_path / "a", fails_at_1), [(0,), (1,)], workers=tasks, display=DISPLAY)
