"""Making items ahead: the same items, errors where they belong, and a thread that ends."""

import threading
import time

import pytest

from paratune.data.prefetch import Prefetch


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "paratune-prefetch"]


def test_items_come_in_order_and_the_thread_ends():
    with Prefetch(range(20), depth=3) as items:
        assert list(items) == list(range(20))
        assert list(items) == []
    assert threads() == []


def test_no_more_than_depth_items_are_made_ahead():
    made = []

    def source():
        for number in range(10):
            made.append(number)
            yield number

    with Prefetch(source(), depth=2) as items:
        assert next(items) == 0
        time.sleep(0.3)
        assert len(made) <= 4  # one taken, two waiting, one in the hand of the thread
    assert threads() == []


def test_an_error_is_raised_where_its_item_would_have_come():
    def source():
        yield 1
        raise OSError("no such sample")

    with Prefetch(source()) as items:
        assert next(items) == 1
        with pytest.raises(OSError, match="no such sample"):
            next(items)
    assert threads() == []


def test_leaving_early_ends_the_thread():
    with Prefetch(iter(int, 1)) as items:
        next(items)
    assert threads() == []
    assert list(items) == []


def test_depth_is_at_least_one():
    with pytest.raises(ValueError, match="depth is 0"):
        Prefetch([], depth=0)
