"""A process's part of a run: the records and messages of a failure."""

from pathlib import Path

import pytest

from paratune.errors import CheckpointError, NotFiniteError
from paratune.records import EventLog, read_events
from paratune.training.run import MAX_MESSAGE, note_failure


def test_the_reason_of_a_failure_is_in_the_event_log(tmp_path: Path):
    events = EventLog(tmp_path, 0)
    note_failure(events, NotFiniteError("step 3: the loss is nan" + "!" * 5000, code="train.not_finite"))
    events.close()
    (event,) = read_events(tmp_path)
    assert (event["event"], event["error"], event["code"]) == ("failure", "NotFiniteError", "train.not_finite")
    assert event["message"].startswith("step 3: the loss is nan")
    assert len(event["message"]) == MAX_MESSAGE


def test_a_full_disk_does_not_hide_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events = EventLog(tmp_path, 0)

    def full(event: str, **values: object) -> None:
        raise CheckpointError("No space left on device", code="output.not_writable")

    monkeypatch.setattr(events, "add", full)
    note_failure(events, ValueError("x"))
    events.close()
