"""The number that is explained: one output of a model for a row, as a function of the words that the model sees.

A hidden word is replaced by the mask token, so that the positions of other words do not change. Dimensions: `B` rows,
`T` tokens, `W` words.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.errors import ConfigError, did_you_mean
from paratune.explain.rows import TokenRow
from paratune.infer.trained import TrainedModel
from paratune.models.task_model import trial_batch

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
SMALLEST_SHARE = 0.01
"""Smallest effect that counts, as a share of the standard deviation of the labels. That of a label "yes or no" is at
most 0.5, so that the smallest effect on a probability is 0.005."""
ROUNDING = 1e-5
"""Smallest effect where the scale is not known: a score in float32 depends on the shape of its batch in the sixth
digit."""


def smallest_effect(trained: TrainedModel) -> float:
    """Return the smallest effect on an output that counts: smaller ones are not shown, coloured or named.

    Of log-odds it is the effect that moves a probability of 0.5, where probabilities move most, by 0.005: log-odds have
    the derivative 4 there.
    """
    kind = trained.task.kind
    if kind in ("classification", "multi_label"):
        return 4 * SMALLEST_SHARE * 0.5
    step = 1.0 if kind == "ordinal" else getattr(trained.task, "round_to", None)
    # A model of another program has no record of its labels.
    return SMALLEST_SHARE * (trained.label_deviation or step or ROUNDING / SMALLEST_SHARE)


@dataclass(frozen=True)
class ExplainedOutput:
    """Which output is explained."""

    kind: str
    """Kind of task."""
    index: int = 0
    """Class id."""
    name: str = ""
    """What the number is, for readers."""
    smallest: float = 0.0
    """Smallest effect that counts; see `smallest_effect`."""

    def read(self, outputs: Tensor) -> Tensor:
        """Return the explained number of each row, (B,), from the outputs of a `TaskModel`."""
        if self.kind == "classification":
            others = torch.cat([outputs[:, : self.index], outputs[:, self.index + 1 :]], dim=1)
            return outputs[:, self.index] - others.logsumexp(dim=1)
        if self.kind == "ordinal":
            return outputs.sigmoid().sum(dim=1)
        return outputs[:, self.index]


def explained_output(trained: TrainedModel, predicted: int, wanted: str | None) -> ExplainedOutput:
    """Return what is explained of a row.

    Args:
        predicted: Class id of the highest output of the row; 0 for numbers.
        wanted: Name of another class, from the command line.

    Raises:
        ConfigError: There is no such class, or the output is a number.
    """
    kind, names = trained.task.kind, trained.names
    if kind not in ("classification", "multi_label"):
        if wanted is not None:
            message = f"--target {wanted} has no effect on a model of kind {kind}, which has one output to explain"
            raise ConfigError(message, code="cli.no_effect", option="--target", value=wanted)
        name = "predicted number" if kind == "regression" else f"expected class ({names[0]} is 0)"
        return ExplainedOutput(kind, name=name, smallest=smallest_effect(trained))
    if wanted is not None and wanted not in names:
        message = f"--target {wanted} is not a class of the model: {', '.join(names)}{did_you_mean(wanted, names)}"
        raise ConfigError(message, code="cli.invalid_value", option="--target", value=wanted)
    index = predicted if wanted is None else names.index(wanted)
    return ExplainedOutput(kind, index, name=f"log-odds of {names[index]}", smallest=smallest_effect(trained))


class RowOutput:
    """The explained number of one row, for any set of visible words, and for any embeddings of its tokens."""

    def __init__(self, trained: TrainedModel, row: TokenRow, target: ExplainedOutput, batch_size: int) -> None:
        self.row, self.target, self.batch_size = row, target, batch_size
        self.model, self._device = trained.model, trained.device
        self.replacement_id, self.replacement = replacement(trained.tokenizer)

    def values(self, visible: Bools) -> Floats:
        """Return the number with only some words visible, (B,), from `visible`, (B, W)."""
        parts = [self._values(visible[at : at + self.batch_size]) for at in range(0, len(visible), self.batch_size)]
        return np.concatenate(parts) if parts else np.zeros(0)

    @torch.inference_mode()
    def _values(self, visible: Bools) -> Floats:
        result: Floats = self.read(self.ids(visible)).double().cpu().numpy()
        return result

    def ids(self, visible: Bools) -> Tensor:
        """Return the token ids with only some words visible, (B, T), from `visible`, (B, W)."""
        owners = self.row.token_words
        hidden = (owners >= 0) & ~visible[:, owners]
        return torch.from_numpy(np.where(hidden, self.replacement_id, self.row.ids)).to(self._device)

    def read(self, ids: Tensor) -> Tensor:
        """Return the number for each row of token ids, (B,); gradients flow to hooked embeddings."""
        return self.target.read(self.model(self._batch(ids)).float())

    def _batch(self, ids: Tensor) -> Batch:
        types = self.row.type_ids
        fields: dict[str, Any] = {}
        if types is not None:
            fields["token_type_ids"] = torch.from_numpy(types).to(self._device).expand_as(ids)
        return trial_batch(ids, torch.ones_like(ids), **fields)

    def attention(self) -> Floats | None:
        """Return the attention of the last layer from each token to each token, (T, T), mean over heads.

        None where the model does not return it.
        """
        batch = self._batch(torch.from_numpy(self.row.ids).to(self._device).unsqueeze(0))
        config = self.model.hf.config
        earlier = config._attn_implementation
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        inputs |= {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        config._attn_implementation = "eager"  # the fast functions do not return it
        try:
            with torch.inference_mode():
                layers = self.model.hf(**inputs, output_attentions=True).get("attentions")
        finally:
            config._attn_implementation = earlier
        if not layers or layers[-1] is None or layers[-1].shape[2:] != (len(self.row.ids),) * 2:
            return None
        matrix: Floats = layers[-1][0].double().mean(dim=0).cpu().numpy()
        return matrix


def replacement(tokenizer: Any) -> tuple[int, str]:
    """Return the id and the name of the token that replaces hidden words: mask, else unknown, padding or end token."""
    for name in ("mask", "unk", "pad", "eos"):
        if getattr(tokenizer, f"{name}_token_id", None) is not None:
            return getattr(tokenizer, f"{name}_token_id"), str(getattr(tokenizer, f"{name}_token"))
    message = "the tokenizer has no mask, unknown, padding or end token to replace hidden words with"
    raise ConfigError(message, code="tokenizer.token_missing")


def prepare(trained: TrainedModel) -> None:
    """Make a model ready for gradients: in float32 on its device, without dropout, with fixed weights."""
    trained.model.to(trained.device).float().eval()
    trained.model.requires_grad_(False)
