"""What a run is at, by its folder alone: its state must be true whatever happened to it.

The event log of a rank while it grows: torn lines, other files of the same name, long logs; and its rates.
"""

import io
import json
import platform
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from watched import NOW, begin, event, finish, held, log, step, training

from paratune.records import RUN_FILE, events_file
from paratune.records.typed import RunFile
from paratune.watch import run as watched_run
from paratune.watch.board import Board
from paratune.watch.run import RECENT_S, SILENT_S, RankLog, RunView, RunWatch, total_rate
from paratune.watch.screen import Screen


def look(folder: Path, after: float = 1.0) -> RunView:
    return RunWatch(folder).look(NOW + after)


def test_a_running_run_has_all_figures(tmp_path: Path):
    folder = training(tmp_path / "r", 10, world_size=2)
    log(folder, event("evaluation", step=10, split="validation", scores={"accuracy": 0.75, "f1": None}, time_s=4.0))
    with held(folder):
        view = look(folder)
    assert (view.state, view.step, view.num_steps, view.loss) == ("training", 10, 100, 0.1)
    # Two ranks, each 8 samples and 100 tokens in 0.2 s.
    assert (view.samples_per_s, view.tokens_per_s) == (pytest.approx(80), pytest.approx(1000))
    assert (view.scores, view.scored_at) == ({"accuracy": 0.75, "f1": None}, 10)
    assert view.memory_bytes == 2**30
    # 90 steps of 0.2 s, and a pause of 4 s each 10 steps.
    assert view.left_s == pytest.approx(90 * (0.2 + 4 / 10))


@pytest.mark.parametrize(
    ("doing", "state"),
    [
        ("training", "training"),
        ("evaluating", "evaluating"),
        ("writing a checkpoint", "saving"),
        ("writing the model", "saving"),
        ("something of a later version", "starting"),
    ],
)
def test_the_state_is_the_last_logged_activity(tmp_path: Path, doing: str, state: str):
    folder = training(tmp_path / "r")
    log(folder, event("begin", doing=doing))
    with held(folder):
        assert look(folder).state == state


def test_a_run_without_a_lock_is_not_running(tmp_path: Path):
    folder = training(tmp_path / "r")
    view = look(folder)
    assert (view.state, view.is_running, view.left_s) == ("killed", False, None)
    assert view.since == NOW


@pytest.mark.parametrize(
    ("last", "state", "words"),
    [
        (event("stop", step=10, signal="SIGTERM"), "stopped", "by SIGTERM after step 10"),
        (event("failure", error="NotFiniteError", message="step 11: the loss is nan"), "failed", "the loss is nan"),
        (event("out_of_memory", doing="evaluating", next_micro_batch_size=None), "failed", "while evaluating"),
        (event("out_of_memory", doing="training", next_micro_batch_size=4), "killed", "no process trains it"),
    ],
)
def test_the_last_events_have_the_reason_of_the_end(tmp_path: Path, last: dict, state: str, words: str):
    folder = training(tmp_path / "r")
    log(folder, last)
    view = look(folder)
    assert view.state == state
    assert words in str(view.reason)
    with held(folder, since=NOW + 5):  # started again: the log is that of the previous start
        assert look(folder, 6).state == "starting"
    log(folder, event("resume", step=5), event("begin", doing="training"), step(6))
    assert look(folder).state == "killed"


def test_steps_that_are_trained_again_count_once(tmp_path: Path):
    folder = training(tmp_path / "r", 10)
    watch = RunWatch(folder)
    with held(folder):
        assert watch.look(NOW).step == 10
        log(folder, event("resume", step=5), event("begin", doing="training"), step(6, loss=7.0))
        view = watch.look(NOW)
    assert (view.step, view.loss) == (6, 7.0)


def test_a_silent_run_shows_the_time_of_its_last_event(tmp_path: Path):
    folder = training(tmp_path / "r")
    with held(folder):
        view = look(folder)
    assert (view.state, view.since) == ("training", NOW)
    assert (view.silent_s(NOW + SILENT_S - 1), view.silent_s(NOW + SILENT_S + 1)) == (None, SILENT_S + 1)
    assert look(finish(folder)).silent_s(NOW + 1000) is None


