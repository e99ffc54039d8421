"""How many ids a tokenizer can give."""

from typing import Any


def num_token_ids(tokenizer: Any) -> int:
    """Return the largest id that a `transformers` tokenizer can give, plus 1: the rows that an embedding must have.

    It is more than the number of tokens where the ids have gaps.
    """
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))
