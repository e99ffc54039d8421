"""Reads files of /proc and /sys, and the output of programs; None on failure."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the content of a file; None where it is missing or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def command_output(*words: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the output of a command, without the last line end; None when it is missing, fails or takes over 10 s."""
    try:
        result = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return result.stdout.rstrip("\n")
