"""`TaskModel`: a Hugging Face model that takes a `Batch`, with a loss that is summed over rows, not averaged.

Dimensions: `B` rows, `S` padded length, `T` tokens of a packed batch, `M` labelled tokens, `D` width, `C` classes.
"""

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from paratune.base.text import listing
from paratune.batch import Batch
from paratune.batch.packing import unpack
from paratune.config.own_code import CLASS_KEY, own_code_errors, wrong_result
from paratune.errors import ConfigError
from paratune.models.attention.disentangled import PackedRows
from paratune.models.attention.register import NAME as PACKED
from paratune.models.attention.register import attention_name
from paratune.models.objectives import OBJECTIVES, Objective, at_least_float32, weighted_sum
from paratune.models.own_model import has_own_head
from paratune.precision import values_of

Pooling = Literal["first", "mean"]
ATTENTION: Final = "_attn_implementation"
"""Name in a model's configuration of the name of its attention function."""
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Inputs of a model of transformers with a value for each token."""


@dataclass(frozen=True)
class PackedEntry:
    """How a model takes packed batches, and what its head reads; determined by `packed.enable_packed_batches`."""

    position_offset: int = 0
    """Position id of the first token of a row."""
    pooling: Pooling = "first"
    """What the head reads of a row: its first token, or the mean of its tokens."""
    shortens: bool = False
    """Whether the last layer computes only first tokens; see `blocks.shorten_last_layer`."""


class TaskModel(nn.Module):
    """A `BatchModel` around a model of transformers with the head of a task."""

    def __init__(
        self, hf: Any, task_kind: str, new_weights: tuple[str, ...] = (), objective: Objective | None = None
    ) -> None:
        """Wrap a model of transformers with the head of a task, such as an `AutoModelForSequenceClassification`.

        `task_kind` is a key of `OBJECTIVES`; `objective` replaces the one there, where options of the task change it.
        `new_weights` are the names in `hf` of the weights that were not loaded.
        """
        super().__init__()
        self.new_weights = new_weights
        self.own_class: str | None = None
        """Class of `model.class`, whose forward pass is code of the user."""
        self.head_order: tuple[int, str] | None = None
        """What `load.order_rows` did with the rows of a loaded head, for messages."""
        self.grown: tuple[str, ...] = ()
        """Those of `new_weights` of which only the rows of added tokens are new."""
        self.hf = hf
        self.task_kind = task_kind
        self.objective = objective or OBJECTIVES[task_kind]
        """Loss and row outputs."""
        self.entry: PackedEntry | None = None
        """How the model takes packed batches; None where it does not support them, or was not tested."""
        self.why_padded: str | None = "the model was not tested with packed rows"
        """Why there is no `entry`."""
        self.packed_attention = PACKED
        """Name of the attention function for packed batches."""
        self.packed_readers: tuple[Any, ...] = ()
        """Modules with their own attention, which read the row lengths of a packed batch from their `packed_rows`."""
        self.head_takes_labelled = False
        """Whether the head of a masked LM receives only the labelled tokens of padded batches, too."""
        self._batch: Batch | None = None
        self._attention = getattr(getattr(hf, "config", None), ATTENTION, None)
        # The encoder and the decoder of a T5 have a copy of the configuration each, where their layers find the name.
        configs: Iterator[Any] = (getattr(module, "config", None) for module in hf.modules())
        self._configs = list({id(config): config for config in configs if hasattr(config, ATTENTION)}.values())
        self._hook: RemovableHandle | None = None
        if (encoder := find_encoder(hf)) is not None:
            self._hook = encoder.register_forward_hook(self._reduce_outputs)
        # A decoder would keep keys and values to generate text, which training does not need.
        self._options = {"use_cache": False} if "use_cache" in inspect.signature(hf.forward).parameters else {}

    @property
    def head_reads(self) -> str:
        """See `Objective.head_reads`; "all" for an own head, which reads the hidden states of all tokens, (B, S, D)."""
        return "all" if has_own_head(self.hf) else self.objective.head_reads

    def forward(self, batch: Batch) -> Tensor:
        """Return the outputs of the task in the compute dtype: (B, C) logits, (B, 1) predictions, ...

        For a masked LM, the logits of labelled tokens; see `Objective.outputs`.
        """
        inputs = self._packed_inputs(batch) if batch.is_packed else self._padded_inputs(batch)
        if self.objective.takes_choices:
            inputs |= {name: inputs[name].unsqueeze(1) for name in _OF_TOKENS if inputs.get(name) is not None}
        self._set_batch(batch)
        try:
            own = own_code_errors(self.own_class, CLASS_KEY, method="forward") if self.own_class else nullcontext()
            with own:
                model_output = self.hf(**inputs, **self._options)
        finally:
            self._set_batch(None)  # after an error, too: a later call of `hf` alone must not be cut by the hook
        outputs = self.objective.outputs(model_output, batch)
        if self.own_class and (outputs.ndim != 2 or outputs.shape[1] != self.hf.config.num_labels):
            # The loss takes more logits than classes, and would train without an error.
            what = f"logits {tuple(outputs.shape)}"
            wanted = f"config.num_labels of each row: (rows, {self.hf.config.num_labels})"
            raise wrong_result(self.own_class, CLASS_KEY, what, wanted)
        return outputs

    def release(self) -> Any:
        """Return the model of transformers for use by itself, without our hook; this object must not be used later."""
        if self._hook is not None:
            self._hook.remove()
        return self.hf

    def _set_batch(self, batch: Batch | None) -> None:
        """Store the batch for hooks and modules during a forward pass; None after it."""
        self._batch = batch
        ends = None if batch is None else batch.cu_seqlens
        for module in self.packed_readers:
            module.packed_rows = None if ends is None else PackedRows(ends.diff().tolist())

    def _padded_inputs(self, batch: Batch) -> dict[str, Any]:
        is_full = batch.num_tokens == batch.num_padded_tokens
        self._attend_with(attention_name(self._attention, batch.input_ids.device, is_full=is_full))
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        return inputs

    def _packed_inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the inputs of one long row, (1, T); the attention function gets the ends of the rows in it."""
        assert self.entry is not None
        assert batch.position_ids is not None
        self._attend_with(self.packed_attention)
        # Position ids are explicit, because a model would count on over the whole long row: they restart in each row.
        offset = self.entry.position_offset
        position_ids_T = batch.position_ids + offset if offset else batch.position_ids
        inputs: dict[str, Any] = {
            "input_ids": batch.input_ids.unsqueeze(0),
            "position_ids": position_ids_T.unsqueeze(0),
        }
        if not self.packed_readers:
            inputs |= {"cu_seqlens": batch.cu_seqlens, "max_seqlen": batch.max_seqlen}
        if self.entry.shortens:
            inputs["first_tokens_only"] = True
        if self.head_reads == "all":
            assert batch.cu_seqlens is not None
            places_S = torch.arange(batch.max_seqlen, device=batch.input_ids.device)
            inputs["row_mask"] = places_S < batch.cu_seqlens.diff().unsqueeze(1)
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids.unsqueeze(0)
        return inputs

    def _attend_with(self, name: str | None) -> None:
        """Choose the attention function by name; transformers looks the name up in each forward pass."""
        for config in self._configs if name is not None else ():
            if config._attn_implementation != name:
                config._attn_implementation = name

    def _reduce_outputs(self, _module: nn.Module, _inputs: Any, outputs: Any) -> Any:
        """Return what the head reads: one token of each row, (B, 1, D), all, (B, S, D), or labelled ones, (1, M, D)."""
        batch = self._batch
        if batch is None or self.head_reads == "tokens":
            return outputs
        if batch.is_packed and self.head_reads == "all":
            return _with_hidden(outputs, unpack(_hidden(outputs).squeeze(0), batch, 0.0))
        if batch.is_packed:
            assert self.entry is not None
            return _with_hidden(outputs, read_packed(outputs, batch, self.head_reads, self.entry.pooling))
        if self.head_reads == "labelled" and self.head_takes_labelled and batch.label_places is not None:
            hidden_BSD = _hidden(outputs)
            return _with_hidden(outputs, hidden_BSD.flatten(0, 1).index_select(0, batch.label_places).unsqueeze(0))
        return outputs

    def loss_sum(self, outputs: Tensor, batch: Batch, row_outputs: Tensor | None = None) -> Tensor:
        """Return the sum over rows of the task's loss, weighted by `row_weight`; a scalar, at least float32.

        `row_outputs` is the result of `row_outputs` for these outputs and this batch, where it is known.
        """
        return weighted_sum(self.objective, outputs, batch, row_outputs)

    def row_outputs(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the row outputs that an evaluation collects, (B, K)."""
        return self.objective.row_outputs(outputs, batch)


def _hidden(outputs: Any) -> Tensor:
    """Return the hidden states from the output of an encoder: a tensor, or the first of several values."""
    hidden: Tensor = outputs if isinstance(outputs, Tensor) else outputs[0]
    return hidden


def _with_hidden(outputs: Any, hidden: Tensor) -> Any:
    """Return the output of an encoder with other hidden states."""
    if isinstance(outputs, Tensor):
        return hidden
    if isinstance(outputs, tuple):
        return (hidden, *outputs[1:])
    outputs["last_hidden_state"] = hidden
    if (layers := outputs.get("hidden_states")) is not None:  # DeBERTa's model reads the last one
        outputs["hidden_states"] = (*layers[:-1], hidden)
    return outputs


def read_packed(outputs: Any, batch: Batch, head_reads: str, pooling: str) -> Tensor:
    """Return what the head reads of a packed batch: the states of rows, (B, 1, D), or of labelled tokens, (1, M, D).

    `outputs` are those of the encoder, with hidden states (1, T, D); `pooling`: see `PackedEntry`.
    """
    hidden_TD = _hidden(outputs).squeeze(0)
    assert batch.cu_seqlens is not None
    if head_reads == "labelled":
        assert batch.label_places is not None
        return hidden_TD.index_select(0, batch.label_places).unsqueeze(0)
    if pooling == "first" and len(hidden_TD) == batch.num_sequences:  # from a shortened last layer
        return hidden_TD.unsqueeze(1)
    if pooling == "first":
        return hidden_TD.index_select(0, batch.cu_seqlens[:-1]).unsqueeze(1)
    return row_means(hidden_TD, batch.cu_seqlens).unsqueeze(1)


def trial_batch(input_ids: Tensor, attention_mask: Tensor, **fields: Any) -> Batch:
    """Return a padded batch of (B, S) tokens without filler, for a pass through a model that is not part of a run."""
    rows = len(input_ids)
    is_meta = input_ids.device.type == "meta"
    return Batch(
        input_ids=input_ids,
        row_weight=torch.ones(rows, device=input_ids.device),
        index=torch.arange(rows, device=input_ids.device),
        num_samples=rows,
        num_tokens=input_ids.numel() if is_meta else int(attention_mask.sum()),
        num_padded_tokens=input_ids.numel(),
        loss_denominator=1.0,
        attention_mask=attention_mask,
        max_seqlen=input_ids.shape[1],
        **fields,
    )


def row_means(hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the mean over the tokens of each row, (B, D), of `hidden`, (T, D), in its dtype."""
    # `segment_reduce` adds in the dtype of its input, and in a fixed order, unlike `index_add` on a GPU.
    wide = at_least_float32(hidden)
    # `unsafe` skips the check of the offsets, which would wait for the device.
    return torch.segment_reduce(wide, "mean", offsets=cu_seqlens, unsafe=True).to(hidden.dtype)


def find_encoder(hf: nn.Module) -> nn.Module | None:
    """Return the module that runs the repeated layers; None where there are none."""
    blocks = find_blocks(hf)
    for module in hf.modules():
        if any(isinstance(child, nn.ModuleList) and list(child) == blocks for child in module.children()):
            return module if blocks else None
    return None


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated layers of any transformer: of the lists with layers of one class, that with most parameters.

    By structure, and not by a table of architectures.
    """
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) > 0 and len({type(layer) for layer in module}) == 1
    ]
    return list(max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()), default=()))


def require_blocks(num_blocks: int, option: str, value: Any, *, fewest: int = 1) -> None:
    """Raise a ConfigError for an option that needs repeated layers, where a model has fewer."""
    if num_blocks < fewest:
        problem = f"is more than the {num_blocks} blocks of this model; set at most {num_blocks}"
        if not num_blocks:
            problem = "needs repeated layers, and this model has none; remove the option"
        raise ConfigError(f"{option}: {value} {problem}", code="model.unsupported", key=option, value=value)


def in_body(hf: Any, key: str) -> bool:
    """Return whether a weight belongs to the encoder, that is, to `AutoModel` of the same architecture."""
    if hf.base_model is not hf:
        return key.startswith(f"{hf.base_model_prefix}.")
    # A class from a model's own code without a base model: embeddings and layers are surely not part of the head.
    modules = [hf.get_input_embeddings(), *find_blocks(hf)]
    body = {id(parameter) for module in modules for parameter in module.parameters()}
    return any(name == key and id(parameter) in body for name, parameter in hf.named_parameters())


def is_pooler(hf: Any, key: str) -> bool:
    """Return whether a weight belongs to the pooler, the last layer of an encoder, which masked LMs do not have."""
    return in_body(hf, key) and "pooler" in key.split(".")


def freeze_encoder(model: TaskModel) -> None:
    """Freeze the encoder, so that only the head is trained.

    Raises:
        ConfigError: Weights of the encoder are new (such as a pooler, which masked LMs do not have): they would stay
            random.
    """
    random = [key for key in model.new_weights if in_body(model.hf, key)]
    refuse_random(random, "train.freeze_encoder", "train the whole model (train.freeze_encoder: false)")
    for parameter in model.hf.base_model.parameters():
        parameter.requires_grad_(False)


def refuse_random(names: Sequence[str], option: str, advice: str) -> None:
    """Raise a ConfigError where an option would freeze new weights, which would stay random."""
    if names:
        message = f"{option} would freeze new, random weights: {listing(names, 3)}; {advice}"
        raise ConfigError(message, code="model.nothing_trained", key=option)


def set_output_bias(model: TaskModel, values: Any) -> None:
    """Set the new bias of the output layer of a regression to a number or, of K outputs, an array (K,).

    Raises:
        ConfigError: The head of this architecture has no such bias, or the bias was loaded, and so trained before.
    """
    last = output_layers(model.hf, np.size(values))
    if not last or last[-1][1].bias is None:
        message = f"task.start_at_mean: true, but the head of {type(model.hf).__name__} has no bias; remove the option"
        raise ConfigError(message, code="config.no_effect", key="task.start_at_mean")
    name, layer = last[-1]
    if f"{name}.bias" not in model.new_weights:
        message = (
            f"task.start_at_mean: true has no effect on a head that is trained: the model has its {name}.bias; set "
            "task.start_at_mean: false, or model.from_scratch: true for new weights"
        )
        raise ConfigError(message, code="config.no_effect", key="task.start_at_mean", name=name)
    with torch.no_grad():
        layer.bias.copy_(torch.as_tensor(values))


def freeze_output_bias(model: TaskModel) -> None:
    """Freeze the bias of the output layer of multiple choice.

    It adds the same number to all choices of a question, so that its gradient is 0 apart from rounding. An optimizer
    that divides gradients by their size would change it at random.
    """
    for _, layer in output_layers(model.hf, 1):
        if layer.bias is not None:
            layer.bias.requires_grad_(False)


def output_layers(hf: Any, num_outputs: int) -> list[tuple[str, nn.Linear]]:
    """Return the linear layers with so many outputs that are not part of the encoder, with their names.

    In all classes of transformers the last one is the layer of the logits: layers of the same size come before it.
    """
    encoder = {id(module) for module in hf.base_model.modules()}
    return [
        (name, module)
        for name, module in hf.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == num_outputs and id(module) not in encoder
    ]


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Return the numbers of all parameters and of trained parameters; tied parameters count once."""
    parameters = list(model.parameters())
    more = sum(getattr(module, "num_more", 0) for module in model.modules())  # of quantized weights
    return sum(p.numel() for p in parameters) + more, sum(p.numel() for p in parameters if p.requires_grad)


def weights_fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 over names, shapes and values of all parameters, in hexadecimal.

    Values are hashed as float32: runs in fp64 and in fp32 with the same initial weights have the same fingerprint.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(values_of(parameter)().detach().float().cpu().contiguous().numpy().data)
    return digest.hexdigest()
