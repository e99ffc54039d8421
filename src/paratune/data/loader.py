"""From tokens to batches: padding or packing, the micro-batches of a step, the batches of an evaluation.

Floor 3. Dimensions: `B` samples (rows), `S` padded length.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up
from paratune.data.columns import LabelArray
from paratune.data.order import deal, epoch_order, steps_per_epoch
from paratune.data.token_store import TokenStore

IntArray = npt.NDArray[np.int64]
_FILLER_LENGTH = 8
"""Most tokens of a filler row: the model has to run it, and nobody counts it."""


_MOST_MORE = 8
"""Times `batch_size` that an evaluation takes of short samples at most: some memory goes by the row."""


class How(TypedDict, total=False):
    """Keyword arguments of `Collate`; None is as not given."""

    epoch: int | None
    """Counted from 0; not given in an evaluation, which is the same whenever it is made."""
    num_rows: int | None
    """B; filler rows are added. As many as there are samples, or one, when not given."""
    length: int | None
    """S; that of the longest sample when not given."""


class Collate(Protocol):
    """Makes batches of the samples of one split; `Collator` is that of tasks with one answer for each sample."""

    @property
    def store(self) -> TokenStore:
        """Tokens of the split."""
        ...

    def __call__(self, indices: IntArray, loss_denominator: float, **how: Unpack[How]) -> Batch:
        """Return the samples at `indices` as one batch, padded on the right.

        Args:
            indices: (B,), positions in the split; when empty, the batch is one filler row, which no count includes.
            loss_denominator: Of the whole optimizer step, over all ranks, or of the whole split in an evaluation.
            how: See `How`.
        """
        ...

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        """Return what the summed loss of these samples is divided by: their number, or that of labelled tokens."""
        ...


@dataclass(frozen=True, eq=False)
class Collator:
    """Makes padded batches of samples; one for each split."""

    store: TokenStore
    """Tokens of the split."""
    labels: LabelArray | None
    """(N,), int64 class ids or float32 targets, or (N, C) float32 sets of classes; None where none are known."""
    pad_token_id: int
    """What stands behind the last token, where the attention mask is 0."""

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return float(len(indices))

    def __call__(self, indices: IntArray, loss_denominator: float, **how: Unpack[How]) -> Batch:
        """Return the samples at `indices` as one batch, the same in every epoch; see `Collate`."""
        rows, starts, lengths, num_samples = self._rows(indices, how.get("num_rows"))
        length = how.get("length") or int(lengths.max())
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
            **self._values_of_rows(rows, lengths, num_samples),
        )

    def packed(self, indices: IntArray, loss_denominator: float, *, num_rows: int | None = None) -> Batch:
        """Return what `pack` makes of the batch of `__call__`, without padding it first."""
        rows, starts, lengths, num_samples = self._rows(indices, num_rows)
        ends, longest = lengths.cumsum(), int(lengths.max())
        begins = ends - lengths
        place_T = np.arange(int(ends[-1]))
        sources_T = place_T + np.repeat(starts - begins, lengths)
        slots_T = place_T + np.repeat(np.arange(len(rows)) * longest - begins, lengths)
        cu_seqlens = np.zeros(len(rows) + 1, dtype=np.int32)
        cu_seqlens[1:] = ends
        type_ids = self.store.type_ids
        return Batch(
            input_ids=_taken(self.store.tokens, sources_T),
            num_padded_tokens=len(place_T),
            loss_denominator=float(loss_denominator),
            token_type_ids=None if type_ids is None else _taken(type_ids, sources_T),
            position_ids=torch.from_numpy(slots_T % longest),
            cu_seqlens=torch.from_numpy(cu_seqlens),
            slots=torch.from_numpy(slots_T),
            max_seqlen=longest,
            **self._values_of_rows(rows, lengths, num_samples),
        )

    def _rows(self, indices: IntArray, num_rows: int | None) -> tuple[IntArray, IntArray, IntArray, int]:
        """Return the samples with those of filler rows, where each begins, their lengths, and the number of samples."""
        num_samples = len(indices)
        num_filler = (num_rows or max(1, num_samples)) - num_samples
        rows = np.concatenate([indices, np.zeros(num_filler, dtype=np.int64)]) if num_filler else indices
        starts, lengths = np.asarray(self.store.offsets)[rows], self.store.lengths_of(rows)
        lengths[num_samples:] = np.minimum(lengths[num_samples:], _FILLER_LENGTH)
        return rows, starts, lengths, num_samples

    def _values_of_rows(self, rows: IntArray, lengths: IntArray, num_samples: int) -> dict[str, Any]:
        """Return the fields of a batch that do not depend on its layout."""
        is_sample = np.arange(len(rows)) < num_samples
        return {
            "row_weight": torch.from_numpy(is_sample.astype(np.float32)),
            "index": torch.from_numpy(np.where(is_sample, rows, -1)),
            "num_samples": num_samples,
            "num_tokens": int(lengths[:num_samples].sum()),
            "labels": None if self.labels is None else torch.from_numpy(self.labels[rows]),
        }

    @staticmethod
    def _padded(
        flat: npt.NDArray[np.generic], starts: IntArray, lengths: IntArray, value: int, length: int
    ) -> npt.NDArray[np.int64]:
        flat = np.asarray(flat)  # slices of a memmap are memmaps, each made in Python
        padded_BS = np.full((len(lengths), length), value, dtype=np.int64)
        lengths = np.minimum(lengths, length)
        for number, (start, count) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            padded_BS[number, :count] = flat[start : start + count]
        return padded_BS


def _taken(flat: npt.NDArray[np.generic], places: IntArray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(flat)[places].astype(np.int64))  # indexing a memmap makes another one


@dataclass(frozen=True, eq=False)
class PackedCollator:
    """Makes packed batches of what another collator makes padded; see `Collate`."""

    padded: Collate
    rounds: bool = False
    """Whether the number of tokens is rounded up to one of few; see `packing.round_up`."""

    @property
    def store(self) -> TokenStore:
        return self.padded.store

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return self.padded.loss_denominator(indices, epoch=epoch)

    def __call__(self, indices: IntArray, loss_denominator: float, **how: Unpack[How]) -> Batch:
        if isinstance(self.padded, Collator) and how.get("length") is None:
            batch = self.padded.packed(indices, loss_denominator, num_rows=how.get("num_rows"))
        else:
            batch = pack(self.padded(indices, loss_denominator, **how))
        return round_up(batch) if self.rounds else batch


@dataclass(frozen=True, eq=False)
class TrainBatches:
    """The micro-batches of every optimizer step of one rank, as a function of the step: resuming is starting there."""

    collator: Collate
    """Of the training split."""
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
    """Ranks that see different data."""
    equal_shapes: bool = False
    """Give all micro-batches of a step the rows and the length of the largest of them."""
    num_buckets: int | None = None
    """Sort this rank's samples of a step by length before they become micro-batches, and cut each of these into so many
    parts: little is padded, and the samples of a step stay what they were. None leaves them in their order."""
    compare_every: int | None = None
    """Every so many steps, the first one after so many, micro-batches are random parts of the step, at least two over
    all ranks, so that their gradients tell the noise scale: nothing is sorted, and where one micro-batch is all there
    is, it is cut into two."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; the last one may have fewer samples."""
        return steps_per_epoch(len(self.collator.store), self.global_batch_size)

    def indices(self, step: int) -> IntArray:
        """Return the samples of an optimizer step over all ranks, (at most global_batch_size,), in their order.

        Args:
            step: Counted from 0 over all epochs.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.global_batch_size
        return self._order(epoch)[start : start + self.global_batch_size]

    def step(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches of an optimizer step.

        Args:
            step: Counted from 0 over all epochs.
        """
        indices = self.indices(step)
        lengths = self.collator.store.lengths_of(indices)
        shares = deal(
            indices,
            lengths,
            data_rank=self.data_rank,
            data_world_size=self.data_world_size,
            micro_batch_size=self.micro_batch_size,
            num_micro_steps=self.num_micro_steps,
        )
        if self.compare_every is not None and (step + 1) % self.compare_every == 0:
            shares = self._to_compare(shares)
        elif self.num_buckets is not None:
            shares = self._in_buckets(shares, self.num_buckets)
        num_rows, length = None, None
        if self.equal_shapes:
            num_rows, length = self.micro_batch_size, int(lengths.max())
        epoch = step // self.steps_per_epoch
        denominator = self.collator.loss_denominator(indices, epoch=epoch)
        return [self.collator(share, denominator, epoch=epoch, num_rows=num_rows, length=length) for share in shares]

    def _in_buckets(self, shares: list[IntArray], num_parts: int) -> list[IntArray]:
        """Return the samples from the longest to the shortest, in smaller micro-batches; as many on all ranks."""
        samples = np.concatenate(shares)
        return self._in_parts(samples[np.argsort(-self.collator.store.lengths_of(samples), kind="stable")], num_parts)

    def _to_compare(self, shares: list[IntArray]) -> list[IntArray]:
        """Return the samples in their random order, in micro-batches as small as those of other steps or smaller."""
        num_parts = self.num_buckets or 1
        if self.data_world_size * self.num_micro_steps * num_parts == 1 and not self.equal_shapes:
            num_parts = 2
        return self._in_parts(np.concatenate(shares), num_parts)

    def _in_parts(self, samples: IntArray, num_parts: int) -> list[IntArray]:
        """Return the samples in their order, each micro-batch cut into so many; as many on all ranks."""
        size = -(-self.micro_batch_size // min(num_parts, self.micro_batch_size))
        num_batches = -(-self.micro_batch_size * self.num_micro_steps // size)
        return [samples[start : start + size] for start in range(0, size * num_batches, size)]

    def _order(self, epoch: int) -> IntArray:
        """Return the order of an epoch, keeping the last one: making it anew costs what a sort does."""
        kept: tuple[int, IntArray] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] != epoch:
            kept = (epoch, epoch_order(len(self.collator.store), self.seed, epoch))
            # Around the frozen dataclass: a cache is no part of its value.
            self.__dict__["_kept"] = kept
        return kept[1]


def longest_batches(collator: Collate, *, num_samples: int) -> Callable[[int], Batch]:
    """Return what makes a batch of so many of the longest samples of a split: none that occurs needs more memory.

    Args:
        collator: Of the split.
        num_samples: Of the whole optimizer step, over all ranks.
    """
    order = _longest_first(collator.store)
    # Of a split with fewer samples some are taken twice.
    denominator = collator.loss_denominator(np.resize(order, num_samples), epoch=0)
    return lambda size: collator(np.resize(order, size), denominator, epoch=0)


@dataclass(frozen=True, eq=False)
class EvalBatches:
    """This rank's batches of an evaluation, each made when it is asked for; `eval_batches` makes it."""

    collator: Collate
    """Of the split."""
    shares: list[IntArray]
    """This rank's samples of each batch."""
    loss_denominator: float
    """Of the whole split."""

    def __len__(self) -> int:
        """As many on every rank."""
        return len(self.shares)

    def __getitem__(self, number: int) -> Batch:
        return self.collator(self.shares[number], self.loss_denominator)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.__getitem__, range(len(self)))

    def step(self, number: int) -> list[Batch]:
        """Return one batch in a list, as `TrainBatches.step` does several."""
        return [self[number]]


