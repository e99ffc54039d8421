"""Facts about a tokenizer: its fingerprint, its state, and the separator of the texts of a pair.

Imports no torch.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paratune.errors import ConfigError


def pair_separator(tokenizer: Any) -> str:
    """Return the text to put before the second text of a pair: "" after a special token, else a line break.

    Tokenizers of BERT and similar models put a special token between the texts of a pair. Those of most decoders put
    nothing there, and the model could not know where the second text begins.
    """
    with preserve_state(tokenizer):
        flags = tokenizer("a", "a", return_special_tokens_mask=True)["special_tokens_mask"]
    inner = flags[flags.index(0) : len(flags) - flags[::-1].index(0)] if 0 in flags else flags
    return "" if 1 in inner else "\n"


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the SHA-256, in hexadecimal, over all that a tokenizer's output depends on."""
    attributes = [type(tokenizer).__name__, tokenizer.special_tokens_map, tokenizer.truncation_side, len(tokenizer)]
    sha = hashlib.sha256(json.dumps(attributes, sort_keys=True, default=str).encode())
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        # Options of the last call, which every call sets again.
        content["truncation"] = content["padding"] = None
        sha.update(json.dumps(content, sort_keys=True).encode())
        return sha.hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                sha.update(file.name.encode() + b"\0" + file.read_bytes())
    return sha.hexdigest()


@contextmanager
def preserve_state(tokenizer: Any) -> Iterator[None]:
    """Restore truncation and padding of a fast tokenizer at the end: calls change them, and saving would write them."""
    if not tokenizer.is_fast:
        yield
        return
    inner = tokenizer.backend_tokenizer
    truncation, padding = inner.truncation, inner.padding
    try:
        yield
    finally:
        inner.no_truncation() if truncation is None else inner.enable_truncation(**truncation)
        inner.no_padding() if padding is None else inner.enable_padding(**padding)


def require_fast(tokenizer: Any, task: str, *, returns: str = "the characters of tokens") -> None:
    """Raise a `ConfigError` where a tokenizer is slow, which does not return what the task needs."""
    if not tokenizer.is_fast:
        raise ConfigError(
            f"model: {type(tokenizer).__name__} is a slow tokenizer, which does not return {returns}; {task} a fast "
            "tokenizer (tokenizer.json): save it again with AutoTokenizer",
            code="tokenizer.slow",
            key="model",
        )
