"""The page at `/`: one file without requests to other sites, whose style and script are identified by their hashes."""

import base64
import hashlib
from functools import cache
from importlib import resources

from starlette.responses import Response


def page_response() -> Response:
    """Return the page; its headers forbid other scripts, other sites, and being shown inside of another page."""
    content, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(content, headers=headers, media_type="text/html")


@cache
def _page() -> tuple[str, str]:
    """Return the page and its content security policy."""
    style = _read("paratune.reports.page", "style.css") + _read("paratune.serving.page", "page.css")
    script = _read("paratune.serving.page", "page.js")
    content = _read("paratune.serving.page", "index.html").replace("STYLE", style).replace("SCRIPT", script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return content, policy


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
