"""Reads the state of a process of this machine from Linux.

Source: proc_pid_stat(5): the state is the first field after the name of the program, which is in brackets.
"""

from pathlib import Path


def read_state(stat: Path) -> str | None:
    """Return the letter for the state of a process or thread; None where it does not exist or the system has no /proc.

    Args:
        stat: Its file, /proc/PID/stat or /proc/PID/task/THREAD/stat.
    """
    try:
        return stat.read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def is_running(pid: int) -> bool:
    """Return whether a process of this machine runs; a zombie does not run."""
    return read_state(Path("/proc", str(pid), "stat")) not in (None, "Z", "X")
