"""Chooses the layout of batches; tests whether a model gives the same results for packed batches as for padded ones.

Packed batches need an attention function that attends only within a row (`models.attention`). Some architectures have
their own attention and silently ignore that function; so every model is tested, with three short rows, before it gets
packed batches.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

import torch
from torch import Tensor, nn

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.config.traits import Traits
from paratune.errors import ConfigError
from paratune.models.attention.check import TOLERANCE, why_not
from paratune.models.attention.disentangled import attach
from paratune.models.attention.register import register
from paratune.models.blocks import shorten_last_layer
from paratune.models.task_model import PackedEntry, TaskModel, find_blocks, trial_batch
from paratune.precision import changed

_BUCKETS = 4
"""Parts of a micro-batch in the bucketed layout on the CPU, where small passes have no extra cost per pass."""
_log = logging.getLogger(__name__)
_LENGTHS: Final = (5, 11, 8)
_TOLERANCE: Final = {torch.float64: 1e-9}
"""Largest relative difference (to the largest number); `_OTHER_TOLERANCE` for other dtypes."""
_OTHER_TOLERANCE: Final = 1e-4
_NOISE: Final = 8
"""Largest ratio of the differences of packed and of padded rows from the CPU's results, in the precision of the run.
Rounding makes differences of similar size for both; a kernel that misreads its inputs makes far larger ones."""
_SMALL: Final = 4096
"""Most rows of an embedding whose gradient is compared: embeddings of positions and token types, not of words."""


@dataclass(frozen=True)
class BatchLayout:
    """The chosen layout with its options."""

    kind: Literal["packed", "bucketed", "padded"]
    reason: str | None = None
    """Why it is not packed; None where it is packed, or another layout was configured."""
    num_buckets: int | None = None
    """See `TrainBatches.num_buckets`."""
    rounds: bool = False
    """See `PackedCollator.rounds`."""


def choose_batch_layout(
    configured: Literal["auto", "packed", "bucketed", "padded"],
    traits: Traits,
    *,
    entry: PackedEntry | None,
    why_padded: str | None,
    on_cpu: bool,
    compiles: bool = False,
) -> BatchLayout:
    """Return the layout of a run's batches, from `batch.layout` and the traits of the strategy.

    `entry` and `why_padded` are those of the `TaskModel`, which `packed.enable_packed_batches` sets; `compiles` is
    `train.compile`. On the CPU, without compilation, repeated shapes have no advantage.

    Raises:
        ConfigError: The model or the strategy does not support the layout of `batch.layout`.
    """
    if traits.equal_shapes:
        reason = f"strategy.kind: {traits.kind} needs micro-batches of equal shapes"
        if configured in ("packed", "bucketed"):
            message = f"batch.layout: {configured}, but {reason}; set batch.layout: padded or auto"
            raise ConfigError(message, code="model.unsupported", key="batch.layout", value=configured)
        return BatchLayout("padded", reason if configured == "auto" else None)
    if configured == "padded":
        return BatchLayout("padded")
    if configured in ("auto", "packed") and entry is not None:
        return BatchLayout("packed", rounds=compiles or not on_cpu)
    if configured == "packed":
        message = f"batch.layout: packed, but {why_padded}; set batch.layout: auto"
        raise ConfigError(message, code="model.unsupported", key="batch.layout")
    is_divided = on_cpu and not traits.gathers_per_micro_step and not traits.reduces_each_micro_step
    return BatchLayout("bucketed", why_padded if configured == "auto" else None, _BUCKETS if is_divided else 1)


def enable_packed_batches(
    model: TaskModel,
    *,
    packs: bool = True,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    trial: AbstractContextManager[None] | None = None,
) -> None:
    """Enable packed batches for a model that gives the same outputs and gradients with them; else store the reason.

    Sets `entry`, `why_padded` and `head_takes_labelled` of the model, which is on the CPU and stays there. The test has
    no dropout and draws no random numbers; the training mode is restored.

    Args:
        model: Its parameters require gradients where they will be trained.
        packs: Whether packed batches are wanted; if not, only the head of a masked LM is tested.
        device: Device of the run; the CPU when not given. The attention kernel of the device is tested, and the model
            on the device where it is not the CPU.
        dtype: Dtype of autocast in the run; None without autocast. With it, the model is tested on the CPU, too.
        trial: The context of the test, such as `models.stored.few_blocks`: all blocks are changed, a few are tested.
    """
    register()
    model.entry, model.head_takes_labelled = None, False
    is_on_cpu = device is None or device.type == "cpu"
    model.packed_readers = () if (reader := attach(model.hf)) is None else (reader,)
    model.why_padded = _untestable_reason(model, is_on_cpu=is_on_cpu)
    if model.why_padded is not None or not (packs or model.head_reads == "labelled"):
        return
    with trial or nullcontext(), _evaluation_mode(model):
        dtype = None if dtype == next(model.parameters()).dtype else dtype
        padded = _probe(model)
        expected, error = _run(model, padded)
        if model.head_reads == "labelled" and expected is not None:
            model.head_takes_labelled = True
            model.head_takes_labelled = _is_same(_run(model, padded)[0], expected)
        for entry in _entries(model) if packs and expected is not None else []:
            model.entry = entry
            packed, error = _run(model, pack(padded))
            if _is_same(packed, expected):
                where = device or torch.device("cpu")
                model.why_padded = _kernel_problem(model, where, dtype)
                if model.why_padded is None and (where.type, dtype) != ("cpu", None):
                    assert expected is not None
                    model.why_padded = _precision_problem(model, padded, expected, where, dtype)
                    if model.why_padded is not None and entry.shortens:
                        continue  # the next entry has the whole last layer, which may be correct
                model.entry = entry if model.why_padded is None else None
                return
    model.entry = None
    why = f" ({error})" if error is not None else ""
    model.why_padded = f"{type(model.hf).__name__} gives different results for packed and padded rows{why}"


def _kernel_problem(model: TaskModel, device: torch.device, dtype: torch.dtype | None) -> str | None:
    """Return why the attention kernel of the device cannot be used, or None; the rows of the model test are short."""
    config = model.hf.config
    num_heads = int(getattr(config, "num_attention_heads", 1))
    layers = [module for module in model.hf.modules() if hasattr(module, "is_causal")]
    return why_not(
        device,
        dtype or next(model.parameters()).dtype,
        num_heads=num_heads,
        head_width=int(getattr(config, "head_dim", None) or getattr(config, "hidden_size", 64) // num_heads),
        windows=[getattr(layer, "sliding_window", None) for layer in layers],
    )


def _precision_problem(
    model: TaskModel, padded: Batch, expected: list[Tensor], device: torch.device, dtype: torch.dtype | None
) -> str | None:
    """Return why packed rows cannot be used on the device in the precision of the run; None where they can.

    Padded and packed rows run through the model there, forward and backward, and both are compared with `expected` from
    the CPU. There is no verdict (None) for a model that does not fit, or has infinite results for padded rows, too.
    """
    computed_in = dtype or next(model.parameters()).dtype
    precision = f"{device.type} in {computed_in}"
    all_tensors = [*model.parameters(), *model.buffers()]
    try:
        with (
            changed(all_tensors, lambda tensor: tensor.data.to(device)),
            torch.autocast(device.type, dtype=dtype, enabled=dtype is not None),
        ):
            results = [_run(model, batch.to(device)) for batch in (padded, pack(padded))]
    except torch.OutOfMemoryError:
        _log.info("packed rows were not tested in the model on %s: it does not fit before it is sharded", device)
        return None
    (by_padding, _), (by_packing, error) = results
    if by_padding is None or not all(bool(x.isfinite().all()) for x in by_padding):
        return None
    if by_packing is None:
        return f"packed rows failed on {precision}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    noise, differences = (_distances(tensors, expected) for tensors in (by_padding, by_packing))
    allowed = [max(_NOISE * x, TOLERANCE[computed_in]) for x in noise]
    if all(x <= limit for x, limit in zip(differences, allowed, strict=True)):  # false for NaN
        return None
    return (
        f"packed rows on {precision} differ by {max(differences):.1e} of the largest number, "
        f"padded rows by {max(noise):.1e}"
    )


def _untestable_reason(model: TaskModel, *, is_on_cpu: bool) -> str | None:
    """Return why the test is useless or harmful (BigBird drops its sparse attention after one short text), or None."""
    name, config = type(model.hf).__name__, getattr(model.hf, "config", None)
    if getattr(config, "vocab_size", None) is None:
        return f"the configuration of {name} has no vocab_size, which the test of packed rows needs"
    if model.packed_readers:
        return None if is_on_cpu else f"{name} has its own attention, which supports packed rows on the CPU only"
    if not getattr(type(model.hf), "_supports_attention_backend", False):
        return f"{name} has its own attention, which does not support packed rows"
    if any(getattr(module, "is_causal", False) for module in model.hf.modules()):
        return f"{name} is a decoder, and packed rows are for encoders"
    return None


def _entries(model: TaskModel) -> list[PackedEntry]:
    """Return the entries to test; no configuration shows which one is right for an architecture."""
    # Position ids of a row begin at 0, or after the id of the padding token (RoBERTa and similar models).
    offsets = (0, int(getattr(model.hf.config, "pad_token_id", None) or 0) + 1)
    if model.head_reads != "rows":
        return [PackedEntry(offset) for offset in offsets]
    blocks = find_blocks(model.hf)
    can_shorten = [True, False] if blocks and shorten_last_layer(blocks[-1]) else [False]
    return [
        *(PackedEntry(offset, "first", shortens) for offset, shortens in product(offsets, can_shorten)),
        *(PackedEntry(offset, "mean") for offset in offsets),
    ]


@contextmanager
def _evaluation_mode(model: TaskModel) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training


def _probe(model: TaskModel) -> Batch:
    """Return three rows of tokens, padded."""
    config = model.hf.config
    size, padding = int(config.vocab_size), getattr(config, "pad_token_id", None)
    mask_BS = (torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS)[:, None]).long()
    ids_BS = torch.randint(0, size, mask_BS.shape, generator=torch.Generator().manual_seed(0))
    if (hidden := getattr(config, "mask_token_id", None)) is not None:
        ids_BS[0, 1] = ids_BS[1, 2:6] = hidden  # some models (ESM) scale by the share of masks in a row
    if padding is not None:
        ids_BS = torch.where(ids_BS == padding, (padding + 1) % size, ids_BS).where(mask_BS > 0, padding)
    types_BS = None
    if getattr(config, "type_vocab_size", 0) > 1:
        types_BS = (torch.arange(max(_LENGTHS)) > 3).long().expand_as(ids_BS) * mask_BS
    labels = places = None
    if model.head_reads == "labelled":
        labels = torch.full_like(ids_BS, -100)
        labels[:, 1:4:2] = 1
        places = (labels.flatten() >= 0).nonzero().squeeze(1)
    return trial_batch(ids_BS, mask_BS, token_type_ids=types_BS, labels=labels, label_places=places)


def _run(model: TaskModel, batch: Batch) -> tuple[list[Tensor] | None, Exception | None]:
    """Return outputs and gradients, or the error of the model."""
    try:
        return _outputs_and_gradients(model, batch), None
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the code of a model may raise anything for packed rows
        return None, error


def _outputs_and_gradients(model: TaskModel, batch: Batch) -> list[Tensor]:
    with torch.enable_grad():
        outputs = model(batch)
        if model.head_reads == "tokens":  # outputs of padding have no meaning
            mask_BS = torch.arange(batch.max_seqlen) < torch.tensor(_LENGTHS)[:, None]
            outputs = outputs.where(mask_BS.unsqueeze(-1).to(outputs.device), 0.0)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype, device=outputs.device).view_as(outputs)
        # Gradients of small embeddings and of the first block pass through all layers.
        small = [m for m in model.modules() if isinstance(m, nn.Embedding) and len(m.weight) <= _SMALL]
        parameters = [p for module in (*small, *find_blocks(model.hf)[:1]) for p in module.parameters()]
        watched = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = torch.autograd.grad((outputs * weights).sum(), watched, allow_unused=True)
    tensors = [outputs.detach(), *(torch.zeros(1) if gradient is None else gradient for gradient in gradients)]
    return [tensor.cpu() for tensor in tensors]


def _is_same(tensors: list[Tensor] | None, expected: list[Tensor] | None) -> bool:
    if tensors is None or expected is None:
        return False
    if any(tensor.shape != other.shape for tensor, other in zip(tensors, expected, strict=True)):
        return False
    allowed = [_TOLERANCE.get(other.dtype, _OTHER_TOLERANCE) for other in expected]
    return all(difference <= limit for difference, limit in zip(_distances(tensors, expected), allowed, strict=True))


def _distances(tensors: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return the largest differences of outputs and of each gradient, relative to the largest number of each."""
    # Outputs are scaled by their spread over rows, because a common bias may be far larger.
    spread = expected[0] - expected[0].mean(dim=0)
    # The gradient of a key's bias is 0 up to rounding: such gradients are scaled by the others, not by themselves.
    floor = 1e-2 * max((float(gradient.abs().max()) for gradient in expected[1:]), default=0.0)
    scales = [float(spread.abs().max()), *(max(float(gradient.abs().max()), floor) for gradient in expected[1:])]
    differences = [float((tensor - other).abs().max()) for tensor, other in zip(tensors, expected, strict=True)]
    return [x / scale if scale > 0 else x and float("inf") for x, scale in zip(differences, scales, strict=True)]