def test_a_run_is_starting_until_its_first_event_of_training(tmp_path: Path):
    with held(tmp_path / "r", since=NOW):
        assert look(tmp_path / "r").state == "starting"
        begin(tmp_path / "r")
        assert look(tmp_path / "r").state == "starting"


def test_a_run_of_another_machine_without_a_visible_lock_has_the_state_of_its_events(tmp_path: Path):
    folder = training(tmp_path / "r")
    begin(folder, host="node17")
    view = look(folder)
    assert (view.state, view.reason) == ("training", "on node17, whose lock this machine does not see")
    assert look(folder, RECENT_S + 1).state == "killed"
    begin(folder, host=platform.node())
    assert look(folder).state == "killed"


def test_a_finished_run_shows_its_summary(tmp_path: Path):
    folder = finish(training(tmp_path / "r"))
    view = look(folder)
    assert (view.state, view.total_s, view.scores, view.step) == ("finished", 61.0, {"accuracy": 0.9}, 100)
    assert (view.scored_at, view.metric) == (None, None)
    view = look(finish(folder, kept_step=40, best={"step": 40, "metric": "accuracy", "value": 0.9}))
    assert (view.scored_at, view.metric) == (40, "accuracy")


def test_ranks_that_share_their_data_count_once(tmp_path: Path):
    folder = begin(tmp_path / "r", world_size=2)
    for rank in range(2):
        log(folder, event("begin", doing="training"), step(1, data_rank=0), rank=rank)
    assert look(folder).samples_per_s == pytest.approx(40)


def test_a_folder_that_is_deleted_and_created_again(tmp_path: Path):
    folder = training(tmp_path / "r")
    watch = RunWatch(folder)
    assert watch.look(NOW).step == 10
    shutil.rmtree(folder)
    assert watch.look(NOW).state == "gone"
    training(folder, 3)
    with held(folder):
        view = watch.look(NOW)
    assert (view.state, view.step) == ("training", 3)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"sessions": 3}', '{"sessions": [4], "plan": {"num_steps": "x"}}', '{"plan": []}']
)
def test_a_damaged_record_is_named_and_damaged_lines_are_skipped(tmp_path: Path, text: str):
    folder = training(tmp_path / "r")
    (folder / RUN_FILE).write_text(text)
    log(folder, {"event": "step", "step": "ten"}, {"event": "step", "step": 11, "wall_ms": "x"})
    with (folder / events_file(0)).open("a") as file:
        file.write('{"event": "step", "loss": 1e999, "step": 12}\nrubbish\n{"event": "st')
    with held(folder):
        view = look(folder)
    assert (view.state, view.step, view.loss) == ("training", 10, 0.1)
    assert str(folder / RUN_FILE) in str(view.reason)


def test_a_run_of_many_ranks_reads_no_more_than_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = training(tmp_path / "r", 10, world_size=4)
    watch = RunWatch(folder)
    watch.look(NOW)
    log(folder, step(11))
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **how: parsed.append(text) or loads(text, **how))
    watch.look(NOW)
    assert len([text for text in parsed if isinstance(text, bytes)]) == 1  # of the event logs


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"measure": {"log_every": 10**400}}},
        {"plan": {"num_steps": 5e-324, "num_epochs": 1}},
    ],
    ids=["log_every", "num_steps"],
)
def test_any_content_of_a_record_is_shown(tmp_path: Path, change: dict):
    folder = training(tmp_path / "r", 10, world_size=2)
    log(folder, event("begin", doing="training"))
    record = json.loads((folder / RUN_FILE).read_text())
    (folder / RUN_FILE).write_text(json.dumps({**record, **change, "sessions": []}))
    with held(folder):
        board = Board([folder])
        Console(file=io.StringIO(), width=80).print(Screen(board.look()))
        assert look(folder).state == "training"


def test_an_event_of_a_step_that_is_no_number_of_a_step_is_damaged(tmp_path: Path):
    folder = training(tmp_path / "r", 3)
    with (folder / events_file(0)).open("a") as file:
        file.write('{"event": "step", "time": 1.0, "step": -1' + "0" * 400 + "}\n")
        file.write('{"event": "step", "time": 1.0, "step": 4, "wall_ms": 1e308}\n')
    view = look(folder)
    assert view.step == 3


