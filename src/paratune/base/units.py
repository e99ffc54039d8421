"""Formats bytes, durations, rates, counts and times for readers. None, NaN and infinities are "n/a"."""

import math
import re
from datetime import UTC, datetime

KIB = 2**10
MIB = 2**20
GIB = 2**30
NOT_AVAILABLE = "n/a"
_COUNT = re.compile(r"[0-9]{1,10}")


def parse_count(text: str | None) -> int | None:
    """Return the whole number in a text such as an environment variable, at most ten digits; None for other text."""
    stripped = (text or "").strip()
    return int(stripped) if _COUNT.fullmatch(stripped) else None


def utc_now() -> str:
    """Return the present time as records have it: 2026-11-30T05:53:00+00:00."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def format_bytes(num_bytes: float | None) -> str:
    """Return bytes in binary units with three significant digits, or all digits from 1000 on: 1536 -> "1.5 KiB"."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return NOT_AVAILABLE
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # 1023.6 of a unit, which rounds to 1024, is 1 of the next unit.
        if abs(num_bytes) >= size - size / KIB / 2:
            amount = num_bytes / size
            return f"{amount:.3g} {unit}" if abs(amount) < 999.5 else f"{amount:.0f} {unit}"
    return f"{num_bytes:.0f} B"


def format_duration(seconds: float | None) -> str:
    """Return seconds as "0.42 s", "12.3 s", "3 min 05 s" or "2 h 07 min"."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    # At these limits rounding reaches the next form: 9.996 s is "10.0 s", not "10.00 s".
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, no exponent between 1e-4 and 1e15."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def format_as(value: float | None, form: str) -> str:
    """Return a number in a format of Python, such as ".4f"."""
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{value:{form}}"


def format_count(value: float | None) -> str:
    """Return a count with thousands separators."""
    return format_as(value, ",.0f")


def format_share(value: float | None) -> str:
    """Return a share of one as per cent: 0.123 -> "12.3%"."""
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun: "1 run", "2 runs"; `plural` only where it is not `singular` with an s."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def percent_change(value: float | None, base: float | None) -> float | None:
    """Return the difference of `value` from `base` in per cent of `base`; None for None, or for `base` <= 0."""
    return None if value is None or base is None or base <= 0 else 100 * (value - base) / base


def format_percent(percent: float | None) -> str:
    """Return a change in per cent with its sign: "+3.4%", "−21.4%", "0.0%"."""
    if percent is None or not math.isfinite(percent):
        return NOT_AVAILABLE
    text = f"{percent:+,.1f}%".replace("-", "−")
    return text[1:] if text[1:] == "0.0%" else text
