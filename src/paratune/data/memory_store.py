"""Joins samples of several stores to one store in memory.

Imports no torch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.data.columns import IntArray
from paratune.data.token_store import TokenArray, TokenStore, offsets_of


def joined_store(parts: Sequence[tuple[TokenStore, IntArray]]) -> TokenStore:
    """Return samples of several stores as one store in memory, without the number of unknown tokens.

    `parts`, at least one, are stores of the same tokenizer and settings, and the indices of their samples, (n,) each.
    """
    first = parts[0][0]
    counts = np.concatenate([store.num_sequences_at(indices) for store, indices in parts])
    parts = [(store, store.sequences_at(indices)) for store, indices in parts]

    def of_tokens(arrays: Sequence[TokenArray]) -> TokenArray:
        slices = (
            array[store.offsets[index] : store.offsets[index + 1]]
            for array, (store, indices) in zip(arrays, parts, strict=True)
            for index in indices
        )
        return np.concatenate(list(slices))

    def of_sequences(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate([array[indices] for array, (_, indices) in zip(arrays, parts, strict=True)])

    joined = TokenStore(
        of_tokens([store.tokens for store, _ in parts]),
        None if first.type_ids is None else of_tokens([_known(store.type_ids) for store, _ in parts]),
        offsets_of(of_sequences([store.sequence_lengths for store, _ in parts])),
        of_sequences([store.full_lengths for store, _ in parts]),
        first.max_length,
        fingerprint="",
        token_values={name: of_tokens([store.token_values[name] for store, _ in parts]) for name in first.token_values},
        row_values={name: of_sequences([store.row_values[name] for store, _ in parts]) for name in first.row_values},
    )
    return joined if first.sample_offsets is None else joined.grouped(counts)


def _known(array: TokenArray | None) -> TokenArray:
    assert array is not None
    return array
