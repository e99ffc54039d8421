"""The event log of a rank while it grows: torn lines, other files of the same name, long logs; and its rates."""

import json
import tracemalloc
from pathlib import Path

import pytest

from paratune.watch import run as module
from paratune.watch.run import RankLog, total_rate


def line(number: int, **more) -> str:
    return json.dumps({"event": "step", "time": 1.0, "step": number, "loss": 1.0, **more}) + "\n"


def steps(log: RankLog) -> list[int]:
    log.read()
    return [event.step for event in log.steps]


def test_an_incomplete_line_is_read_once_it_is_complete(tmp_path: Path):
    path = tmp_path / "events"
    log = RankLog(path)
    assert steps(log) == []
    path.write_text(line(1) + line(2)[:10])
    assert steps(log) == [1]
    path.write_text(line(1) + line(2) + line(3))
    assert (steps(log), log.num_damaged) == ([1, 2, 3], 0)


def test_a_torn_line_that_a_resumed_run_cuts_off_is_no_new_file(tmp_path: Path):
    path = tmp_path / "events"
    log = RankLog(path)
    path.write_text(line(1) + line(2)[:10])
    log.read()
    with path.open("r+") as file:  # as records.EventLog does
        file.truncate(len(line(1)))
    assert steps(log) == [1]


def test_a_shorter_replaced_or_deleted_file_is_forgotten(tmp_path: Path):
    path = tmp_path / "events"
    log = RankLog(path)
    path.write_text(line(1) + line(2))
    log.read()
    path.write_text(line(7))
    assert steps(log) == [7]
    (tmp_path / "other").write_text(line(8) + line(9) + line(10))
    (tmp_path / "other").replace(path)
    assert steps(log) == [8, 9, 10]
    path.unlink()
    assert steps(log) == []


def test_lines_that_are_not_events_are_counted_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "events"
    damaged = b'\xff\n{"step": 2}\n[1]\n3\n{"event": 4}\n' + b"[" * 100_000 + b"\n"
    path.write_bytes(line(1).encode() + damaged + line(5).encode())
    log = RankLog(path)
    assert (steps(log), log.num_damaged) == ([1, 5], 6)
    # A line that is too long to be read at once counts as several; the next one is read.
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    path.write_bytes(b"x" * 2500 + b"\n" + line(6).encode())
    log = RankLog(path)
    assert (steps(log), log.num_damaged) == ([6], 3)


def test_of_a_long_log_all_is_read_but_the_early_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "RECENT_BYTES", 20 * len(line(1000)))
    path = tmp_path / "events"
    other = json.dumps({"event": "evaluation", "step": 1, "scores": {"f1": 0.5}}) + "\n"
    path.write_text(other + "".join(line(number) for number in range(1000, 9000)))
    log = RankLog(path)
    assert steps(log) == list(range(8980, 9000))
    assert log.evaluation is not None
    assert log.evaluation.scores == {"f1": 0.5}


def test_memory_does_not_grow_with_the_log(tmp_path: Path):
    # 20,000 steps of 1,000 bytes: 20 MB. A million of them are read in the same memory.
    path = tmp_path / "events"
    with path.open("w") as file:
        file.writelines(line(number, padding="x" * 920) for number in range(20_000))
    tracemalloc.start()
    log = RankLog(path)
    log.read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert log.step == 19_999
    assert peak < 2_000_000


def rates(logs: list[RankLog]) -> tuple[float | None, float | None]:
    return total_rate(logs, "num_tokens"), total_rate(logs, "num_samples")


def history(path: Path, **more) -> RankLog:
    walls = ((1, {"wall_ms": 900.0, "profiled": True}), (2, {"wall_ms": 100.0}), (3, {"wall_ms": 100.0}))
    path.write_text("".join(line(step, num_tokens=50, num_samples=5, **wall, **more) for step, wall in walls))
    log = RankLog(path)
    log.read()
    return log


def test_rates_are_of_all_ranks_without_steps_under_a_profiler(tmp_path: Path):
    # 10 samples in 0.2 s on each of two ranks, with and without a record of whose data they are.
    logs = [history(tmp_path / str(number)) for number in range(2)]
    assert rates(logs) == pytest.approx((1000.0, 100.0))
    assert rates([history(tmp_path / str(number), data_rank=number) for number in range(2)]) == pytest.approx(
        (1000.0, 100.0)
    )
    # Stages of a pipeline see the same samples.
    assert rates([history(tmp_path / str(number), data_rank=0) for number in range(2)]) == pytest.approx((500.0, 50.0))


@pytest.mark.parametrize("damaged", [{}, {"num_tokens": "x"}, {"wall_ms": None}, {"wall_ms": 10**400}])
def test_a_rate_without_a_readable_step_is_unknown_and_not_0(tmp_path: Path, damaged: dict):
    path = tmp_path / "events"
    path.write_text(line(1, **{"wall_ms": 100.0, **damaged}))
    log = RankLog(path)
    log.read()
    assert rates([log]) == (None, None)


def test_a_step_without_its_time_counts_for_no_rate(tmp_path: Path):
    path = tmp_path / "events"
    path.write_text(line(1, wall_ms=100.0, num_samples=5) + line(2, wall_ms="x", num_samples=5))
    log = RankLog(path)
    log.read()
    assert rates([log]) == (None, pytest.approx(50.0))


@pytest.mark.parametrize("number", [10**400, 2**60])
def test_numbers_that_no_screen_can_show_are_passed_over(tmp_path: Path, number: int):
    path = tmp_path / "events"
    path.write_text(line(3) + line(number, loss=2.0) + json.dumps({"event": "begin", "time": number}) + "\n")
    log = RankLog(path)
    log.read()
    assert (log.step, log.time) == (3, 1.0)
