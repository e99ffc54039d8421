import errno
import json
import math
import os
from pathlib import Path

import pytest
from raised import raises_code

from paratune.errors import EXIT_CHECKPOINT
from paratune.records import (
    EventLog,
    elapsed_s,
    events_file,
    is_finished,
    num_logged_steps,
    predictions_file,
    read_events,
    read_json,
    repair_events,
    write_json,
)


def test_names_of_the_files():
    assert events_file(3) == "events.rank0003.jsonl"
    assert predictions_file("test") == "predictions.test.parquet"


def test_json_is_read_back_without_temporary_files(tmp_path):
    value = {"name": "ação", "nested": [1, {"x": 2.5}], "nothing": None}
    write_json(tmp_path / "run.json", value)
    assert read_json(tmp_path / "run.json") == value
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_numbers_that_json_does_not_have_become_null(tmp_path):
    write_json(tmp_path / "a.json", {"loss": math.nan, "list": [math.inf, 1.0], "tuple": (-math.inf, 2)})
    assert read_json(tmp_path / "a.json") == {"loss": None, "list": [None, 1.0], "tuple": [None, 2]}


def test_a_file_name_that_is_not_utf8_can_be_recorded(tmp_path):
    command = os.fsdecode(b"caf\xe9.yaml")
    write_json(tmp_path / "run.json", {"command": [command]})
    assert read_json(tmp_path / "run.json")["command"] == [command]


def test_a_value_that_json_lacks_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"new": object()})
    assert read_json(tmp_path / "a.json") == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_is_an_error_and_keeps_the_old_file(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"old": 1})

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with raises_code("output.not_writable", "a.json"):
        write_json(tmp_path / "a.json", {"new": 2})
    assert read_json(tmp_path / "a.json") == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_missing_folder_is_an_error(tmp_path):
    with raises_code("output.not_writable", "nowhere", "a.json"):
        write_json(tmp_path / "nowhere" / "a.json", {})
    with raises_code("output.not_writable", "nowhere", "events.rank0000.jsonl") as caught:
        EventLog(tmp_path / "nowhere", 0)
    assert caught.value.exit_code == EXIT_CHECKPOINT


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b'{"a": 1', "is damaged"), (b"", "is damaged"), (b"\xff\xfe", "is damaged"), (b"[" * 200_000, "is damaged")],
)
def test_a_damaged_file_is_named(tmp_path, content, reason):
    (tmp_path / "summary.json").write_bytes(content)
    with raises_code("run.damaged", reason, "summary.json"):
        read_json(tmp_path / "summary.json")


def test_steps_of_a_log_count_once(tmp_path):
    write_log(tmp_path, *(("step", {"step": step, "loss": 1.0}) for step in (1, 2, 3)), ("resume", {"step": 1}))
    write_log(tmp_path, ("step", {"step": 2}), ("evaluation", {"step": 9}), ("step", {"step": 4, "warmup": False}))
    with (tmp_path / "events.rank0000.jsonl").open("a") as file:
        file.write('{"event": "step", "time": 1.0, "step": [1]}\n{"event": "step", "time": 1.0, "step": 5')
    assert [num_logged_steps(tmp_path, rank) for rank in (0, 1)] == [4, 0]


def test_an_absent_file_and_a_folder_are_named(tmp_path):
    with raises_code("run.damaged", "run.json"):
        read_json(tmp_path / "run.json")
    (tmp_path / "run.json").mkdir()
    with raises_code("run.damaged", "run.json"):
        read_json(tmp_path / "run.json")


def write_log(folder: Path, *events, rank=0):
    log = EventLog(folder, rank)
    for name, values in events:
        log.add(name, **values)
    log.close()


def test_events_come_back_in_order(tmp_path):
    write_log(tmp_path, ("step", {"step": 1, "loss": math.nan}), ("evaluation", {"step": 1, "scores": {"f1": 0.5}}))
    first, second = read_events(tmp_path)
    assert (first["event"], first["step"], first["loss"]) == ("step", 1, None)
    assert second["scores"] == {"f1": 0.5}
    assert first["time"] <= second["time"]
    assert list(read_events(tmp_path, rank=1)) == []


def test_a_line_end_within_a_text_does_not_end_the_line(tmp_path):
    write_log(tmp_path, ("note", {"text": "one\ntwo\r\u2028three"}))
    assert [event["text"] for event in read_events(tmp_path)] == ["one\ntwo\r\u2028three"]


def test_flushed_events_can_be_read_during_the_run(tmp_path):
    log = EventLog(tmp_path, 0)
    log.add("step", step=1)
    log.flush()
    assert [event["step"] for event in read_events(tmp_path)] == [1]
    log.close()


# "é" is two bytes: the second torn line stops within it.
@pytest.mark.parametrize("torn", [b'{"event": "st', '{"event": "é'.encode()[:-1]])
def test_a_torn_last_line_is_left_out_and_cut_by_the_next_process(tmp_path, torn):
    write_log(tmp_path, ("step", {"step": 1}))
    with (tmp_path / events_file(0)).open("ab") as file:
        file.write(torn)
    assert [event["step"] for event in read_events(tmp_path)] == [1]
    write_log(tmp_path, ("step", {"step": 2}))
    assert [event["step"] for event in read_events(tmp_path)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "why"), [(b'{"step": 1}', "event is missing"), (b"\xc5\x9d\x03\xcf" * 99, "can't decode byte 0xcf")]
)
def test_the_error_of_an_invalid_line_does_not_contain_the_line(tmp_path, line, why):
    (tmp_path / events_file(0)).write_bytes(line + b"\n")
    with raises_code("run.damaged", why, "line 1") as raised:
        list(read_events(tmp_path))
    assert len(str(raised.value)) < len(str(tmp_path)) + 200


