"""Makes control characters in text from files visible.

Labels, columns, run names and paths come from files of any origin. They must not act as a colour code, a new line or a
change of direction in a terminal, a log or a page.
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
    r"""Return `value` as one line of text with escaped control characters: a newline becomes "\n"."""
    return _ACTING.sub(lambda match: repr(match.group())[1:-1], str(value))


def plain_lines(value: Any) -> str:
    """Return `value` with escaped control characters in each line, for messages of several lines."""
    return "\n".join(plain(line) for line in str(value).split("\n"))


def listing(names: Iterable[str], most: int = 20, width: int = 1_000) -> str:
    """Return names with commas between them; of more than `most` names, or of long ones, the first ones and the number
    of the others: at most 200 characters of a name, and `width` of all."""
    all_names = list(names)
    shown = [name[:200] for name in all_names[:most]]
    while len(", ".join(shown)) > width:
        shown.pop()
    more = f", and {len(all_names) - len(shown)} more" if len(all_names) > len(shown) else ""
    return ", ".join(shown) + more
