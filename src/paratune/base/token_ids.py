"""Computes the number of ids of a tokenizer."""

from typing import Any


def num_token_ids(tokenizer: Any) -> int:
    """Return the largest id of a `transformers` tokenizer plus 1: the number of rows that an embedding needs.

    It exceeds the number of tokens where the ids have gaps.
    """
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))