def eval_batches(collator: Collate, *, batch_size: int, data_rank: int = 0, data_world_size: int = 1) -> EvalBatches:
    """Return this rank's batches of an evaluation: over all ranks, every sample exactly once.

    Samples go from the longest to the shortest, so that little is padded and the first batch needs the most memory.
    Every rank gets the same number of batches; where the samples do not suffice, one is filler. The losses of all
    batches sum to the mean over the split: `loss_denominator` is that of all of it.

    Args:
        collator: Of the split.
        batch_size: Most samples per rank and batch where they are the longest ones of the split; of shorter ones there
            are as many more as have the same number of tokens, up to 8 times as many.
        data_rank: 0 to data_world_size - 1.
        data_world_size: Ranks that see different data.
    """
    order = _longest_first(collator.store)
    parts = _eval_parts(order, collator.store, batch_size, data_world_size)
    shares = [part[data_rank::data_world_size] for part in parts]
    return EvalBatches(collator, shares, collator.loss_denominator(order))


def _longest_first(store: TokenStore) -> IntArray:
    return np.argsort(-store.lengths, kind="stable").astype(np.int64)


def _eval_parts(order: IntArray, store: TokenStore, batch_size: int, data_world_size: int) -> list[IntArray]:
    """Return the samples of each batch, those of all ranks together; the same on every rank."""
    parts, start = [], 0
    most_tokens = batch_size * max(1, int(store.lengths[order[0]])) if len(order) else 0
    while start < len(order):
        # The first sample of a part is its longest, to which all of them are padded.
        most = min(most_tokens // max(1, int(store.lengths[order[start]])), _MOST_MORE * batch_size)
        size = most * data_world_size
        parts.append(order[start : start + size])
        start += size
    return parts
