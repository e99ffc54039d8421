"""One limit of requests a minute for all processes of this machine, kept in a file.

Arquivo.pt blocks addresses that ask more often than it allows, for good: what counts is that no minute ever has more.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

WINDOW_S = 60.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RateLimit:
    """Deals moments for requests out, evenly spaced, to everyone who names the same file."""

    def __init__(self, path: Path, per_minute: int) -> None:
        """Take part in a limit.

        Args:
            path: The file, in a folder that exists; all processes must say the same limit.
            per_minute: Most requests in any 60 seconds, at least 2.
        """
        if per_minute < 2:
            raise ValueError(f"per_minute is {per_minute}; allowed: 2 or more")
        self._path, self._lock = path, FileLock(path.with_name(f"{path.name}.lock"))
        # Of moments so far apart no 60 seconds hold more than `per_minute`, the first and the last one included.
        self._spacing_s = WINDOW_S / (per_minute - 1)

    def wait(self, sleep: Callable[[float], object] | None = None) -> None:
        """Return when a request may be sent.

        Args:
            sleep: Instead of `time.sleep`; may raise, to end the waiting.
        """
        is_held = True
        while is_held:
            with self._lock:
                next_s, held_s = self._read()
                moment = max(time.monotonic(), next_s, held_s)
                # Kept before it is used: who is killed here loses a request, and sends none too many.
                self._keep(moment + self._spacing_s, held_s)
            while (left := moment - time.monotonic()) > 0:
                (sleep or time.sleep)(left)
            # The archive may have asked everyone to wait since this moment was dealt out.
            is_held = self._read()[1] > moment

    def hold(self, seconds: float) -> None:
        """Let nobody send a request for so many seconds, which the archive asked for (Retry-After)."""
        with self._lock:
            next_s, held_s = self._read()
            self._keep(next_s, max(time.monotonic() + seconds, held_s))

    def held_s(self) -> float:
        """Return for how many seconds nobody may send a request."""
        return max(0.0, self._read()[1] - time.monotonic())

    def _read(self) -> tuple[float, float]:
        """Return the first free moment of the monotonic clock, and until when nobody may ask.

        The first is a whole window away when the file cannot tell.
        """
        try:
            kept: Any = json.loads(self._path.read_bytes())
            if kept["boot"] == _boot_id():
                return float(kept["next_s"]), float(kept["held_s"])
        except FileNotFoundError:
            return 0.0, 0.0
        except (ValueError, KeyError, TypeError):
            pass  # torn by a power cut, or of another program
        return time.monotonic() + WINDOW_S, 0.0

    def _keep(self, next_s: float, held_s: float) -> None:
        aside = self._path.with_name(f"{self._path.name}.tmp")
        aside.write_text(json.dumps({"boot": _boot_id(), "next_s": next_s, "held_s": held_s}))
        aside.replace(self._path)


def _boot_id() -> str:
    """Return what the monotonic clock began with; empty where the system does not tell."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