def test_a_file_with_only_an_incomplete_line_becomes_empty(tmp_path):
    (tmp_path / events_file(0)).write_bytes(b'{"event"')
    EventLog(tmp_path, 0).close()
    assert (tmp_path / events_file(0)).read_bytes() == b""


def test_steps_that_were_trained_again_count_once(tmp_path):
    first = [("step", {"step": number, "loss": 1.0}) for number in (1, 2, 3, 4)]
    second = [("resume", {"step": 2}), *(("step", {"step": number, "loss": 2.0}) for number in (3, 4, 5))]
    third = [("resume", {"step": 4}), ("step", {"step": 5, "loss": 3.0})]
    write_log(tmp_path, *first)
    write_log(tmp_path, *second)
    write_log(tmp_path, *third)
    events = [(event["event"], event["step"], event.get("loss")) for event in read_events(tmp_path)]
    assert events == [
        ("step", 1, 1.0),
        ("step", 2, 1.0),
        ("resume", 2, None),
        ("step", 3, 2.0),
        ("step", 4, 2.0),
        ("resume", 4, None),
        ("step", 5, 3.0),
    ]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[1]", '"step"', '{"step": 1}', "5", '{"event": "resume"}', "\x00\x00"),
        '{"event": "step", "time": 1.0, "step": 9223372036854775808, "loss": 1.0}',
    ],
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path, line):
    good = json.dumps({"event": "step", "step": 1})
    (tmp_path / events_file(0)).write_text(f"{good}\n{line}\n{good}\n")
    with raises_code("run.damaged", "events.rank0000.jsonl", number=2):
        list(read_events(tmp_path))


def test_damaged_lines_are_deleted_and_the_others_are_kept(tmp_path, caplog):
    lines = [json.dumps({"event": "step", "step": number}) for number in (1, 2, 3)]
    path = tmp_path / events_file(0)
    path.write_text(f"{lines[0]}\n{{\n{lines[1]}\n\x00\n{lines[2]}\n")
    assert repair_events(tmp_path, 0) == 2
    assert [event["step"] for event in read_events(tmp_path)] == [1, 2, 3]
    assert [f"{path}, line {number} is damaged" in caplog.text for number in (1, 2, 3, 4, 5)] == [0, 1, 0, 1, 0]
    before = path.stat().st_mtime_ns
    assert repair_events(tmp_path, 0) == 0
    assert path.stat().st_mtime_ns == before


def test_steps_count_once_also_where_the_event_of_a_resume_was_lost(tmp_path):
    write_log(tmp_path, *(("step", {"step": number, "loss": 1.0}) for number in (1, 2, 3)))
    write_log(tmp_path, *(("step", {"step": number, "loss": 2.0}) for number in (2, 3, 4)))
    events = [(event["step"], event["loss"]) for event in read_events(tmp_path)]
    assert events == [
        (1, 1.0),
        (2, 2.0),
        (3, 2.0),
        (4, 2.0),
    ]


def test_an_evaluation_that_was_repeated_after_a_resume_counts_once(tmp_path):
    write_log(tmp_path, ("step", {"step": 5}), ("checkpoint", {"step": 5}))  # saved on a signal, before the evaluation
    for loss in (1.0, 2.0):
        evaluations = [("evaluation", {"step": 5, "split": split, "loss": loss}) for split in ("validation", "new")]
        write_log(tmp_path, ("resume", {"step": 5}), *evaluations)
    write_log(tmp_path, ("evaluation", {"step": 10, "split": "new", "loss": 3.0}))
    evaluations = [event for event in read_events(tmp_path) if event["event"] == "evaluation"]
    assert [(event["step"], event["split"], event["loss"]) for event in evaluations] == [
        (5, "validation", 2.0),
        (5, "new", 2.0),
        (10, "new", 3.0),
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_an_error_of_the_event_log(tmp_path):
    (tmp_path / events_file(0)).symlink_to("/dev/full")
    log = EventLog.__new__(EventLog)
    log._path, log._listener = tmp_path / events_file(0), None
    log._file = log._path.open("w")
    log.add("step", step=1)
    with raises_code("output.not_writable", "events.rank0000.jsonl"):
        log.flush()
    with raises_code("output.not_writable", "No space left"):
        log.close()


def test_a_listener_is_called_with_each_added_event(tmp_path):
    received = []
    log = EventLog(tmp_path, 0, listener=lambda event, values: received.append((event, values)))
    log.add("step", step=1, loss=math.nan)
    log.add("end", step=1)
    log.close()
    assert [event for event, _ in received] == ["step", "end"]
    assert math.isnan(received[0][1]["loss"])


def test_the_summary_marks_a_finished_run(tmp_path):
    assert not is_finished(tmp_path)
    write_json(tmp_path / "summary.json", {})
    assert is_finished(tmp_path)


def test_the_rank_that_took_longest_over_all_steps_gives_the_time():
    # 1 + 3 = 4 s and 2 + 1 = 3 s: not 2 + 3 s, the sum of each step's slowest.
    assert elapsed_s([{1: 1000, 2: 3000}, {1: 2000, 2: 1000}]) == pytest.approx(4.0)


def test_steps_that_other_ranks_took_are_added():
    # Steps 1 and 2 on two ranks, 4 s; then step 3 of rank 0 alone, 5 s.
    assert elapsed_s([{1: 1000, 2: 3000, 3: 5000}, {1: 2000, 2: 1000}]) == pytest.approx(9.0)
    assert elapsed_s([]) == elapsed_s([{}, {}]) == 0
