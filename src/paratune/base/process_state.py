"""The state of a process of this machine, as Linux tells it.

Source: proc_pid_stat(5): the state is the first field behind the name of the program, which stands in brackets.
"""

from pathlib import Path


def read_state(stat: Path) -> str | None:
    """Return the letter for the state of a process or thread; None where there is none, or the system does not tell.

    Args:
        stat: Its file, /proc/PID/stat or /proc/PID/task/THREAD/stat.
    """
    try:
        return stat.read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def is_running(pid: int) -> bool:
    """Return whether a process of this machine runs; one that has ended and that nobody has waited for does not."""
    return read_state(Path("/proc", str(pid), "stat")) not in (None, "Z", "X")
