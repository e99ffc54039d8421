"""Numbers as people read them: bytes, durations, rates, counts. None is "n/a" everywhere.

Floor 0: standard library only.
"""

KIB = 2**10
MIB = 2**20
GIB = 2**30
NOT_AVAILABLE = "n/a"


def format_bytes(num_bytes: float | None) -> str:
    """Return bytes in binary units with three significant digits: 1536 -> "1.5 KiB"."""
    if num_bytes is None:
        return NOT_AVAILABLE
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.3g} {unit}" if num_bytes / size < 1000 else f"{num_bytes / size:.0f} {unit}"
    return f"{num_bytes:.0f} B"


def format_duration(seconds: float | None) -> str:
    """Return seconds as "0.42 s", "12.3 s", "3 min 05 s" or "2 h 07 min"."""
    if seconds is None:
        return NOT_AVAILABLE
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, no exponent between 1e-4 and 1e15."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, int) or float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def format_share(value: float | None) -> str:
    """Return a share of one as per cent: 0.123 -> "12.3%"."""
    return NOT_AVAILABLE if value is None else f"{100 * value:.1f}%"
