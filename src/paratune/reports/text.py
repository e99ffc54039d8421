"""Text from records, made safe for each format: `paratune.base.text.plain`, and the escapes of the format.

Labels, run names, columns and paths come from files that anyone may have written. Nothing of them may act: not as
markup in a page, not as a formula in a spreadsheet, not as a colour code in a terminal.
"""

import html
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from paratune.base.text import plain

GENERATOR = "paratune report"  # name that the files of reports carry


def shorten(value: Any, width: int) -> str:
    """Return `plain` text of at most `width` characters, with an ellipsis in the middle if it was longer."""
    text, head = plain(value), width // 2
    return text if len(text) <= width else f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def shorten_all(values: Sequence[Any], width: int) -> list[str]:
    """Return each value shortened; without the common prefix if two would look equal."""
    texts = [plain(value) for value in values]
    short = [shorten(text, width) for text in texts]
    shared = len(commonprefix(texts))  # noqa: RUF071 - characters are meant, not folders
    if len(set(short)) == len(set(texts)) or not shared:
        return short
    return [shorten(f"…{text[shared:]}", width) for text in texts]


class Html(str):
    """Text that is HTML markup; only modules that draw figures and pages create it, from trusted strings."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the text itself, which Jinja does not escape then."""
        return self


def escape(value: Any) -> str:
    """Return `value` as text of a page."""
    return html.escape(plain(value), quote=True)
