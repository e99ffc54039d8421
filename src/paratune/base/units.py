"""Numbers as people read them: bytes, durations, rates, counts. None (and NaN, and infinity) is "n/a" everywhere.

Floor 0: standard library only.
"""

import math
import re

KIB = 2**10
MIB = 2**20
GIB = 2**30
NOT_AVAILABLE = "n/a"
_COUNT = re.compile(r"[0-9]{1,10}")


def parse_count(text: str | None) -> int | None:
    """Return the whole number that a text from outside is, such as an environment variable; 0 to 9,999,999,999.

    None for any other text: no ASCII digits alone, or more than ten of them, which no count, identifier or port has.
    """
    stripped = (text or "").strip()
    return int(stripped) if _COUNT.fullmatch(stripped) else None


def format_bytes(num_bytes: float | None) -> str:
    """Return bytes in binary units with three significant digits: 1536 -> "1.5 KiB"; from 1000 on all digits."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return NOT_AVAILABLE
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # What would be written as 1024 of the next smaller unit is 1 of this one.
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
    # The limits are where rounding reaches the next form: 9.996 s is "10.0 s", not "10.00 s".
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


def format_share(value: float | None) -> str:
    """Return a share of one as per cent: 0.123 -> "12.3%"."""
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def counted(count: int, one: str, several: str = "") -> str:
    """Return a count with its noun: "1 run", "2 runs", "1,000 runs"; `several` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def percent_change(value: float | None, base: float | None) -> float | None:
    """Return by how many per cent `value` is above `base`; None where that says nothing: unknown, or `base` <= 0."""
    return None if value is None or base is None or base <= 0 else 100 * (value - base) / base


def format_percent(percent: float | None) -> str:
    """Return a change in per cent with its sign: "+3.4%", "−21.4%", "0.0%"."""
    if percent is None or not math.isfinite(percent):
        return NOT_AVAILABLE
    text = f"{percent:+,.1f}%".replace("-", "−")
    return text[1:] if text[1:] == "0.0%" else text
