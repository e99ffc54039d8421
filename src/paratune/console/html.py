"""HTML of results for notebooks; all text is escaped."""

from collections.abc import Iterable
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console

from paratune.base.units import format_number


def html_table(heading: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values below a heading."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(_text(value))}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{escape(heading)}</caption><tbody>{cells}</tbody></table>"


def html_of(renderable: Any, width: int = 110) -> str:
    """Return the output of the command line, as HTML in fixed width."""
    console = Console(file=StringIO(), record=True, width=width, force_jupyter=False)
    console.print(renderable)
    return f"<pre>{escape(console.export_text())}</pre>"


def _text(value: Any) -> str:
    return format_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
