"""Makes batches of tokens: padded or packed batches, the micro-batches of a step, the batches of an evaluation.

Dimensions: `B` samples, `Q` sequences (rows), `S` padded length, `T` tokens of a packed batch. Where each sample is one
sequence, Q = B.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up
from paratune.data.columns import IntArray, LabelArray
from paratune.data.order import SampleGroups, deal, epoch_order, steps_per_epoch
from paratune.data.token_store import ShardedArray, TokenArray, TokenStore, without_map

_FILLER_LENGTH = 8
"""Most tokens of a filler row, to keep it cheap: the model computes it, but no loss or count includes it."""
_MAX_ENLARGEMENT = 8
"""Largest ratio of samples in an evaluation batch to `batch_size`, where samples are short: some memory grows with
rows."""


class CollateOptions(TypedDict, total=False):
    """Keyword arguments of `Collate`; None is the same as absent."""

    epoch: int | None
    """Counted from 0; absent in an evaluation, which is the same at every time."""
    num_rows: int | None
    """Q; filler rows are added. The number of sequences of the samples, at least 1, when absent."""
    length: int | None
    """S; the length of the longest sequence when absent."""


class Collate(Protocol):
    """Makes batches of the samples of one split; `Collator` does it for tasks with one label for each sample."""

    @property
    def store(self) -> TokenStore: ...

    def __call__(self, indices: IntArray, loss_denominator: float, **options: Unpack[CollateOptions]) -> Batch:
        """Return the samples at `indices` as one batch, padded on the right.

        Args:
            indices: (B,), positions in the split; when empty, the batch is one filler row, which no count includes.
            loss_denominator: Denominator of the whole optimizer step, over all ranks; in an evaluation, of the split.
            options: See `CollateOptions`.
        """
        ...

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        """Return the divisor of the summed loss of these samples: the number of samples, or of labelled tokens."""
        ...


@dataclass(frozen=True, eq=False)
class Collator:
    """Makes padded batches of the samples of a split. See `Collate`."""

    store: TokenStore
    """Tokens of the split."""
    labels: LabelArray | None
    """(N,), int64 class ids or float32 targets, or (N, C) float32 sets of classes; None without labels."""
    pad_token_id: int
    """Token after the last one of a row, where the attention mask is 0."""
    teacher: npt.NDArray[np.float32] | None = None
    """(N, C), outputs of the teachers in a distillation; see `Split.teacher`."""
    row_size: int = 0
    """See `Batch.row_size`."""

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return float(len(indices))

    def __call__(self, indices: IntArray, loss_denominator: float, **options: Unpack[CollateOptions]) -> Batch:
        """Return the samples at `indices` as one batch, the same in every epoch."""
        starts, lengths, num_filler = self._rows(indices, options.get("num_rows"))
        length = options.get("length") or int(lengths.max())
        ids_BS = self._padded(self.store.tokens, starts, lengths, self.pad_token_id, length)
        types_BS = None
        if self.store.type_ids is not None:
            types_BS = torch.from_numpy(self._padded(self.store.type_ids, starts, lengths, 0, length))
        mask_BS = (np.arange(ids_BS.shape[1]) < lengths[:, None]).astype(np.int64)
        return Batch(
            input_ids=torch.from_numpy(ids_BS),
            num_padded_tokens=ids_BS.size,
            loss_denominator=float(loss_denominator),
            attention_mask=torch.from_numpy(mask_BS),
            token_type_ids=types_BS,
            max_seqlen=ids_BS.shape[1],
            **self._sample_fields(indices, lengths, num_filler),
        )

    def packed(self, indices: IntArray, loss_denominator: float, *, num_rows: int | None = None) -> Batch:
        """Return the batch that `pack` makes from the result of `__call__`, without the padding in between."""
        starts, lengths, num_filler = self._rows(indices, num_rows)
        ends, longest = lengths.cumsum(), int(lengths.max())
        begins = ends - lengths
        place_T = np.arange(int(ends[-1]))
        # Token t of the batch is token `sources_T[t]` of the store, and would be at `slots_T[t]` of a padded (Q, S).
        sources_T = place_T + np.repeat(starts - begins, lengths)
        slots_T = place_T + np.repeat(np.arange(len(lengths)) * longest - begins, lengths)
        cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int32)
        cu_seqlens[1:] = ends
        type_ids = self.store.type_ids
        return Batch(
            input_ids=_gather(self.store.tokens, sources_T),
            num_padded_tokens=len(place_T),
            loss_denominator=float(loss_denominator),
            token_type_ids=None if type_ids is None else _gather(type_ids, sources_T),
            position_ids=torch.from_numpy(slots_T % longest),
            cu_seqlens=torch.from_numpy(cu_seqlens),
            slots=torch.from_numpy(slots_T),
            max_seqlen=longest,
            **self._sample_fields(indices, lengths, num_filler),
        )

    def _rows(self, indices: IntArray, num_rows: int | None) -> tuple[IntArray, IntArray, int]:
        """Return the starts in the store and the lengths of sequences and filler rows, and the number of the latter."""
        sequences, offsets = self.store.sequences_at(indices), np.asarray(self.store.offsets)
        num_filler = (num_rows or max(1, len(sequences))) - len(sequences)
        rows = np.concatenate([sequences, np.zeros(num_filler, dtype=np.int64)]) if num_filler else sequences
        starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
        lengths[len(sequences) :] = np.minimum(lengths[len(sequences) :], _FILLER_LENGTH)
        return starts, lengths, num_filler

    def _sample_fields(self, indices: IntArray, lengths: IntArray, num_filler: int) -> dict[str, Any]:
        """Return the fields of a batch that do not depend on its layout; each filler row is a sample."""
        num_samples = len(indices)
        samples = np.concatenate([indices, np.zeros(num_filler, dtype=np.int64)]) if num_filler else indices
        is_sample = np.arange(len(samples)) < num_samples
        labels = None if self.labels is None else self.labels[samples]
        offsets = None
        if self.store.sample_offsets is not None:
            counts = np.concatenate([[0], self.store.num_sequences_at(indices), np.ones(num_filler, dtype=np.int64)])
            offsets = torch.from_numpy(counts.cumsum().astype(np.int64))
            if labels is not None:
                labels[num_samples:] = 0  # the label of another sample may be the place of a sequence that filler lacks
        return {
            "row_weight": torch.from_numpy(is_sample.astype(np.float32)),
            "index": torch.from_numpy(np.where(is_sample, samples, -1)),
            "num_samples": num_samples,
            "num_tokens": int(lengths[: len(lengths) - num_filler].sum()),
            "sample_offsets": offsets,
            "row_size": self.row_size,
            "labels": None if labels is None else torch.from_numpy(labels),
            "teacher": None if self.teacher is None else torch.from_numpy(self.teacher[samples]),
        }

    @staticmethod
    def _padded(
        flat: TokenArray | ShardedArray, starts: IntArray, lengths: IntArray, value: int, length: int
    ) -> npt.NDArray[np.int64]:
        flat = without_map(flat)
        padded_BS = np.full((len(lengths), length), value, dtype=np.int64)
        lengths = np.minimum(lengths, length)
        for number, (start, count) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            padded_BS[number, :count] = flat[start : start + count]
        return padded_BS


def _gather(flat: TokenArray | ShardedArray, places: IntArray) -> torch.Tensor:
    return torch.from_numpy(without_map(flat)[places].astype(np.int64))


@dataclass(frozen=True, eq=False)
class PackedCollator:
    """Packs the padded batches of another collator. See `Collate`."""

    padded: Collate
    rounds: bool = False
    """Whether to round the number of tokens up, so that few shapes occur; see `packing.round_up`."""

    @property
    def store(self) -> TokenStore:
        return self.padded.store

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return self.padded.loss_denominator(indices, epoch=epoch)

    def __call__(self, indices: IntArray, loss_denominator: float, **options: Unpack[CollateOptions]) -> Batch:
        # `packed` makes no padded batch in between; a given length needs one, whose rows are cut and padded to it.
        if isinstance(self.padded, Collator) and options.get("length") is None:
            batch = self.padded.packed(indices, loss_denominator, num_rows=options.get("num_rows"))
        else:
            batch = pack(self.padded(indices, loss_denominator, **options))
        return round_up(batch) if self.rounds else batch


@dataclass(frozen=True, eq=False)
class ChangedBatches:
    """A collator whose padded batches a function changes. See `Collate`."""

    inner: Collator
    change: Callable[..., Batch]
    """Called with a padded batch and `epoch`; it can be sent to loader workers (pickled)."""

    @property
    def store(self) -> TokenStore:
        return self.inner.store

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return self.inner.loss_denominator(indices, epoch=epoch)

    def __call__(self, indices: IntArray, loss_denominator: float, **options: Unpack[CollateOptions]) -> Batch:
        return self.change(self.inner(indices, loss_denominator, **options), epoch=options.get("epoch"))


@dataclass(frozen=True, eq=False)
class TrainBatches:
    """The micro-batches of each optimizer step of one rank, as a function of the step; so resuming needs no state."""

    collator: Collate
    seed: int
    """`run.seed`."""
    global_batch_size: int
    """Samples per optimizer step over all ranks."""
    micro_batch_size: int
    """Most samples per rank and micro-step."""
    num_micro_steps: int
    """Micro-batches of each step, the same on every rank."""
    data_rank: int
    """0 to data_world_size - 1."""
    data_world_size: int
    """Number of data ranks."""
    equal_shapes: bool = False
    """Whether all micro-batches of a step have the same number of rows (sequences) and the same length."""
    num_buckets: int | None = None
    """Parts into which each micro-batch is divided, after this rank's samples of a step are sorted by length. That
    reduces padding, and does not change the samples of a step. None keeps the order."""
    compare_every: int | None = None
    """Every `compare_every` steps, micro-batches are random parts of the step, at least two over all ranks: from their
    gradients the noise scale is estimated. So samples are not sorted, and a single micro-batch is divided into two."""
    group_size: int = 1
    """Consecutive samples of a step that are always in one micro-batch, one after the other; of each micro-batch,
    samples `group_size` i to `group_size` (i + 1) - 1 are a group. Divides both batch sizes."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; the last one may have fewer samples."""
        return steps_per_epoch(len(self.collator.store), self.global_batch_size)

    def indices(self, step: int) -> IntArray:
        """Return the samples of a step (from 0 over all epochs) over all ranks, (global_batch_size,) or fewer."""
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.global_batch_size
        return self._order(epoch)[start : start + self.global_batch_size]

    def step(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches of an optimizer step, counted from 0 over all epochs."""
        indices = self.indices(step)
        groups = SampleGroups(indices, self.group_size)
        lengths = groups.sums(self.collator.store.lengths_at(indices))
        shares_of_groups = deal(
            np.arange(len(groups)),
            lengths,
            data_rank=self.data_rank,
            data_world_size=self.data_world_size,
            micro_batch_size=self.micro_batch_size // self.group_size,
            num_micro_steps=self.num_micro_steps,
        )
        if self.compare_every is not None and (step + 1) % self.compare_every == 0:
            # In their random order, in micro-batches not larger than those of other steps.
            num_parts = self.num_buckets or 1
            if self.data_world_size * self.num_micro_steps * num_parts == 1 and not self.equal_shapes:
                num_parts = 2
            shares_of_groups = self._in_parts(np.concatenate(shares_of_groups), num_parts)
        elif self.num_buckets is not None:
            of_step = np.concatenate(shares_of_groups)
            longest_first = of_step[np.argsort(-lengths[of_step], kind="stable")]
            shares_of_groups = self._in_parts(longest_first, self.num_buckets)
        shares = [groups.samples_of(share) for share in shares_of_groups]
        num_rows, length, store = None, None, self.collator.store
        if self.equal_shapes:  # of all micro-batches of the step
            num_rows, length = self.micro_batch_size, int(store.sequence_lengths_at(indices).max())
            if store.sample_offsets is not None:
                num_rows = max(1, *(int(store.num_sequences_at(share).sum()) for share in shares))
        epoch = step // self.steps_per_epoch
        # Of the samples of all ranks, not of this rank's share: the losses of ranks are added, not averaged.
        denominator = self.collator.loss_denominator(indices, epoch=epoch)
        return [self.collator(share, denominator, epoch=epoch, num_rows=num_rows, length=length) for share in shares]

    def _in_parts(self, groups: IntArray, num_parts: int) -> list[IntArray]:
        """Return the groups in order, each micro-batch divided into `num_parts`; the same number on all ranks."""
        num_groups = self.micro_batch_size // self.group_size
        size = -(-num_groups // min(num_parts, num_groups))
        num_batches = -(-num_groups * self.num_micro_steps // size)
        return [groups[start : start + size] for start in range(0, size * num_batches, size)]

    def _order(self, epoch: int) -> IntArray:
        """Return the order of an epoch; the last order is cached, because it needs a sort."""
        cached: tuple[int, IntArray] | None = self.__dict__.get("_cached_order")
        if cached is None or cached[0] != epoch:
            cached = (epoch, epoch_order(len(self.collator.store), self.seed, epoch))
            # By `__dict__`, because the dataclass is frozen: a cache is no part of its value.
            self.__dict__["_cached_order"] = cached
        return cached[1]


def longest_batches(collator: Collate, *, num_samples: int) -> Callable[[int], Batch]:
    """Return a function from a size to a batch of the longest samples of a split, which needs the most memory.

    `num_samples` is the number of samples of the whole optimizer step, over all ranks.
    """
    lengths, options = _computed_lengths(collator), CollateOptions(epoch=0)
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    if collator.store.sample_offsets is not None and not isinstance(collator, PackedCollator):
        options["length"] = int(collator.store.sequence_lengths.max())  # of which sample is not known
    # `np.resize` repeats the samples of a split that has too few.
    denominator = collator.loss_denominator(np.resize(order, num_samples), epoch=0)
    return lambda size: collator(np.resize(order, size), denominator, **options)


@dataclass(frozen=True, eq=False)
class EvalBatches:
    """This rank's batches of an evaluation, each made on access; created by `eval_batches`."""

    collator: Collate
    shares: list[IntArray]
    """This rank's samples of each batch."""
    loss_denominator: float
    """Denominator of the whole split."""

    def __len__(self) -> int:
        """Return the number of batches, which is the same on every rank."""
        return len(self.shares)

    def __getitem__(self, number: int) -> Batch:
        return self.collator(self.shares[number], self.loss_denominator)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.__getitem__, range(len(self)))

    def step(self, number: int) -> list[Batch]:
        """Return a batch in a list, for the same interface as `TrainBatches.step`."""
        return [self[number]]


