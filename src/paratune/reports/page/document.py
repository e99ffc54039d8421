"""A report as one HTML page that needs no other file: no request, no external font, one inline script."""

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from paratune import __version__
from paratune.base.text import listing, plain
from paratune.base.units import format_share
from paratune.reports.document import STRONG, ReportDocument, signed
from paratune.reports.figures import canvas
from paratune.reports.text import GENERATOR, Html

_SIGNS = {True: ("good", "shown"), False: ("bad", "a problem"), None: ("open", "cannot tell")}
"""Class and words for screen readers of the sign of a statement."""


def document_html(document: ReportDocument) -> str:
    """Return a report as a page, by the template page.html."""
    style, script = Html(_file("style.css")), Html(_file("page.js"))
    # The policy of the page allows one script, by its SHA-256, and protects readers if the escaping of a text fails.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    missing = canvas.can_draw()
    page: str = _template().render(document=document, style=style, script=script, digest=digest, missing=missing)
    return page


@cache
def _template() -> Any:
    from jinja2 import Environment  # imported here: only pages need it

    environment = Environment(
        autoescape=True,
        keep_trailing_newline=True,
        # Texts are made plain, then escaped; `Html` is neither.
        finalize=lambda value: value if hasattr(value, "__html__") else plain(value),
    )
    environment.globals |= {
        "generator": GENERATOR, "signs": _SIGNS, "strong": STRONG, "signed": signed, "format_share": format_share,
        "svg_of": canvas.page_figure, "kind_of": lambda part: type(part).__name__, "listing": listing,
    }  # fmt: skip
    return environment.from_string(_file("page.html"))


def _file(name: str) -> str:
    return resources.files("paratune.reports.page").joinpath(name).read_text(encoding="utf-8")


def made_by(source: str = "") -> str:
    """Return the sentence that names the version of paratune and the source of the report."""
    return f"Made by paratune {__version__}{f' from {source}' if source else ''}."
