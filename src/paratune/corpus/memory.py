"""Limits the memory of corpus processes. Standard library only, so that it can be imported before Arrow."""

import os


def save_memory() -> None:
    """Make Arrow allocate memory with malloc, which returns freed memory; its own pool keeps some 40 MiB.

    Call it before Arrow is imported; child processes inherit it. A value that the user has set is kept.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
