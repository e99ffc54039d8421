"""The order of samples: a function of (seed, epoch, global sample index) alone, never of the world size.

Floor 3, without torch.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def random_keys(num_keys: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    """Return the first `num_keys` 64-bit words of the random stream of (seed, stream).

    Philox 4x64-10 keyed by NumPy's SeedSequence of both numbers. NumPy keeps the words of a bit generator the same for
    ever (NEP 19), which it does not promise for `permutation`; so an order can be made again years later.

    Args:
        num_keys: At least 0; the first keys do not depend on it.
        seed: 0 to 2**32 - 1.
        stream: Which of the seed's streams, such as the epoch.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    words = np.random.Philox(np.random.SeedSequence([seed, stream])).random_raw(num_keys)
    return np.asarray(words, dtype=np.uint64)


def epoch_order(num_samples: int, seed: int, epoch: int) -> IntArray:
    """Return the samples in the order of an epoch: sorted by the random key of each sample index.

    Args:
        num_samples: Samples of the split.
        seed: `run.seed`.
        epoch: Counted from 0.

    Returns:
        (num_samples,), int64: a permutation.
    """
    return np.argsort(random_keys(num_samples, seed, epoch), kind="stable").astype(np.int64)


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    """Return the optimizer steps of an epoch; the last one takes what is left, which may be fewer samples."""
    if num_samples < 1 or global_batch_size < 1:
        raise ValueError(f"{num_samples} samples in batches of {global_batch_size}: both must be at least 1")
    return -(-num_samples // global_batch_size)


def deal(
    indices: IntArray,
    lengths: IntArray,
    *,
    data_rank: int,
    data_world_size: int,
    micro_batch_size: int,
    num_micro_steps: int,
) -> list[IntArray]:
    """Return this rank's micro-batches of one global batch.

    Ranks get as many samples each, but for one, and about as many tokens. Every rank gets `num_micro_steps`
    micro-batches; of a last, small batch some are empty, and are run with a filler row.

    Args:
        indices: (N,), the samples of one global batch in order.
        lengths: (N,), their tokens.
        data_rank: 0 to data_world_size - 1.
        data_world_size: Ranks that see different data.
        micro_batch_size: Most samples of one micro-batch.
        num_micro_steps: Micro-batches of the step on each rank.

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
    """Return which places of a global batch are a rank's.

    From the longest to the shortest, samples go in rounds of one for each rank; in each the longest goes to the rank
    that has the fewest tokens. Rounds stand in the order of their first sample, so that micro-batches are as random as
    without ranks, and those that ranks run at one time have samples of one length.

    Source: Graham, Bounds on multiprocessing timing anomalies, 1969 (longest first, to whoever has least), in rounds.
    """
    if data_world_size == 1 or len(lengths) == 0:
        return np.arange(len(lengths), dtype=np.int64)
    by_length = np.argsort(-lengths, kind="stable").astype(np.int64)
    starts = np.arange(0, len(lengths), data_world_size)
    firsts = np.minimum.reduceat(by_length, starts)
    if len(lengths) % data_world_size:
        firsts[-1] = len(lengths)  # a round that is not for all stands last: nobody's samples move up by it
    sizes, num_tokens, own = lengths[by_length].tolist(), [0] * data_world_size, []
    for start in starts.tolist():
        ranks = sorted(range(data_world_size), key=num_tokens.__getitem__)
        own.append(start + ranks.index(data_rank))
        # Not strict: the last round may have fewer samples than there are ranks.
        for rank, size in zip(ranks, sizes[start : start + data_world_size], strict=False):
            num_tokens[rank] += size
    places = np.asarray(own, dtype=np.int64)[np.argsort(firsts, kind="stable")]
    return by_length[places[places < len(lengths)]]
