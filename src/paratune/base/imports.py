"""Importing large packages, and making reports of many records, without looking for garbage meanwhile.

Floor 0: standard library only.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Hold Python's garbage collector back while the block imports.

    torch and transformers make a million objects that stay. The collector would look through all of them again and
    again, and find next to nothing: 900 times, a tenth of the time of these imports. What there is when modules were
    imported is left out of later collections as well (`gc.freeze`); objects in no cycle are freed as ever. Garbage of
    the time before is collected first, or it would be kept for ever; that of the imports themselves is (12,000 small
    objects of 700,000), for to find it takes as long as all that is saved here. For work that makes garbage there is
    `collector_off`.
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


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch Python's garbage collector off for the block, and leave nothing out of later collections.

    The records, tables and figures of a report of 1,000 runs stay until it is written. The collector took a tenth of
    its time; what it would free is a tenth of the peak, and later collections free it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
