"""The planned job: model, data and batch of a configuration, as far as they affect memory and time.

Weights are not read; of the data only the row lengths are, which are counted in the tokenized data. Rows of a
micro-batch are drawn without replacement, so that the distribution of the longest of B rows out of N follows exactly
from the hypergeometric distribution. `K` lengths occur.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from paratune.batch.packing import rounded_size
from paratune.config.sections import Config, ModelOptions
from paratune.config.task_sections import MaskedLMTask, Task
from paratune.data.order import steps_per_epoch
from paratune.models.packed import BatchLayout, enable_packed_batches
from paratune.models.task_model import PackedEntry
from paratune.planning.build import build_model
from paratune.planning.profile import Shape
from paratune.planning.states import PredictionSetup
from paratune.precision import POLICIES

IntArray = npt.NDArray[np.int64]
_NEGLIGIBLE = 1e-3
"""Probability of the cases that are left out of an expectation."""
_SMALL_SIZES = {
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "pad_token_id": 1,
    "mask_token_id": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "pooler_hidden_size": 64,
}
"""Sizes of the small model on which packed rows are tried; they do not change the behaviour of the model's code."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Histogram of the row lengths of a training split, in tokens with special ones, after truncation."""

    tokens: IntArray
    """(K,), the lengths that occur, ascending."""
    counts: IntArray
    """(K,), number of rows of each length; 1 for assumed lengths."""
    num_rows: int
    num_tokens: int
    """Of all rows."""
    mean: float
    """Tokens of a row."""
    longest: int
    is_assumed: bool = False
    """Whether no data was read and every row is assumed to have the maximum length."""

    def tokens_of_longest(self, num_rows: int) -> int:
        """Return the total tokens of the `num_rows` longest rows; rows are repeated if the split has fewer."""
        all_rows, rest = divmod(num_rows, self.num_rows)
        before = np.cumsum(self.counts[::-1]) - self.counts[::-1]
        taken = np.clip(rest - before, 0, self.counts[::-1])
        return all_rows * self.num_tokens + int(self.tokens[::-1] @ taken)

    def expected_longest(self, num_rows: int, place: int = 1) -> float:
        """Return the expected length of the longest of B rows that are drawn without replacement.

        P(the place-th longest of B has at most t tokens) = P(fewer than `place` of the drawn rows are longer than t),
        the sum of C(L, x) C(N - L, B - x) / C(N, B) over x < place, where L of the N rows are longer than t.
        (scipy.stats has it; importing that takes seconds.)

        Args:
            num_rows: B; at most all rows of the split are drawn.
            place: 1 for the longest, 2 for the second longest, ... at most `num_rows`.
        """
        if len(self.tokens) == 1:
            return float(self.longest)
        from scipy.special import gammaln

        def log_choose(n: npt.NDArray[Any], k: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
            possible = (k >= 0) & (k <= n)
            k = np.where(possible, k, 0)
            logs = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
            return np.where(possible, logs, -np.inf)

        drawn = min(num_rows, self.num_rows)
        longer_KX, x_X = (self.num_rows - np.cumsum(self.counts))[:, None], np.arange(min(place, drawn))[None]
        whole = log_choose(np.array(self.num_rows), np.array(drawn))
        logs_KX = log_choose(longer_KX, x_X) + log_choose(self.num_rows - longer_KX, drawn - x_X) - whole
        at_most = np.minimum(np.exp(logs_KX).sum(axis=1), 1.0)
        return float(self.tokens @ np.diff(at_most, prepend=0.0))


def lengths_of_rows(lengths: npt.NDArray[np.integer], *, are_assumed: bool = False) -> Lengths:
    """Return the histogram of the lengths of rows, (N,), N at least 1."""
    tokens, counts = (values.astype(np.int64) for values in np.unique(lengths, return_counts=True))
    num_rows, num_tokens = int(counts.sum()), int(tokens @ counts)
    return Lengths(tokens, counts, num_rows, num_tokens, num_tokens / num_rows, int(tokens[-1]), are_assumed)


def assumed_lengths(max_length: int) -> Lengths:
    """Return the lengths that are assumed without data: every row has the maximum length."""
    return lengths_of_rows(np.array([max_length]), are_assumed=True)


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


@dataclass(frozen=True, eq=False)
class PlannedJob:
    """The inputs that all predictions of a command share."""

    config: Config
    """With its overrides; `PredictionSetup` replaces strategy, precision and number of ranks."""
    hf_config: Any
    """The model's own configuration."""
    lengths: Lengths
    """Lengths of the sequences of the training split; a sequence is a row of a micro-batch."""
    num_samples: int | None
    """Samples of the training split; None if no data was read."""
    entry: PackedEntry | None
    """How packed rows enter the model; None if the model does not support them."""
    why_padded: str | None
    """Why the model does not support packed rows."""
    sequences: Lengths = field(default_factory=lambda: assumed_lengths(1))
    """Numbers of sequences of the samples of the training split."""
    samples: Lengths | None = None
    """Lengths of the samples, over all their sequences; None if no data was read."""
    stored_dtype: torch.dtype | None = None
    """Dtype of the model's file, if it is of 16 bits and training loads it so (`models.load.kept_dtype`)."""

    def num_steps(self, global_batch_size: int) -> int | None:
        """Return the optimizer steps of the run, or None if they depend on data that was not read."""
        if self.config.train.max_steps is not None:
            return self.config.train.max_steps
        if self.num_samples is None:
            return None
        assert self.config.train.epochs is not None
        return max(1, round(self.config.train.epochs * steps_per_epoch(self.num_samples, global_batch_size)))

    def passes(self, setup: PredictionSetup, layout: BatchLayout) -> PredictionSetup:
        """Return the setup with the computed micro-batches: a rank that sorts its rows divides each into buckets."""
        if layout.num_buckets in (None, 1):
            return setup
        size = -(-setup.micro_batch_size // min(layout.num_buckets or 1, setup.micro_batch_size))
        share = setup.micro_batch_size * setup.grad_accum_steps
        return replace(setup, micro_batch_size=size, grad_accum_steps=-(-share // size))

    def shape(self, setup: PredictionSetup, layout: BatchLayout, *, largest: bool) -> Shape:
        """Return the shape of a micro-batch: the largest possible one, which memory must hold, or the mean of a run.

        Its rows are equally long, so that two traces determine all other profiles (`planning.predict`).
        """
        size, is_packed = self.passes(setup, layout).micro_batch_size, layout.kind == "packed"
        if largest:  # the longest rows of the split
            rows = self.sequences.tokens_of_longest(size)
            tokens = self.lengths.tokens_of_longest(rows)
            if self.samples is not None:  # the samples with most sequences have no long ones where windows are filled
                tokens = min(tokens, self.samples.tokens_of_longest(size))
            length = -(-tokens // rows) if is_packed else self.lengths.longest
        else:
            rows, length = self._num_rows(size), max(1, round(self.mean_length(setup, layout)))
        task = self.config.task
        share = task.mask_probability if isinstance(task, MaskedLMTask) else 1.0  # of tokens with a label
        if is_packed:
            if layout.rounds:
                length = -(-rounded_size(rows * length) // rows)
            return Shape((length,) * rows, layout="packed", labelled_share=share)
        # One row is shorter: without padding a model uses no mask and calls another kernel.
        lengths = (*(length,) * (rows - 1), max(1, length - (rows > 1)))
        return Shape(lengths, layout="padded", labelled_share=share)

    def mean_length(self, setup: PredictionSetup, layout: BatchLayout) -> float:
        """Return the expected tokens of a row, padding included, on the rank with most of them."""
        size, num_ranks = self._num_rows(setup.micro_batch_size), setup.data_world_size
        num_micro = setup.grad_accum_steps
        if layout.kind == "packed":
            return self.lengths.mean
        if setup.traits.equal_shapes:
            return self.lengths.expected_longest(self._num_rows(setup.global_batch_size))
        if layout.kind == "padded":
            return padded_length(self.lengths, size, num_ranks, num_micro)
        return bucketed_length(self.lengths, size, num_ranks, layout.num_buckets or 1, num_micro)

    def _num_rows(self, num_samples: int) -> int:
        """Return the expected number of sequences of some samples."""
        return max(1, round(num_samples * self.sequences.mean))


def find_packing(
    hf_config: Any, task: Task, model_options: ModelOptions | None = None
) -> tuple[PackedEntry | None, str | None]:
    """Return how packed rows enter the model, or the reason why they cannot, by a trial on a small copy of the model.

    Training on a GPU also tries the attention kernel, which is not tried here.
    """
    small = type(hf_config).from_dict(hf_config.to_dict())
    for key, most in _SMALL_SIZES.items():
        if type(now := getattr(small, key, None)) is int:
            setattr(small, key, min(now, most))
    if layers := getattr(small, "layer_types", None):
        small.layer_types = list(layers)[: _SMALL_SIZES["num_hidden_layers"]]
    own = None if model_options is None else model_options.model_copy(update={"adapter": None})
    try:
        model = build_model(small, task, POLICIES["fp32"], None, own)
    except Exception as error:  # any error of the model's own code, which may not support such sizes
        name = type(hf_config).__name__
        return None, f"a small {name} to try packed rows on cannot be made ({type(error).__name__}: {error})"
    enable_packed_batches(model)
    if model.packed_readers:
        # Planned as bucketed, as on a GPU. On a CPU the rows are packed, and memory and time are below the prediction.
        return None, f"{type(model.hf).__name__} takes packed rows on the CPU only, and is planned as bucketed"
    return model.entry, model.why_padded
