"""How long micro-batches are: by hand, and by dealing many batches as the training does."""

from itertools import combinations

import numpy as np
import pytest

from paratune.data.order import deal
from paratune.planning.job import assumed_lengths, bucketed_length, lengths_of_rows, padded_length


def test_the_histogram_counts_rows_and_tokens() -> None:
    lengths = lengths_of_rows(np.array([7, 3, 7, 12]))
    assert (lengths.num_rows, lengths.num_tokens, lengths.longest) == (4, 29, 12)
    assert lengths.mean == 29 / 4
    assert lengths.tokens_of_longest(3) == 12 + 7 + 7
    assert lengths.tokens_of_longest(6) == (12 + 7 + 7 + 3) + 12 + 7
    assert lengths.tokens_of_longest(4 * 10**11) == 29 * 10**11


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
@pytest.mark.parametrize("place", [1, 2])
def test_the_expected_longest_is_the_mean_over_all_draws(num_rows: int, place: int) -> None:
    rows = [4, 9, 9, 15, 31]
    draws = [sorted(draw, reverse=True)[min(place, num_rows) - 1] for draw in combinations(rows, num_rows)]
    expected = lengths_of_rows(np.array(rows)).expected_longest(num_rows, place)
    assert expected == pytest.approx(sum(draws) / len(draws))


def test_longest_of_more_rows_than_the_split_has() -> None:
    assert lengths_of_rows(np.array([2, 8, 5])).expected_longest(64) == pytest.approx(8)


def test_assumed_rows_have_the_maximum_length() -> None:
    lengths = assumed_lengths(128)
    assert lengths.is_assumed
    assert (lengths.longest, lengths.mean, lengths.expected_longest(16)) == (128, 128, 128)
    assert lengths.tokens_of_longest(2) == 2 * 128


def _dealt(num_ranks: int, size: int, num_micro: int, *, parts: int | None) -> tuple[float, float]:
    """Return the mean length of batches from `deal` itself, and the expected one."""
    random = np.random.default_rng(0)
    rows = np.minimum(random.lognormal(4, 0.8, 5000).astype(np.int64) + 3, 512)
    lengths = lengths_of_rows(rows)
    seen = []
    for _ in range(200):
        indices = random.choice(len(rows), num_ranks * size * num_micro, replace=False)
        per_rank = [
            deal(indices, rows[indices], data_rank=rank, data_world_size=num_ranks, micro_batch_size=size,
                 num_micro_steps=num_micro)
            for rank in range(num_ranks)
        ]  # fmt: skip
        if parts is None:
            seen.append(np.mean([max(rows[rank[step]].max() for rank in per_rank) for step in range(num_micro)]))
            continue
        part = -(-size // parts)
        ordered = [np.sort(rows[np.concatenate(rank)])[::-1] for rank in per_rank]
        seen.append(np.mean([max(rank[start] for rank in ordered) for start in range(0, size * num_micro, part)]))
    if parts is None:
        return float(np.mean(seen)), padded_length(lengths, size, num_ranks, num_micro)
    return float(np.mean(seen)), bucketed_length(lengths, size, num_ranks, parts, num_micro)


@pytest.mark.parametrize(("num_ranks", "size", "num_micro"), [(1, 16, 1), (1, 8, 4), (4, 8, 1), (4, 8, 2), (8, 4, 4)])
def test_padded_length_equals_the_mean_of_real_batches(num_ranks: int, size: int, num_micro: int) -> None:
    dealt, expected = _dealt(num_ranks, size, num_micro, parts=None)
    assert expected == pytest.approx(dealt, rel=0.03)


@pytest.mark.parametrize(("num_ranks", "size", "num_micro", "parts"), [(1, 16, 1, 4), (1, 8, 4, 4), (2, 16, 2, 1)])
def test_bucketed_length_equals_the_mean_of_real_batches(num_ranks: int, size: int, num_micro: int, parts: int) -> None:
    dealt, expected = _dealt(num_ranks, size, num_micro, parts=parts)
    assert expected == pytest.approx(dealt, rel=0.03)
