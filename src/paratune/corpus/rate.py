"""One limit of requests a minute for all processes of this machine, kept in a file.

Arquivo.pt blocks addresses that ask more often than it allows, for good: what counts is that no minute ever has more.
"""

import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from paratune.base.atomic import replace_file

WINDOW_S = 60.0
LONGEST_HOLD_S = 86_400.0
"""One day: the longest time for which an archive can hold requests back. A longer Retry-After counts as one day."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class _Kept:
    """What the file holds. Times are those of the monotonic clock."""

    next_s: float = 0.0
    """The first free moment."""
    held_s: float = 0.0
    """Until when nobody may ask."""
    said_s: dict[str, float] = field(default_factory=dict)
    """By the process of a command, until when a wait has been said that its processes share."""


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
        self.path, self._lock = path, FileLock(path.with_name(f"{path.name}.lock"))
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
                kept = self._read()
                moment = max(time.monotonic(), kept.next_s, kept.held_s)
                # Kept before it is used: who is killed here loses a request, and sends none too many.
                self._keep(replace(kept, next_s=moment + self._spacing_s))
            while (left := moment - time.monotonic()) > 0:
                (sleep or time.sleep)(left)
            # The archive may have asked everyone to wait since this moment was dealt out.
            is_held = self._read().held_s > moment

    def hold(self, seconds: float) -> None:
        """Let nobody send a request for so many seconds, which the archive asked for (Retry-After).

        Args:
            seconds: More than `LONGEST_HOLD_S`, also infinity, count as `LONGEST_HOLD_S`; 0 and less hold nobody.

        Raises:
            ValueError: `seconds` is not a number.
        """
        if math.isnan(seconds):
            raise ValueError("seconds is NaN; allowed: a number")
        with self._lock:
            kept = self._read()
            until_s = time.monotonic() + min(seconds, LONGEST_HOLD_S)
            self._keep(replace(kept, held_s=max(until_s, kept.held_s)))

    def held_s(self) -> float:
        """Return for how many seconds nobody may send a request."""
        return max(0.0, self._read().held_s - time.monotonic())

    def is_first_to_say(self, seconds: float) -> bool:
        """Return whether no process of this command has said yet that it waits, and take the word for so many seconds.

        Processes that a command starts with multiprocessing are those of the command.
        """
        parent = multiprocessing.parent_process()
        command, now = str(os.getpid() if parent is None else parent.pid), time.monotonic()
        with self._lock:
            kept = self._read()
            said = {key: until for key, until in kept.said_s.items() if until > now}
            if command in said:
                return False
            self._keep(replace(kept, said_s={**said, command: now + seconds}))
        return True

    def _read(self) -> _Kept:
        """Return what is kept; where the file cannot tell, the first free moment is a whole window away.

        A time that is NaN, infinite or further away than a request can be dealt makes the whole file count as damaged:
        the next request replaces it.
        """
        try:
            kept: Any = json.loads(self.path.read_bytes())
            if kept["boot"] == _boot_id():
                said = {key: float(until) for key, until in dict(kept.get("said_s", {})).items()}
                times = _Kept(float(kept["next_s"]), float(kept["held_s"]), said)
                # A hold, and the requests that are dealt out behind it. No comparison with NaN holds.
                latest_s = time.monotonic() + 2 * LONGEST_HOLD_S
                if all(until_s <= latest_s for until_s in (times.next_s, times.held_s, *said.values())):
                    return times
        except FileNotFoundError:
            return _Kept()
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # torn by a power cut, or of another program
        return _Kept(next_s=time.monotonic() + WINDOW_S)

    def _keep(self, kept: _Kept) -> None:
        with replace_file(self.path, is_durable=False) as temporary:  # the clock in it ends with the machine's boot
            temporary.write_text(json.dumps({"boot": _boot_id(), **vars(kept)}))


def _boot_id() -> str:
    """Return what the monotonic clock began with; empty where the system does not tell."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
