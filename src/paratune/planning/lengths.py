"""Row lengths: mean and largest number of tokens of a micro-batch.

They are counted in the tokenized data, if any. Rows of a micro-batch are drawn without replacement, so that the
distribution of the longest of B rows out of N follows exactly from the hypergeometric distribution. `K` lengths occur.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_NEGLIGIBLE = 1e-3
"""Probability of the cases that are left out of an expectation."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Histogram of the row lengths of a training split, in tokens with special ones, after truncation."""

    tokens: IntArray
    """(K,), the lengths that occur, ascending."""
    counts: IntArray
    """(K,), number of rows of each length; 1 for assumed lengths."""
    is_assumed: bool = False
    """Whether no data was read and every row is assumed to have the maximum length."""

    @property
    def num_rows(self) -> int:
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        return int(self.tokens @ self.counts)

    @property
    def mean(self) -> float:
        """Tokens of a row."""
        return self.num_tokens / self.num_rows

    @property
    def longest(self) -> int:
        return int(self.tokens[-1])

    def tokens_of_longest(self, num_rows: int) -> int:
        """Return the total tokens of the `num_rows` longest rows; rows are repeated if the split has fewer."""
        all_rows, rest = divmod(num_rows, self.num_rows)
        before = np.cumsum(self.counts[::-1]) - self.counts[::-1]
        taken = np.clip(rest - before, 0, self.counts[::-1])
        return all_rows * self.num_tokens + int(self.tokens[::-1] @ taken)

    def expected_longest(self, num_rows: int, place: int = 1) -> float:
        """Return the expected length of the longest of B rows that are drawn without replacement.

        P(the place-th longest of B has at most t tokens) = P(fewer than `place` of the drawn rows are longer than t).

        Args:
            num_rows: B; at most all rows of the split are drawn.
            place: 1 for the longest, 2 for the second longest, ... at most `num_rows`.
        """
        if len(self.tokens) == 1:
            return float(self.longest)
        drawn = min(num_rows, self.num_rows)
        num_longer = self.num_rows - np.cumsum(self.counts)
        at_most = _probability_of_fewer(min(place, drawn), self.num_rows, num_longer, drawn)
        return float(self.tokens @ np.diff(at_most, prepend=0.0))


def _probability_of_fewer(place: int, num_rows: int, num_longer: IntArray, drawn: int) -> npt.NDArray[np.float64]:
    """Return the probability, (K,), that fewer than `place` of the `drawn` rows are among the `num_longer`, (K,).

    The sum of C(L, x) C(N - L, B - x) / C(N, B) over x < place. (scipy.stats has it; importing that takes seconds.)
    """
    from scipy.special import gammaln

    def log_choose(n: npt.NDArray[Any], k: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        possible = (k >= 0) & (k <= n)
        k = np.where(possible, k, 0)
        logs = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
        return np.where(possible, logs, -np.inf)

    longer_KX, x_X = num_longer[:, None], np.arange(place)[None]
    whole = log_choose(np.array(num_rows), np.array(drawn))
    logs_KX = log_choose(longer_KX, x_X) + log_choose(num_rows - longer_KX, drawn - x_X) - whole
    probabilities: npt.NDArray[np.float64] = np.minimum(np.exp(logs_KX).sum(axis=1), 1.0)
    return probabilities


def lengths_of_rows(lengths: npt.NDArray[np.integer]) -> Lengths:
    """Return the histogram of the lengths of rows, (N,), N at least 1."""
    tokens, counts = np.unique(lengths, return_counts=True)
    return Lengths(tokens.astype(np.int64), counts.astype(np.int64))


def assumed_lengths(max_length: int) -> Lengths:
    """Return the lengths that are assumed without data: every row has the maximum length."""
    return Lengths(np.array([max_length], dtype=np.int64), np.ones(1, dtype=np.int64), is_assumed=True)


def padded_length(lengths: Lengths, num_rows: int, num_ranks: int, num_micro: int) -> float:
    """Return the expected length of a padded micro-batch on the rank with the longest row.

    The samples of a step are sorted by length and distributed in rounds, one to each rank, the longest first. Each of
    the m micro-batches gets B of the m B rounds at random (`data.order.deal`). The k-th round is the first one of a
    micro-batch with probability C(m B - k, B - 1) / C(m B, B); the longest row is then the ((k - 1) N + 1)-th of all.

    B is `num_rows`, the rows of a micro-batch; N is `num_ranks`, those with different samples; m is `num_micro`.
    """
    if num_ranks == 1 or len(lengths.tokens) == 1:
        return lengths.expected_longest(num_rows)
    num_rounds, chance, left, expected = num_rows * num_micro, 1 / num_micro, 1.0, 0.0
    for k in range(1, num_rounds - num_rows + 2):
        expected += chance * lengths.expected_longest(num_rounds * num_ranks, (k - 1) * num_ranks + 1)
        left -= chance
        if left < _NEGLIGIBLE:
            break
        chance *= (num_rounds - k - num_rows + 1) / (num_rounds - k)
    return expected / (1 - left)


def bucketed_length(lengths: Lengths, num_rows: int, num_ranks: int, num_parts: int, num_micro: int) -> float:
    """Return the expected length of a row with its padding, if a rank sorts its samples of a step by length.

    Each of the micro-batches of `padded_length` is divided into `num_parts` buckets; see `TrainBatches.num_buckets`.
    """
    size = -(-num_rows // min(num_parts, num_rows))
    share = num_rows * num_micro
    starts = range(0, share, size)
    sizes = [min(size, share - start) for start in starts]
    longest = [lengths.expected_longest(share * num_ranks, start * num_ranks + 1) for start in starts]
    return float(np.average(longest, weights=sizes))
