"""JSON text of reports."""

import json
from collections.abc import Mapping
from typing import Any

from paratune.records import finite


def json_text(parts: Mapping[str, Any]) -> str:
    """Return ASCII JSON text with a line for each item of a list; full indentation takes several times as long."""

    def text(value: Any) -> str:
        try:
            return json.dumps(value, allow_nan=False, default=str)
        except ValueError:  # NaN or infinity; searching all values first takes longer than writing them
            return json.dumps(finite(value), allow_nan=False, default=str)

    lines = []
    for key, value in parts.items():
        items = ",\n  ".join(map(text, value)) if isinstance(value, list) else ""
        lines.append(f" {text(key)}: [\n  {items}\n ]" if items else f" {text(key)}: {text(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