def eval_batches(
    collator: Collate, *, batch_size: int, data_rank: int = 0, data_world_size: int = 1, group_size: int = 1
) -> EvalBatches:
    """Return this rank's batches of an evaluation; over all ranks, each sample is in exactly one batch.

    Samples are sorted from the longest to the shortest: that reduces padding, and the first batch needs the most
    memory. Every rank gets the same number of batches; a rank without samples left gets a filler batch. The losses of
    all batches sum to the mean over the split, because `loss_denominator` is that of the whole split.

    Args:
        collator: Collator of the split.
        batch_size: Most samples per rank and batch for the longest samples of the split. Batches of shorter samples
            have more, up to the same number of tokens and to 8 times as many samples.
        data_rank: 0 to data_world_size - 1.
        data_world_size: Number of data ranks.
        group_size: Consecutive samples of the split that are in one batch, as in `TrainBatches`; a batch has at least
            one group.
    """
    groups = SampleGroups(np.arange(len(collator.store)), group_size)
    lengths = groups.maxima(_computed_lengths(collator))
    order = np.lexsort((-groups.maxima(collator.store.lengths), -lengths)).astype(np.int64)
    parts = _eval_parts(order, lengths, max(1, batch_size // group_size), data_world_size)
    shares = [groups.samples_of(part[data_rank::data_world_size]) for part in parts]
    return EvalBatches(collator, shares, collator.loss_denominator(groups.samples))


def _computed_lengths(collator: Collate) -> IntArray:
    """Return the tokens of each sample, (N,); where batches are padded, with its sequences as long as the longest.

    The longest of a batch, which is not known before, where samples differ in their number of sequences: a sample with
    one long sequence pads those with many short ones.
    """
    store, counts = collator.store, collator.store.num_sequences
    if isinstance(collator, PackedCollator):
        return store.lengths
    differ = len(counts) > 0 and counts.min() < counts.max()
    lengths: IntArray = counts * (store.sequence_lengths.max() if differ else store.longest_sequences)
    return lengths


def _eval_parts(order: IntArray, lengths: IntArray, batch_size: int, data_world_size: int) -> list[IntArray]:
    """Return the groups of each batch over all ranks, the same on every rank, from the longest to the shortest.

    `order`, (G,), has all groups in this order, and `lengths`, (G,), the tokens of the longest sample of each;
    `batch_size` is the most groups per rank and batch for the longest groups.
    """
    parts, start = [], 0
    most_tokens = batch_size * max(1, int(lengths[order[0]])) if len(order) else 0
    while start < len(order):
        # All samples of a part are padded to its first one, which is the longest.
        most = min(most_tokens // max(1, int(lengths[order[start]])), _MAX_ENLARGEMENT * batch_size)
        size = most * data_world_size
        parts.append(order[start : start + size])
        start += size
    return parts
