"""Reading an event log while it grows: torn lines, other files of the same name, long logs."""

import json
from pathlib import Path

from paratune.watch import tail
from paratune.watch.tail import EventTail


def line(number: int) -> str:
    return json.dumps({"event": "step", "step": number}) + "\n"


def steps(events: list[dict]) -> list[int]:
    return [event["step"] for event in events]


def test_read_returns_new_events_and_incomplete_lines_once_complete(tmp_path: Path):
    path = tmp_path / "events"
    log = EventTail(path)
    assert log.read() == ([], False)
    path.write_text(line(1) + line(2)[:10])
    assert (steps(log.read()[0]), log.read()[0]) == ([1], [])
    path.write_text(line(1) + line(2) + line(3))
    assert steps(log.read()[0]) == [2, 3]
    assert log.num_damaged == 0


def test_a_torn_line_that_a_resumed_run_cuts_off_is_no_new_file(tmp_path: Path):
    path = tmp_path / "events"
    log = EventTail(path)
    path.write_text(line(1) + line(2)[:10])
    log.read()
    with path.open("r+") as file:  # as records.EventLog does
        file.truncate(len(line(1)))
    assert log.read() == ([], False)


def test_a_shorter_or_replaced_file_is_read_from_its_beginning(tmp_path: Path):
    path = tmp_path / "events"
    log = EventTail(path)
    path.write_text(line(1) + line(2))
    log.read()
    path.write_text(line(7))
    assert log.read() == ([json.loads(line(7))], True)
    (tmp_path / "other").write_text(line(8) + line(9) + line(10))
    (tmp_path / "other").replace(path)
    events, is_new = log.read()
    assert (steps(events), is_new) == ([8, 9, 10], True)
    path.unlink()
    assert log.read() == ([], True)


def test_lines_that_are_not_events_are_counted_and_skipped(tmp_path: Path):
    path = tmp_path / "events"
    path.write_bytes(
        line(1).encode() + b'\xff\n{"step": 2}\n[1]\n3\n{"event": 4}\n' + b"[" * 100_000 + b"\n" + line(5).encode()
    )
    log = EventTail(path)
    assert steps(log.read()[0]) == [1, 5]
    assert log.num_damaged == 6


def test_of_a_long_log_all_is_read_but_most_of_the_early_steps(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tail, "RECENT_BYTES", 100 * len(line(1000)))
    path = tmp_path / "events"
    other = json.dumps({"event": "evaluation", "step": 1}) + "\n"
    path.write_text(other + "".join(line(number) for number in range(1000, 9000)))
    events, _ = EventTail(path).read()
    assert events[0]["event"] == "evaluation"
    assert steps(events[-100:]) == list(range(8900, 9000))
    assert tail.SAMPLED_STEPS * 0.9 < len(events) - 101 <= tail.SAMPLED_STEPS * 1.1
