"""The planned job: model, data and batch of a configuration, as far as they affect memory and time.

Weights are not read; of the data only the row lengths are.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from paratune.batch.packing import rounded_size
from paratune.config.sections import Config, ModelOptions
from paratune.config.task_sections import MaskedLMTask, Task
from paratune.config.traits import Traits
from paratune.data.order import steps_per_epoch
from paratune.models.packed import BatchLayout, choose_batch_layout, enable_packed_batches
from paratune.models.task_model import PackedEntry
from paratune.planning.build import build_model
from paratune.planning.lengths import Lengths, assumed_lengths, bucketed_length, padded_length
from paratune.planning.profile import Shape
from paratune.planning.setup import PredictionSetup
from paratune.precision import POLICIES

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

    def num_steps(self, global_batch_size: int) -> int | None:
        """Return the optimizer steps of the run, or None if they depend on data that was not read."""
        if self.config.train.max_steps is not None:
            return self.config.train.max_steps
        if self.num_samples is None:
            return None
        assert self.config.train.epochs is not None
        return max(1, round(self.config.train.epochs * steps_per_epoch(self.num_samples, global_batch_size)))

    def layout(self, traits: Traits, *, is_cuda: bool) -> BatchLayout:
        """Return the layout of batches that the training would choose.

        Raises:
            ConfigError: The model or the strategy does not support `batch.layout`.
        """
        return choose_batch_layout(
            self.config.batch.layout,
            traits,
            entry=self.entry,
            why_padded=self.why_padded,
            on_cpu=not is_cuda,
            compiles=self.config.train.compile,
        )

    def passes(self, setup: PredictionSetup, layout: BatchLayout) -> PredictionSetup:
        """Return the setup with the computed micro-batches: a rank that sorts its rows divides each into buckets."""
        if layout.num_buckets in (None, 1):
            return setup
        size = -(-setup.micro_batch_size // min(layout.num_buckets or 1, setup.micro_batch_size))
        share = setup.micro_batch_size * setup.grad_accum_steps
        return replace(setup, micro_batch_size=size, grad_accum_steps=-(-share // size))

    def largest_shape(self, setup: PredictionSetup, layout: BatchLayout) -> Shape:
        """Return the shape of the largest possible micro-batch: the longest rows of the split."""
        rows = self.sequences.tokens_of_longest(self.passes(setup, layout).micro_batch_size)
        if layout.kind != "packed":
            return self._shape(rows, self.lengths.longest, layout)
        return self._shape(rows, -(-self.lengths.tokens_of_longest(rows) // rows), layout)

    def mean_shape(self, setup: PredictionSetup, layout: BatchLayout) -> Shape:
        """Return the shape of a micro-batch with the mean number of tokens of a run."""
        rows = self._num_rows(self.passes(setup, layout).micro_batch_size)
        return self._shape(rows, max(1, round(self.mean_length(setup, layout))), layout)

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

    def _shape(self, rows: int, length: int, layout: BatchLayout) -> Shape:
        task = self.config.task
        share = task.mask_probability if isinstance(task, MaskedLMTask) else 1.0  # of tokens with a label
        if layout.kind == "packed":
            if layout.rounds:
                length = -(-rounded_size(rows * length) // rows)
            return Shape((length,) * rows, layout="packed", labelled_share=share)
        # One row is shorter: without padding a model uses no mask and calls another kernel.
        lengths = (*(length,) * (rows - 1), max(1, length - (rows > 1)))
        return Shape(lengths, layout="padded", labelled_share=share)


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
