"""Extracts text and title of RTF, Word and OpenDocument files with kreuzberg."""

import re
from typing import Any

import kreuzberg

from paratune.corpus.extract.results import NoText

_ESCAPED = re.compile(r"\\'([0-9a-fA-F]{2})")


def read_office(payload: bytes, mime: str) -> dict[str, str | None] | NoText:
    """Return text and title of a file, or the reason why there is no text."""
    try:
        config = kreuzberg.ExtractionConfig(use_cache=False, output_format="plain", disable_ocr=True)
        extracted = kreuzberg.extract_bytes_sync(payload, mime, config=config)
    except MemoryError:
        raise
    except Exception as error:  # exceptions of kreuzberg and of its parsers
        return NoText("unreadable", " ".join(str(error).split()))
    return {"text": extracted.content, "title": _title(extracted.metadata)}


def warm_up() -> None:
    """Start the threads of kreuzberg, which take address space until the process ends."""
    read_office(b"{\\rtf1 .}", "application/rtf")


def _title(metadata: Any) -> str | None:
    title = metadata.get("title") or (metadata.get("core_properties") or {}).get("title")
    if not isinstance(title, str):
        return None
    # kreuzberg does not decode RTF escapes in a title.
    return _ESCAPED.sub(lambda match: bytes.fromhex(match[1]).decode("windows-1252", "replace"), title)
