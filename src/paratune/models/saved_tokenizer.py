"""The limit of a saved tokenizer: other programs cut texts where the run cut them, and paratune knows the model's own.

A pipeline of transformers truncates at `model_max_length` of the folder; a model without this limit would read more
than it was trained on, or fail beyond its positions.
"""

import copy
from pathlib import Path
from typing import Any

from paratune.models.files import task_record

LIMIT = "tokenizer_limit"
"""Entry of `paratune.json`: `model_max_length` before it became that of the run; a later run may use more tokens."""


def save_tokenizer(folder: Path, tokenizer: Any, max_length: int | None) -> dict[str, int]:
    """Save a tokenizer whose limit is `max_length`, and return the entry of its own limit for `paratune.json`.

    None keeps its limit, and returns nothing. It is not changed itself.
    """
    saved = copy.copy(tokenizer)
    # transformers saves only options that the tokenizer was made with.
    saved.init_kwargs = {**tokenizer.init_kwargs, "truncation_side": tokenizer.truncation_side}
    if max_length is not None:
        saved.model_max_length = max_length
    saved.save_pretrained(folder)
    return {} if max_length is None else {LIMIT: tokenizer.model_max_length}


def restore_limit(tokenizer: Any, folder: str) -> None:
    """Give a tokenizer from a folder of paratune the limit that it had before it was saved there."""
    limit = task_record(Path(folder)).get(LIMIT)
    if isinstance(limit, int):
        tokenizer.model_max_length = limit
