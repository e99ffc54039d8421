"""The order and the size of batches."""

import asyncio
import threading
from typing import Any

import pytest
from raised import raises_code

from paratune.serving.access import ServingLimits
from paratune.serving.batcher import AGING_TOKENS_PER_S, Batcher


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rows_of(batch: Any) -> list[str]:
    return [entry.row["text"] for entry in batch]


async def queued(requests: list[tuple[float, list[tuple[str, int]]]], limits: ServingLimits) -> list[list[str]]:
    """Return the batches of requests (arrival, rows as (text, tokens))."""
    clock = Clock()
    batcher = Batcher(lambda rows: [], limits, clock=clock)
    tasks = []
    for arrival, rows in requests:
        clock.now = arrival
        tasks.append(asyncio.create_task(batcher.submit([{"text": text} for text, _ in rows], [n for _, n in rows])))
        await asyncio.sleep(0)
    batches = []
    while batcher.num_queued:
        batches.append(rows_of(batcher.take()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await batcher.close()
    return batches


def test_a_short_request_passes_a_long_one_that_came_a_little_earlier():
    long, short = (0.0, [("long", 400)]), (0.05, [("short", 4)])
    # due: long 0 + 400 / 4000 = 0.1; short 0.05 + 4 / 4000 = 0.051
    assert asyncio.run(queued([long, short], ServingLimits(max_tokens=400))) == [["short"], ["long"]]


def test_a_long_request_is_not_passed_for_ever():
    long, short = (0.0, [("long", 400)]), (0.2, [("short", 4)])
    assert asyncio.run(queued([long, short], ServingLimits(max_tokens=400))) == [["long"], ["short"]]


def test_later_rows_of_a_request_wait_behind_other_clients():
    many = (0.0, [("a", 100), ("b", 100), ("c", 100)])  # due 0.025, 0.05, 0.075
    other = (0.01, [("x", 100)])  # due 0.035
    assert asyncio.run(queued([many, other], ServingLimits(max_tokens=200))) == [["a", "x"], ["b", "c"]]


def test_a_batch_has_at_most_its_tokens_but_at_least_one_row():
    rows = [("a", 500), ("b", 60), ("c", 41), ("d", 1)]
    assert asyncio.run(queued([(0.0, rows)], ServingLimits(max_tokens=100))) == [["a"], ["b"], ["c", "d"]]
    assert AGING_TOKENS_PER_S == 4000


async def _run(num_rows: int, limits: ServingLimits) -> list[int]:
    sizes = []

    def answer(rows: list[Any]) -> list[Any]:
        sizes.append(len(rows))
        return [dict(row) for row in rows]

    batcher = Batcher(answer, limits)
    batcher.start()
    waiting = [batcher.submit([{"text": str(number)}], [10]) for number in range(num_rows)]
    answers = await asyncio.gather(*waiting)
    assert [rows[0]["text"] for rows in answers] == [str(number) for number in range(num_rows)]
    await batcher.close()
    return sizes


def test_requests_that_come_together_are_one_batch_and_a_full_batch_does_not_wait():
    assert asyncio.run(_run(5, ServingLimits(max_wait_s=0.2))) == [5]
    # The limit of tokens is reached, so 1000 s are not waited for.
    assert asyncio.run(asyncio.wait_for(_run(6, ServingLimits(max_wait_s=1000, max_tokens=30)), 60)) == [3, 3]


def test_a_request_that_is_given_up_leaves_the_queue():
    async def give_up() -> int:
        batcher = Batcher(lambda rows: [], ServingLimits(max_queue=2))
        task = asyncio.create_task(batcher.submit([{"text": "a"}, {"text": "b"}], [1, 1]))
        await asyncio.sleep(0)
        with raises_code("serve.queue_full", num_queued=2, max_queue=2):
            await batcher.submit([{"text": "c"}], [1])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return batcher.num_queued

    assert asyncio.run(give_up()) == 0


def test_other_work_has_a_place_in_the_queue_too():
    started, may_end = threading.Event(), threading.Event()

    def explain(row: Any) -> str:
        started.set()
        may_end.wait(60)
        return "because"

    async def explain_twice() -> str:
        batcher = Batcher(lambda rows: [], ServingLimits(max_queue=1))
        first = asyncio.create_task(batcher.run(explain, {}))
        await asyncio.to_thread(started.wait, 60)
        with raises_code("serve.queue_full", num_queued=1, max_queue=1):
            await batcher.run(explain, {})
        may_end.set()
        found = await first
        assert batcher.num_queued == 0
        return found

    assert asyncio.run(explain_twice()) == "because"


def test_a_row_that_fails_fails_its_own_request_alone():
    def predict(rows: list[Any]) -> list[str]:
        if any(row["text"] == "bad" for row in rows):
            raise ValueError("bad row")
        return [row["text"].upper() for row in rows]

    async def answers() -> list[Any]:
        batcher = Batcher(predict, ServingLimits(max_wait_s=0.05))
        batcher.start()
        requests = [["a", "b"], ["c", "bad"], ["d"]]
        tasks = [batcher.submit([{"text": text} for text in texts], [1] * len(texts)) for texts in requests]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.close()
        return found

    first, second, third = asyncio.run(answers())
    assert (first, third) == (["A", "B"], ["D"])
    assert isinstance(second, ValueError)
