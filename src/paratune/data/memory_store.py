"""Tokens in memory: for texts that are read once, such as those of a request, and for samples of several stores.

Imports no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.data.token_store import TokenArray, TokenStore, flat_array

IntArray = npt.NDArray[np.int64]


class MemoryWriter:
    """Collects the tokens of samples; `store` has them after `finish`. See `token_store.TokenWriter`."""

    def __init__(
        self, dtype: str, *, has_type_ids: bool, unknown_id: int | None, token_values: Mapping[str, str] | None
    ) -> None:
        """As `token_store.StoreWriter`, without a folder."""
        self._dtype, self._has_type_ids, self._unknown_id = np.dtype(dtype), has_type_ids, unknown_id
        self._tokens: list[TokenArray] = []
        self._type_ids: list[TokenArray] = []
        self._dtypes = dict(token_values or {})
        self._others: dict[str, list[TokenArray]] = {name: [] for name in self._dtypes}
        self._lengths: list[int] = []
        self._full_lengths: list[int] = []
        self.store: TokenStore | None = None

    def add(
        self,
        ids: list[list[int]],
        type_ids: list[list[int]] | None,
        full_lengths: Iterable[int],
        token_values: Mapping[str, list[list[int]]] | None = None,
    ) -> None:
        """Append samples."""
        self._tokens.append(flat_array(ids, self._dtype))
        if self._has_type_ids:
            assert type_ids is not None
            self._type_ids.append(flat_array(type_ids, np.dtype(np.uint8)))
        for name, arrays in self._others.items():
            assert token_values is not None
            arrays.append(flat_array(token_values[name], np.dtype(self._dtypes[name])))
        self._lengths += map(len, ids)
        self._full_lengths += full_lengths

    def finish(self, max_length: int, row_values: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
        """Make `store`; arguments as of `StoreWriter.finish`."""
        tokens = np.concatenate(self._tokens)
        self.store = TokenStore(
            tokens,
            np.concatenate(self._type_ids) if self._has_type_ids else None,
            _offsets(self._lengths),
            np.asarray(self._full_lengths, np.int32),
            max_length,
            fingerprint="",
            token_values={name: np.concatenate(arrays) for name, arrays in self._others.items()},
            row_values=dict(row_values or {}),
            num_unknown=None if self._unknown_id is None else int(np.count_nonzero(tokens == self._unknown_id)),
        )


def joined_store(parts: Sequence[tuple[TokenStore, IntArray]]) -> TokenStore:
    """Return samples of several stores as one store in memory, without the number of unknown tokens.

    Args:
        parts: Stores of the same tokenizer and settings, and the indices of their samples, (n,) each; at least one.
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
        _offsets(of_sequences([store.sequence_lengths for store, _ in parts])),
        of_sequences([store.full_lengths for store, _ in parts]),
        first.max_length,
        fingerprint="",
        token_values={name: of_tokens([store.token_values[name] for store, _ in parts]) for name in first.token_values},
        row_values={name: of_sequences([store.row_values[name] for store, _ in parts]) for name in first.row_values},
    )
    return joined if first.sample_offsets is None else joined.grouped(counts)


def _offsets(lengths: Sequence[int] | IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _known(array: TokenArray | None) -> TokenArray:
    assert array is not None
    return array
