"""Text from files made fit to show: control characters made visible.

Labels, columns, run names and paths come from files that anyone may have written. Nothing of them may act as a colour
code, a new line or a change of direction in a terminal, a log or a page.

Floor 0: standard library only.
"""

import re
from collections.abc import Iterable
from typing import Any

_ACTING = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: ANSI escapes, newlines, bells
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"  # change the direction of text, end a line
    "\ufffe\uffff\ud800-\udfff]"  # not characters; halves of a surrogate pair cannot be written as UTF-8
)


def plain(value: Any) -> str:
    r"""Return `value` as one line of text whose control characters are spelt out: a newline becomes "\n"."""
    return _ACTING.sub(lambda found: repr(found.group())[1:-1], str(value))


def plain_lines(value: Any) -> str:
    """Return `value` as `plain` text that keeps its lines, for messages of several lines."""
    return "\n".join(plain(line) for line in str(value).split("\n"))


def listing(names: Iterable[str], most: int = 20) -> str:
    """Return names with commas between them; of more than `most` the first ones, and the number of the others."""
    all_names = list(names)
    more = f", and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more
