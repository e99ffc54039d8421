"""Recognises files that are not configurations: data, settings of a Trainer, `config.json` of a model, binary files."""

import re
from pathlib import Path

from paratune.errors import ConfigError

_HEAD_BYTES = 65_536
"""Bytes at the start of a file that are read."""
_DATA_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow")
_BINARIES = (b"PAR1", b"ARROW1", b"\x1f\x8b", b"PK\x03\x04", b"\x80", b"\x89PNG", b"%PDF")
"""First bytes of Parquet, Arrow, compressed files, zip archives, pickles, pictures and PDF files."""
_KINDS = {
    "data": ("a data file", "name it in a configuration as data.train; `paratune config init` writes one"),
    "trainer": ("settings of a Trainer", "convert it: paratune config from-trainer {path} -o my.yaml"),
    "model": ("the config.json of a model", "name its folder in a configuration as model.name"),
    "binary": ("a binary file", "name a YAML file"),
}
"""By kind, what a file is, and what to do."""


def refuse_other_file(path: Path) -> None:
    """Raise an error if a file is not a configuration but another kind of file; a missing file is accepted.

    Raises:
        ConfigError: It is another kind of file; the fact `kind` is data, trainer, model or binary.
    """
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return  # `layers.read_text` reports it
    if (kind := _kind(path, head)) is not None:
        described, advice = _KINDS[kind]
        message = f"{path} is {described}, and a configuration is a YAML file; {advice.format(path=path)}"
        raise ConfigError(message, code="config.other_file", path=path, kind=kind)


def _kind(path: Path, head: bytes) -> str | None:
    """Return the kind of a file; None for one that may be a configuration."""
    if path.suffix in _DATA_SUFFIXES:
        return "data"
    is_utf_16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if head.startswith(_BINARIES) or (b"\0" in head and not is_utf_16):
        return "binary"
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    first, _, rest = text.partition("\n")
    if text.startswith("{"):
        if re.search(r'"(per_device_train_batch_size|num_train_epochs|log_history)"\s*:', text):
            return "trainer"
        if re.search(r'"(model_type|architectures)"\s*:', text):
            return "model"
    has_json_rows = text.startswith("{") and first.rstrip().endswith("}") and rest.lstrip().startswith("{")
    # The first line of a table has commas or tabs, and no sign of YAML.
    is_table = re.fullmatch(r"[^:#\[{]*[,\t][^:#]*", first.rstrip()) and not first.startswith("-") and rest.strip()
    return "data" if has_json_rows or re.match(r"\[\s*\{", text) or is_table else None
