"""The order of samples in an epoch, and which rank gets which samples of a step.

The order depends only on seed, epoch and number of samples, so that runs with other world sizes, micro-batches or
strategies, and resumed runs, train on the same samples in each step. Imports no torch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def random_keys(num_keys: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    """Return the first `num_keys` 64-bit words of the random stream of (seed, stream).

    Philox 4x64-10 with the key of NumPy's SeedSequence of both numbers. NumPy promises that the words of a bit
    generator never change (NEP 19), but not the results of `permutation`: with keys, an order can be reproduced with
    any later version.

    Args:
        num_keys: At least 0; the first keys do not depend on it.
        seed: 0 to 2**32 - 1.
        stream: Number of a random stream of the seed, such as the epoch.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    words = np.random.Philox(np.random.SeedSequence([seed, stream])).random_raw(num_keys)
    return np.asarray(words, dtype=np.uint64)


def epoch_order(num_samples: int, seed: int, epoch: int) -> IntArray:
    """Return the order of an epoch, counted from 0: a permutation, (num_samples,), int64, sorted by random keys."""
    return np.argsort(random_keys(num_samples, seed, epoch), kind="stable").astype(np.int64)


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    """Return the optimizer steps of an epoch; the last one may have fewer samples."""
    if num_samples < 1 or global_batch_size < 1:
        raise ValueError(f"{num_samples} samples in batches of {global_batch_size}: both must be at least 1")
    return -(-num_samples // global_batch_size)


@dataclass(frozen=True, eq=False)
class SampleGroups:
    """Consecutive samples that stay together in one micro-batch; groups of one sample where a task needs none."""

    samples: IntArray
    """(N,), in their order."""
    size: int
    """Samples of a group; the last group has fewer where N is not a multiple."""

    def __len__(self) -> int:
        return -(-len(self.samples) // self.size)

    def sums(self, values: IntArray) -> IntArray:
        """Return the sum over the samples of each group, (len(self),), of values (N,)."""
        return self._reduced(np.add, values)

    def maxima(self, values: IntArray) -> IntArray:
        """Return the largest value of the samples of each group, (len(self),), of values (N,)."""
        return self._reduced(np.maximum, values)

    def _reduced(self, reduce: np.ufunc, values: IntArray) -> IntArray:
        reduced: IntArray = values
        if self.size > 1 and len(values):
            reduced = reduce.reduceat(values, np.arange(0, len(values), self.size))
        return reduced

    def samples_of(self, groups: IntArray) -> IntArray:
        """Return the samples of some groups, group by group.

        A group with fewer samples comes last, so that group i has the places `size` i to `size` (i + 1) - 1.
        """
        if self.size == 1:
            chosen: IntArray = self.samples[groups]
            return chosen
        is_last = groups == len(self.samples) // self.size  # only a group with fewer samples has this number
        groups = np.concatenate([groups[~is_last], groups[is_last]])
        places = (groups[:, None] * self.size + np.arange(self.size)).reshape(-1)
        found: IntArray = self.samples[places[places < len(self.samples)]]
        return found


def deal(
    indices: IntArray,
    lengths: IntArray,
    *,
    data_rank: int,
    data_world_size: int,
    micro_batch_size: int,
    num_micro_steps: int,
) -> list[IntArray]:
    """Return this rank's micro-batches of one global batch, (N,) samples in order with `lengths` in tokens, (N,).

    The numbers of samples of two ranks differ by at most one, and their numbers of tokens are similar. Every rank gets
    `num_micro_steps` micro-batches of at most `micro_batch_size` samples; in the last step of an epoch some may be
    empty, and are run with a filler row. `data_world_size` is the number of ranks that see different data.

    Raises:
        ValueError: The batch does not fit into the micro-batches.
    """
    room = micro_batch_size * num_micro_steps
    if len(indices) > room * data_world_size:
        raise ValueError(
            f"{len(indices)} samples do not fit into {num_micro_steps} micro-batches of {micro_batch_size} "
            f"on {data_world_size} ranks"
        )
    share = indices[_places(lengths, data_rank, data_world_size)]
    return [share[start : start + micro_batch_size] for start in range(0, room, micro_batch_size)]


def _places(lengths: IntArray, data_rank: int, data_world_size: int) -> IntArray:
    """Return the positions in a global batch of the samples of a rank.

    Samples are sorted from the longest to the shortest and assigned in rounds, one sample for each rank; in a round
    the longest sample goes to the rank with the fewest tokens. So all ranks have similar numbers of tokens, and the
    samples of a round, which the ranks compute at the same time, have similar lengths. The rounds are then put into the
    random order of the global batch (by the earliest sample of each), so that micro-batches stay random.

    Source: Graham, Bounds on multiprocessing timing anomalies, 1969 (longest first, to the least loaded), in rounds.
    """
    if data_world_size == 1 or len(lengths) == 0:
        return np.arange(len(lengths), dtype=np.int64)
    by_length = np.argsort(-lengths, kind="stable").astype(np.int64)
    starts = np.arange(0, len(lengths), data_world_size)
    firsts = np.minimum.reduceat(by_length, starts)
    if len(lengths) % data_world_size:
        # A round with fewer samples than ranks is the last: earlier, it would shift the samples of some ranks only.
        firsts[-1] = len(lengths)
    sizes, num_tokens, own = lengths[by_length].tolist(), [0] * data_world_size, []
    for start in starts.tolist():
        ranks = sorted(range(data_world_size), key=num_tokens.__getitem__)
        own.append(start + ranks.index(data_rank))
        # Not strict: the last round may have fewer samples than there are ranks.
        for rank, size in zip(ranks, sizes[start : start + data_world_size], strict=False):
            num_tokens[rank] += size
    places = np.asarray(own, dtype=np.int64)[np.argsort(firsts, kind="stable")]
    return by_length[places[places < len(lengths)]]
