"""Making the next items in a background thread while the present one is used.

Floor 3, without torch. Batches cost a tenth of a millisecond, so this pays only for slow sources; the time that the
consumer waits is the time that is measured as get_batch.
"""

import queue
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOK_S = 0.1
"""How often the thread looks whether it is still wanted."""


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    pass


class Prefetch(Iterator[T], Generic[T]):
    """Iterates over `items`, up to `depth` of them made ahead; use it in a `with` block, which ends the thread.

    An exception in `items` is raised by the `next` that would have returned that item.
    """

    def __init__(self, items: Iterable[T], *, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"depth is {depth}; at least 1 item must be made ahead")
        self._queue: queue.Queue[T | _Failed | _End] = queue.Queue(maxsize=depth)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(items,), name="paratune-prefetch", daemon=True)
        self._thread.start()

    def _fill(self, items: Iterable[T]) -> None:
        try:
            for item in items:
                if not self._put(item):
                    return
            self._put(_End())
        except BaseException as error:
            self._put(_Failed(error))

    def _put(self, item: T | _Failed | _End) -> bool:
        while not self._is_closed.is_set():
            try:
                self._queue.put(item, timeout=_LOOK_S)
                return True
            except queue.Full:
                continue
        return False

    def __next__(self) -> T:
        if self._is_closed.is_set():
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, _End):
            self.close()
            raise StopIteration
        if isinstance(item, _Failed):
            self.close()
            raise item.error
        return item

    def close(self) -> None:
        """End the thread and drop what was made ahead; may be called twice."""
        self._is_closed.set()
        self._thread.join()

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
