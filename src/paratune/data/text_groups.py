"""Tokenizes the texts of pairs and triplets each on its own, and numbers equal texts.

Dimensions: `N` samples, `K` texts of each: the text, its pair, and its negative, as far as there are any.

Imports no torch.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paratune.data.columns import Samples
from paratune.data.token_store import TokenStore
from paratune.data.tokens import TokenizeOptions, tokenize


def num_texts(samples: Samples) -> int:
    """Return K."""
    return 1 + (samples.text_pairs is not None) + (samples.negatives is not None)


def tokenize_texts(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of texts, pairs or triplets, a sequence for each text; as `tokens.tokenize`."""
    count, progress = num_texts(samples), options.progress
    columns = [column for column in (samples.texts, samples.text_pairs, samples.negatives) if column is not None]
    flat = Samples(
        texts=[text for row in zip(*columns, strict=True) for text in row],
        text_pairs=None,
        labels=None,
        ids=None,
        rows=np.repeat(samples.rows, count),
        groups=None,
        num_dropped={},
    )

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(done // count, total // count)

    store = tokenize(flat, replace(options, progress=report), source=source)
    return store if count == 1 else store.grouped(np.full(len(samples), count))


def text_numbers(store: TokenStore, count: int) -> npt.NDArray[np.int64]:
    """Return a number for each text of a store, (N, K), K = `count`; texts with the same tokens have the same."""
    tokens, offsets = np.asarray(store.tokens), np.asarray(store.offsets).tolist()
    numbers: dict[bytes, int] = {}
    of_text = [numbers.setdefault(tokens[begin:end].tobytes(), len(numbers)) for begin, end in pairwise(offsets)]
    return np.asarray(of_text, dtype=np.int64).reshape(-1, count)
