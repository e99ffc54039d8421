"""Text and title of RTF, Word and OpenDocument files, which kreuzberg reads."""

import re
from typing import Any

import kreuzberg

from paratune.corpus.extract.found import Refused

_ESCAPED = re.compile(r"\\'([0-9a-fA-F]{2})")


def read_office(payload: bytes, mime: str) -> dict[str, str | None] | Refused:
    """Return text and title of a file of one of the kinds that kreuzberg knows."""
    try:
        found = kreuzberg.extract_bytes_sync(payload, mime, config=_config())
    except MemoryError:
        raise
    except Exception as error:  # kreuzberg's own, and those of its parsers
        return Refused("unreadable", " ".join(str(error).split()))
    return {"text": found.content, "title": _title(found.metadata)}


def warm_up() -> None:
    """Start the threads of kreuzberg, which take address space as long as the process lives."""
    read_office(b"{\\rtf1 .}", "application/rtf")


def _config() -> Any:
    return kreuzberg.ExtractionConfig(use_cache=False, output_format="plain", disable_ocr=True)


def _title(metadata: Any) -> str | None:
    title = metadata.get("title") or (metadata.get("core_properties") or {}).get("title")
    if not isinstance(title, str):
        return None
    # kreuzberg leaves the escapes of RTF in a title as they are.
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1]).decode("windows-1252", "replace"), title)
