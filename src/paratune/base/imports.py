"""Switches Python's garbage collector off for imports of large packages."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off_for_imports() -> Iterator[None]:
    """Switch Python's garbage collector off while the block imports.

    torch and transformers create a million objects that are never freed. The collector would search them 900 times,
    for a tenth of the time of these imports. After new imports, all present objects are also excluded from later
    collections (`gc.freeze`); objects without cycles are still freed by their reference count. Garbage from before the
    block is collected first, because it would stay otherwise; that of the imports stays (12,000 small objects of
    700,000): a collection takes as long as all the time saved.
    """
    was_enabled, num_modules = gc.isenabled(), len(sys.modules)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules:
            gc.freeze()
        if was_enabled:
            gc.enable()
