"""Recognises files that are not configurations: data, settings of a Trainer, `config.json` of a model, binary files."""

import re
from pathlib import Path

from paratune.errors import ConfigError

_HEAD_BYTES = 65_536
"""Bytes at the start of a file that are read."""
_DATA_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow")
_BINARIES = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x1f\x8b": "a compressed file",
    b"PK\x03\x04": "a zip archive or a file of torch.save",
    b"\x80": "a pickle",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF file",
}
"""What a binary file is, by its first bytes."""
_TODO = {
    "data": "name it in a configuration as data.train; `paratune config init` writes one",
    "trainer": "convert it: paratune config from-trainer {path} -o my.yaml",
    "model": "name its folder in a configuration as model.name",
    "binary": "name a YAML file",
}


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
    kind, described = _recognise(path, head)
    if kind is not None:
        message = f"{path} is {described}, and a configuration is a YAML file; {_TODO[kind].format(path=path)}"
        raise ConfigError(message, code="config.other_file", path=path, kind=kind)


def _recognise(path: Path, head: bytes) -> tuple[str | None, str]:
    if path.suffix in _DATA_SUFFIXES:
        return "data", "a data file"
    named = next((described for start, described in _BINARIES.items() if head.startswith(start)), None)
    is_utf_16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if named or (b"\0" in head and not is_utf_16):
        return "binary", named or "a binary file"
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    first, _, rest = text.partition("\n")
    if text.startswith("{"):
        if re.search(r'"(per_device_train_batch_size|num_train_epochs|log_history)"\s*:', text):
            return "trainer", "a JSON file with settings of a Trainer"
        if re.search(r'"(model_type|architectures)"\s*:', text):
            return "model", "the config.json of a model"
    is_json_data = first.rstrip().endswith("}") and rest.lstrip().startswith("{")
    if (text.startswith("{") and is_json_data) or re.match(r"\[\s*\{", text):
        return "data", "a JSON file with rows of data"
    if rest.strip() and re.fullmatch(r"[^:#\[{]*[,\t][^:#]*", first.rstrip()) and not first.startswith("-"):
        return "data", "a table"
    return None, ""