def test_a_run_that_ends_while_it_is_read_is_finished_at_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = training(tmp_path / "r", 10)
    read = watched_run.in_session

    def read_and_finish(place: Path, run: RunFile) -> object:
        found = read(place, run)
        finish(folder)
        return found

    monkeypatch.setattr(watched_run, "in_session", read_and_finish)
    first = look(folder)
    assert (first.state, first.step) != ("finished", None)
    last = look(folder)
    assert (last.state, last.scores != {}) == ("finished", True)


def test_a_folder_without_permission_is_not_that_of_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = training(tmp_path / "r")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read all
    view = look(folder)
    assert (view.state, view.is_running, view.step) == ("gone", False, None)
    assert view.reason


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
    assert steps(log) == [1, 2, 3]


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


def test_lines_that_are_not_events_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "events"
    damaged = b'\xff\n{"step": 2}\n[1]\n3\n{"event": 4}\n' + b"[" * 100_000 + b"\n"
    path.write_bytes(line(1).encode() + damaged + line(5).encode())
    log = RankLog(path)
    assert steps(log) == [1, 5]
    # A line that is too long to be read at once counts as several; the next one is read.
    monkeypatch.setattr(watched_run, "LONGEST_LINE", 1000)
    path.write_bytes(b"x" * 2500 + b"\n" + line(6).encode())
    log = RankLog(path)
    assert steps(log) == [6]


def test_of_a_long_log_all_is_read_but_the_early_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watched_run, "RECENT_BYTES", 20 * len(line(1000)))
    path = tmp_path / "events"
    other = json.dumps({"event": "evaluation", "step": 1, "scores": {"f1": 0.5}}) + "\n"
    path.write_text(other + "".join(line(number) for number in range(1000, 9000)))
    log = RankLog(path)
    assert steps(log) == list(range(8980, 9000))
    assert len(log.evaluations) == 1
    assert log.evaluations[0].scores == {"f1": 0.5}


def test_the_curve_has_losses_of_all_parts_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watched_run, "RECENT_BYTES", 20 * len(line(1000)))
    monkeypatch.setattr(watched_run, "MOST_POINTS", 10)
    path = tmp_path / "events"
    # Lines of different lengths, so that the steps that are read have different distances.
    lines = (line(number, loss=number / 1000, doing="x" * (number % 97)) for number in range(1000, 9000))
    path.write_text("".join(lines))
    log = RankLog(path)
    log.read()
    # Of 8,000 steps one in 800 to 1,000 is read, the first one included, and the losses are those of their steps.
    at = [step for step, _ in log.losses]
    assert at[0] == 1000
    assert 8 <= len(at) < 20
    assert max(np.diff(at)) <= 1000
    assert all(loss == step / 1000 for step, loss in log.losses)
    monkeypatch.setattr(watched_run, "RECENT_BYTES", 1 << 30)
    with path.open("a") as file:
        file.writelines(line(number, loss=number / 1000) for number in range(9000, 60_000))
    log.read()
    gaps = np.diff([step for step, _ in log.losses])
    assert len(gaps) < 20
    assert max(gaps) <= 2.5 * min(gaps)  # early and late steps are equally dense
    with path.open("a") as file:
        scored = ({"event": "evaluation", "step": step, "scores": {}} for step in (20_000, 40_000))
        file.writelines(json.dumps(one) + "\n" for one in (*scored, {"event": "resume", "step": 20_000}))
    log.read()
    assert log.losses[-1][0] <= 20_000
    assert [one.step for one in log.evaluations] == [20_000]


def test_only_a_run_of_its_own_has_curves(tmp_path: Path):
    finish(training(tmp_path / "r"))
    log(tmp_path / "r", event("evaluation", step=5, split="validation", scores={"loss": 0.5, "accuracy": 0.75}))
    view = RunWatch(tmp_path / "r", has_curves=True).look()
    assert view.losses == tuple((number, 1 / number) for number in range(1, 11))
    assert view.evaluations == ((5, {"loss": 0.5, "accuracy": 0.75}),)
    training(tmp_path / "s")
    assert (RunWatch(tmp_path / "r").look().losses, RunWatch(tmp_path / "s").look().losses) == ((), ())


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
