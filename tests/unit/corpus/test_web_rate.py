import json
import math
import subprocess
import sys

import pytest
from patience import PATIENCE_S

from paratune.corpus import web
from paratune.corpus.web import LONGEST_HOLD_S, RateLimit

ASK = """
import sys, time
from pathlib import Path
from paratune.corpus.web import RateLimit
limit = RateLimit(Path(sys.argv[1]), 601)
print(time.monotonic())
for _ in range(6):
    limit.wait()
    print(time.monotonic())
"""


def test_processes_share_one_limit(tmp_path):
    # 601 a minute: 0.1 s apart, so that 18 requests of 3 processes take at least 1.7 s.
    command = [sys.executable, "-c", ASK, str(tmp_path / "rate")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    message = [process.communicate(timeout=PATIENCE_S)[0].split() for process in processes]
    # A process may be held up between its turn and its word: what counts is the time since the first one came.
    first = min(float(begin) for begin, *_ in message)
    moments = sorted(float(turn) for _, *turns in message for turn in turns)
    assert len(moments) == 18
    assert all(moment - first >= 0.1 * n for n, moment in enumerate(moments))


class Clock:
    """A clock that only sleeping moves."""

    now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(web.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(web.time, "sleep", clock.sleep)
    return clock


def moments(limit, clock, number):
    result = []
    for _ in range(number):
        limit.wait()
        result.append(clock.now)
    return result


@pytest.fixture
def limit(tmp_path):
    path = tmp_path / "rate"
    limit = RateLimit(path, 250)
    limit._lock.acquire()  # its own waiting must not move the clock
    return limit


def test_no_minute_has_more(limit, clock):
    result = moments(limit, clock, 600)
    for start in result:
        assert sum(start <= item < start + 60 for item in result) <= 250


def test_idleness_saves_nothing_up(limit, clock):
    moments(limit, clock, 2)
    clock.now += 3600
    first, second = moments(limit, clock, 2)
    assert second - first == pytest.approx(60 / 249)


def test_the_archive_can_hold_all_up(limit, clock):
    limit.hold(120)
    assert moments(limit, clock, 1) == [pytest.approx(1120)]


@pytest.mark.parametrize("expected_kept", ["", "[]", json.dumps({"boot": "another", "next_s": 5}), '{"next_s": null}'])
def test_a_file_that_cannot_tell_costs_a_minute(limit, clock, tmp_path, expected_kept):
    (tmp_path / "rate").write_text(expected_kept)
    assert moments(limit, clock, 1) == [pytest.approx(1060)]


@pytest.mark.parametrize("asked_s", [math.inf, 1e300, 2 * LONGEST_HOLD_S])
def test_an_archive_holds_requests_back_for_a_day_at_most(limit, clock, asked_s):
    limit.hold(asked_s)
    assert limit.held_s() == 86_400
    clock.now += 86_400
    assert limit.held_s() == 0
    assert moments(limit, clock, 2) == [pytest.approx(1000 + 86_400), pytest.approx(1000 + 86_400 + 60 / 249)]


def test_a_time_in_the_past_holds_nobody_back(limit, clock):
    limit.hold(-5)
    assert limit.held_s() == 0


@pytest.mark.parametrize("key", ["next_s", "held_s"])
@pytest.mark.parametrize("stored", ["Infinity", "NaN", "1e400", "1" + 400 * "0", "1" + 5000 * "0", "1e9", '"inf"'])
def test_a_stored_time_out_of_range_costs_a_minute_and_is_replaced(limit, clock, tmp_path, monkeypatch, key, stored):
    monkeypatch.setattr(limit, "_boot_id", "now")
    times = {"boot": '"now"', "next_s": "0", "held_s": "0", key: stored}
    (tmp_path / "rate").write_text("{" + ", ".join(f'"{name}": {value}' for name, value in times.items()) + "}")
    assert limit.held_s() == 0
    assert moments(limit, clock, 2) == [pytest.approx(1060), pytest.approx(1060 + 60 / 249)]
    kept_rows = json.loads((tmp_path / "rate").read_text())
    assert max(kept_rows["next_s"], kept_rows["held_s"]) < 1100


def test_moments_that_were_dealt_out_before_are_held_up_too(limit, clock, tmp_path):
    limit.wait()

    def sleep(seconds):
        clock.now += seconds
        if clock.now < 1100:  # meanwhile another is asked to come back later
            limit.hold(120)

    limit.wait(sleep)
    assert clock.now >= 1120
