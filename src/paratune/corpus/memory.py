"""What a process of a corpus keeps of memory. Standard library only: to be imported before Arrow is."""

import os


def save_memory() -> None:
    """Have Arrow take memory from the C library, to which goes back what is freed; its own pool keeps some 40 MiB.

    To be called before Arrow is imported; processes that are started do it too. A user's choice stays.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
