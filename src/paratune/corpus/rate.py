"""Limits the requests per minute of all processes of this machine, with a file.

Arquivo.pt permanently blocks addresses that exceed its limit, so that no minute may ever have more requests.
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from paratune.base.atomic import replace_file

WINDOW_S = 60.0
LONGEST_HOLD_S = 86_400.0
"""One day: the longest time for which an archive can stop requests. A longer Retry-After counts as one day."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RateLimit:
    """Assigns evenly spaced times for requests to all processes that use the same file."""

    def __init__(self, path: Path, per_minute: int) -> None:
        """Store the parameters.

        Args:
            path: The file, in an existing folder; all processes must use the same limit.
            per_minute: Maximum number of requests in any 60 seconds, at least 2.
        """
        if per_minute < 2:
            raise ValueError(f"per_minute is {per_minute}; allowed: 2 or more")
        self.path, self._lock = path, FileLock(path.with_name(f"{path.name}.lock"))
        # With this spacing a closed interval of 60 seconds has at most `per_minute` requests.
        self._spacing_s = WINDOW_S / (per_minute - 1)

    def wait(self, sleep: Callable[[float], object] | None = None) -> None:
        """Wait until a request may be sent; `sleep` replaces `time.sleep` and may raise to stop waiting."""
        is_held = True
        while is_held:
            with self._lock:
                next_s, held_s = self._read()
                moment = max(time.monotonic(), next_s, held_s)
                # Saved before use: a process that is killed here loses its turn, and the limit is not exceeded.
                self._save(moment + self._spacing_s, held_s)
            while (left := moment - time.monotonic()) > 0:
                (sleep or time.sleep)(left)
            # The archive may have asked to wait since this time was assigned.
            is_held = self._read()[1] > moment

    def hold(self, seconds: float) -> None:
        """Stop all requests for some seconds, as the archive asked for (Retry-After).

        Args:
            seconds: At most `LONGEST_HOLD_S` counts; 0 and less have no effect.

        Raises:
            ValueError: `seconds` is not a number.
        """
        if math.isnan(seconds):
            raise ValueError("seconds is NaN; allowed: a number")
        with self._lock:
            next_s, held_s = self._read()
            self._save(next_s, max(time.monotonic() + min(seconds, LONGEST_HOLD_S), held_s))

    def held_s(self) -> float:
        """Return the seconds for which no request may be sent."""
        return max(0.0, self._read()[1] - time.monotonic())

    def _read(self) -> tuple[float, float]:
        """Return the earliest time of the next request, and the time until which the archive asked to wait.

        Times are of the monotonic clock. If the file is damaged, the next request must wait for a whole window.

        A file with a time that is NaN, infinite or too far ahead counts as damaged; the next request replaces it.
        """
        try:
            values: Any = json.loads(self.path.read_bytes())
            if values["boot"] == _boot_id():
                next_s, held_s = float(values["next_s"]), float(values["held_s"])
                # A hold, and the requests after it. Comparisons with NaN are false.
                latest_s = time.monotonic() + 2 * LONGEST_HOLD_S
                if next_s <= latest_s and held_s <= latest_s:
                    return next_s, held_s
        except FileNotFoundError:
            return 0.0, 0.0
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # truncated by a power cut, or of another program
        return time.monotonic() + WINDOW_S, 0.0

    def _save(self, next_s: float, held_s: float) -> None:
        with replace_file(self.path, is_durable=False) as temporary:  # its times are invalid after a reboot
            temporary.write_text(json.dumps({"boot": _boot_id(), "next_s": next_s, "held_s": held_s}))


def _boot_id() -> str:
    """Return the id of the boot, to which the monotonic clock belongs; empty if unknown."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
