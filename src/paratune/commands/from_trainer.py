"""`paratune config from-trainer`: the settings of a Hugging Face Trainer as a configuration."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.commands.config import write_new
from paratune.config.trainer import Conversion, check_text, convert, read_settings
from paratune.config.trainer.conversion import FILL_IN
from paratune.console import print_json
from paratune.errors import EXIT_OK


def from_trainer_command(path: Path, options: Mapping[str, Any], output: Path | None, *, as_json: bool) -> int:
    """Run the command; return its exit code.

    Raises:
        ConfigError: The file cannot be read or turned, or the output exists or cannot be written.
    """
    found = convert(read_settings(path), str(path), options)
    text = found.text(path.name)
    check_text(text, str(path))
    if output is not None:
        write_new(output, text)
    if as_json:
        print_json(_as_dict(found, output))
        return EXIT_OK
    if output is None:
        print(text, end="")  # noqa: T201
    _say(found, path, output)
    return EXIT_OK


def _say(found: Conversion, path: Path, output: Path | None) -> None:
    """Print what became of every key, on stderr: stdout may be the file."""
    lines = [f"{path}: {len(found.used)} keys became options: {', '.join(found.used) or 'none'}"]
    for title, left in found.groups():
        lines += [f"{title}:", *(f"  {each}" for each in left)]
    if found.ignored:
        lines.append(f"without an equal, and at values that ask for nothing: {', '.join(found.ignored)}")
    if blank := _to_fill_in(found):
        lines.append(f"to fill in: {', '.join(blank)}")
    if output is not None:
        lines.append(f"written: {output}; look at it, then: paratune data {output}")
    print("\n".join(map(plain, lines)), file=sys.stderr)  # noqa: T201


def _to_fill_in(found: Conversion) -> list[str]:
    return [key for key, comment in found.comments.items() if comment.startswith(FILL_IN)]


def _as_dict(found: Conversion, output: Path | None) -> dict[str, Any]:
    return {
        "config": found.values,
        "origin": found.comments,
        "used": found.used,
        "decide": [asdict(each) for each in found.decide],
        "not_known": [asdict(each) for each in found.not_known],
        "no_equal": [asdict(each) for each in found.no_equal],
        "ignored": found.ignored,
        "fill_in": _to_fill_in(found),
        "output": None if output is None else str(output),
    }
