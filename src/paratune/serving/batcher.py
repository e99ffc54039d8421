"""Collects rows of concurrent requests into batches.

The order of the queue: a row is due at its arrival plus its tokens, and those of the rows before it in its request,
divided by `AGING_TOKENS_PER_S`. The row that is due first is computed first. So a short request passes a long one
that came little earlier, and a long one waits at most its own tokens / `AGING_TOKENS_PER_S` longer than by arrival.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from paratune.errors import DataError
from paratune.serving.access import ServingLimits

AGING_TOKENS_PER_S = 4000.0
Row = Any
"""What the batcher's function takes: rows with their tokens."""
Answer = Any
"""What it returns for each row."""


@dataclass(order=True)
class _Waiting:
    """A row in the queue."""

    due: float
    number: int
    row: Row = field(compare=False)
    num_tokens: int = field(compare=False)
    arrived: float = field(compare=False)
    answer: "asyncio.Future[Answer]" = field(compare=False)


class Batcher:
    """A queue of rows, and the task that computes them in a thread, one batch at a time."""

    def __init__(
        self,
        predict: Callable[[list[Row]], list[Answer]],
        limits: ServingLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty queue.

        Args:
            predict: Returns an answer for each row; called in one thread.
            limits: Of the queue and of batches.
            clock: Time in seconds.
        """
        self._predict = predict
        self._limits = limits
        self._clock = clock
        self._queue: list[_Waiting] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paratune-predict")
        self._task: asyncio.Task[None] | None = None
        self._num_others = 0

    @property
    def num_queued(self) -> int:
        """Rows that wait, or are in other work; those of the current batch are not counted."""
        return len(self._queue) + self._num_others

    def start(self) -> None:
        """Start the task; call it in the event loop."""
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Stop the task; rows that wait get no answer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiting in self._queue:
            waiting.answer.cancel()
        self._thread.shutdown(wait=False)

    async def submit(self, rows: Sequence[Row], num_tokens: Sequence[int]) -> list[Answer]:
        """Return the answers to the rows of a request, in their order.

        Args:
            rows: Rows, which `predict` takes.
            num_tokens: Tokens of each row.

        Raises:
            DataError: The queue is full.
        """
        self._require_place(len(rows))
        loop, now = asyncio.get_running_loop(), self._clock()
        waiting, total = [], 0
        for row, count in zip(rows, num_tokens, strict=True):
            total += count
            due = now + total / AGING_TOKENS_PER_S
            waiting.append(_Waiting(due, next(self._numbers), row, count, now, loop.create_future()))
        for entry in waiting:
            heapq.heappush(self._queue, entry)
        self._changed.set()
        try:
            return list(await asyncio.gather(*(entry.answer for entry in waiting)))
        finally:
            # Of a request that was cancelled or failed, rows that still wait are not computed.
            abandoned = {entry.number for entry in waiting}
            if any(entry.number in abandoned for entry in self._queue):
                self._queue = [entry for entry in self._queue if entry.number not in abandoned]
                heapq.heapify(self._queue)

    async def run(self, work: Callable[[Row], Any], row: Row) -> Any:
        """Return the result of other work with a row, in the thread of the batches and between two of them.

        Raises:
            DataError: The queue is full.
        """
        self._require_place(1)
        self._num_others += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, row)
        finally:
            self._num_others -= 1

    def _require_place(self, num_rows: int) -> None:
        """Raise DataError when rows are more than the queue takes."""
        if self.num_queued + num_rows > self._limits.max_queue:
            raise DataError(
                f"the queue has {self.num_queued} of at most {self._limits.max_queue} rows, and the request "
                f"{num_rows}; try again later",
                code="serve.queue_full",
                num_queued=self.num_queued,
                max_queue=self._limits.max_queue,
            )

    def take(self) -> list[_Waiting]:
        """Remove the next batch from the queue: rows in the order in which they are due, up to the limit of tokens."""
        batch: list[_Waiting] = []
        num_tokens = 0
        while self._queue and (not batch or num_tokens + self._queue[0].num_tokens <= self._limits.max_tokens):
            batch.append(heapq.heappop(self._queue))
            num_tokens += batch[-1].num_tokens
        return batch

    async def _work(self) -> None:
        while True:
            await self._wait_for_batch()
            batch = self.take()
            if batch:
                await self._compute(batch)

    async def _wait_for_batch(self) -> None:
        """Wait for rows, and then until they fill a batch or the oldest has waited `max_wait_s`."""
        while True:
            # Cleared before the queue is read: rows that arrive after that set it again.
            self._changed.clear()
            remaining = None
            if self._queue:
                oldest = min(entry.arrived for entry in self._queue)
                remaining = oldest + self._limits.max_wait_s - self._clock()
                if remaining <= 0 or sum(entry.num_tokens for entry in self._queue) >= self._limits.max_tokens:
                    return
            try:
                await asyncio.wait_for(self._changed.wait(), remaining)
            except TimeoutError:
                return

    async def _compute(self, batch: list[_Waiting]) -> None:
        """Set the answers of a batch. After an error its halves are computed, so that only rows that fail have it."""
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._predict, [entry.row for entry in batch])
        except Exception as error:
            if len(batch) > 1:
                half = len(batch) // 2
                await self._compute(batch[:half])
                await self._compute(batch[half:])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(answer)
