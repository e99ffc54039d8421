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
    indices: IntArray, *, data_rank: int, data_world_size: int, micro_batch_size: int, num_micro_steps: int
) -> list[IntArray]:
    """Return this rank's micro-batches of one global batch.

    Samples are dealt in turn, as cards are, so that shares differ by at most one. Every rank gets `num_micro_steps`
    micro-batches; of a last, small batch some are empty, and are run with a filler row.

    Args:
        indices: (N,), the samples of one global batch in order.
        data_rank: 0 to data_world_size - 1.
        data_world_size: Ranks that see different data.
        micro_batch_size: Most samples of one micro-batch.
        num_micro_steps: Micro-batches of the step on each rank.

    Raises:
        ValueError: The batch does not fit into the micro-batches.
    """
    share = indices[data_rank::data_world_size]
    room = micro_batch_size * num_micro_steps
    if len(indices) > room * data_world_size:
        raise ValueError(
            f"{len(indices)} samples do not fit into {num_micro_steps} micro-batches of {micro_batch_size} "
            f"on {data_world_size} ranks"
        )
    return [share[start : start + micro_batch_size] for start in range(0, room, micro_batch_size)]
