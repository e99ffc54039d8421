"""Whether a model computes packed batches as it computes padded ones: tried at the start, on three short rows.

Attention is replaced by one that keeps to the rows (`models.attention`). Some architectures have attention of their own
and ignore that without a word; so nothing is assumed of any of them. Floor 3.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor, nn

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.models.attention.check import TOLERANCE, why_not
from paratune.models.attention.disentangled import attach
from paratune.models.attention.register import register
from paratune.models.last_layer import shorten_last_layer
from paratune.models.task_model import PackedEntry, TaskModel, find_blocks

_log = logging.getLogger(__name__)
_LENGTHS: Final = (5, 11, 8)
_TOLERANCE: Final = {torch.float64: 1e-9}
"""Largest difference, as a part of the largest number; `_ELSE` for other dtypes."""
_ELSE: Final = 1e-4
_NOISE: Final = 8
"""How many times as far from the CPU's numbers packed rows may be as padded ones, in the precision of the run. What
rounding does to the two has one size; what a kernel does to numbers of a dtype that it does not expect has not."""
_SMALL: Final = 4096
"""Rows of an embedding whose gradient is compared: positions and token types, not words."""


def find_entry(
    model: TaskModel, *, packs: bool = True, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> None:
    """Let a model take packed batches if it gives the same outputs and gradients for them, else note why not.

    Sets `entry`, `why_padded` and `head_takes_labelled`. The model is on the CPU, as it was loaded; it is tried without
    dropout, and left there in the mode it was in. No random number is drawn.

    Args:
        model: All of its parameters that will be trained want a gradient.
        packs: Whether packed batches are wanted; if not, only the head of a masked LM is tried.
        device: Where it will compute; the CPU when not given. Its attention kernel is tried as well, and on another
            device than the CPU the model.
        dtype: Of autocast there; none when not given. With it the model is tried on the CPU too.
    """
    register()
    if dtype == next(model.parameters()).dtype:
        dtype = None
    model.entry, model.head_takes_labelled = None, False
    is_on_cpu = device is None or device.type == "cpu"
    model.row_readers = () if (reader := attach(model.hf)) is None else (reader,)
    model.why_padded = _refusal(model, is_on_cpu=is_on_cpu)
    if model.why_padded is not None or not (packs or model.head_reads == "labelled"):
        return
    with _trying(model):
        padded = _probe(model)
        expected, error = _run(model, padded)
        if model.head_reads == "labelled" and expected is not None:
            model.head_takes_labelled = True
            model.head_takes_labelled = _is_same(_run(model, padded)[0], expected)
        for entry in _entries(model) if packs and expected is not None else []:
            model.entry = entry
            found, error = _run(model, pack(padded))
            if _is_same(found, expected):
                where = device or torch.device("cpu")
                model.why_padded = _kernel_fails(model, where, dtype)
                if model.why_padded is None and (where.type, dtype) != ("cpu", None):
                    assert expected is not None
                    model.why_padded = _precision_fails(model, padded, expected, where, dtype)
                    if model.why_padded is not None and entry.shortens:
                        continue  # with the whole last layer it may be right
                model.entry = entry if model.why_padded is None else None
                return
    model.entry = None
    why = f" ({error})" if error is not None else ""
    model.why_padded = f"{type(model.hf).__name__} does not give the same for packed rows as for padded ones{why}"


def _kernel_fails(model: TaskModel, device: torch.device, dtype: torch.dtype | None) -> str | None:
    """Return why the kernel that trains there is not to be used: what was tried had short rows and no dropout."""
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


def _precision_fails(
    model: TaskModel, padded: Batch, expected: list[Tensor], device: torch.device, dtype: torch.dtype | None
) -> str | None:
    """Return why packed rows are not to be used in the precision of the run, on its device; None where they may be.

    Padded and packed rows go through the model there, forward and backward, and both are compared with `expected`, of
    the CPU. A model that has no room there, or gives no numbers for padded rows either, is not judged.
    """
    computed_in = dtype or next(model.parameters()).dtype
    precision = f"{device.type} in {computed_in}"
    try:
        with _moved(model, device), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            found = [_run(model, batch.to(device)) for batch in (padded, pack(padded))]
    except torch.OutOfMemoryError:
        _log.info("packed rows were not tried in the model on %s: it has no room there before it is sharded", device)
        return None
    (by_padding, _), (by_packing, error) = found
    if by_padding is None or not all(bool(x.isfinite().all()) for x in by_padding):
        return None
    if by_packing is None:
        return f"packed rows failed on {precision}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    noise, apart = (_distances(tensors, expected) for tensors in (by_padding, by_packing))
    allowed = [max(_NOISE * x, TOLERANCE[computed_in]) for x in noise]
    if all(x <= most for x, most in zip(apart, allowed, strict=True)):  # false for NaN
        return None
    return (
        f"packed rows on {precision} are off by {max(apart):.1e} of the largest number, padded ones by {max(noise):.1e}"
    )


@contextmanager
def _moved(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Let a model compute on a device; its own tensors, which may be views of a file, are put back at the end."""
    tensors = [*model.parameters(), *model.buffers()]
    own = [tensor.data for tensor in tensors]
    try:
        for tensor, data in zip(tensors, own, strict=True):
            tensor.data = data.to(device)
        yield
    finally:
        for tensor, data in zip(tensors, own, strict=True):
            tensor.data = data


def _refusal(model: TaskModel, *, is_on_cpu: bool) -> str | None:
    """Return why trying is of no use, or would do harm: BigBird gives up its sparse attention after one short text."""
    name, config = type(model.hf).__name__, getattr(model.hf, "config", None)
    if getattr(config, "vocab_size", None) is None:
        return f"the configuration of {name} names no vocab_size to try packed rows with"
    if model.row_readers:
        return None if is_on_cpu else f"{name} has its own attention, which supports packed rows on the CPU only"
    if not getattr(type(model.hf), "_supports_attention_backend", False):
        return f"{name} has its own attention, which does not support packed rows"
    if any(getattr(module, "is_causal", False) for module in model.hf.modules()):
        return f"{name} is a decoder, and packed rows are for encoders"
    return None


def _entries(model: TaskModel) -> list[PackedEntry]:
    """Return what may be right: a row begins at position 0, or behind the padding token's id (RoBERTa and its kin)."""
    offsets = (0, int(getattr(model.hf.config, "pad_token_id", None) or 0) + 1)
    if model.head_reads != "rows":
        return [PackedEntry(offset) for offset in offsets]
    blocks = find_blocks(model.hf)
    shortens = [True, False] if blocks and shorten_last_layer(blocks[-1]) else [False]
    return [
        *(PackedEntry(offset, "first", each) for offset, each in product(offsets, shortens)),
        *(PackedEntry(offset, "mean") for offset in offsets),
    ]


@contextmanager
def _trying(model: TaskModel) -> Iterator[None]:
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was


def _probe(model: TaskModel) -> Batch:
    """Return three rows of tokens, padded."""
    config = model.hf.config
    size, padding = int(config.vocab_size), getattr(config, "pad_token_id", None)
    mask_BS = (torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS)[:, None]).long()
    ids_BS = torch.randint(0, size, mask_BS.shape, generator=torch.Generator().manual_seed(0))
    if (hidden := getattr(config, "mask_token_id", None)) is not None:
        ids_BS[0, 1] = ids_BS[1, 2:6] = hidden  # some models look at their share of a row
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
    return Batch(
        input_ids=ids_BS,
        row_weight=torch.ones(len(_LENGTHS)),
        index=torch.arange(len(_LENGTHS)),
        num_samples=len(_LENGTHS),
        num_tokens=sum(_LENGTHS),
        num_padded_tokens=ids_BS.numel(),
        loss_denominator=1.0,
        attention_mask=mask_BS,
        token_type_ids=types_BS,
        max_seqlen=max(_LENGTHS),
        labels=labels,
        label_places=places,
    )


def _run(model: TaskModel, batch: Batch) -> tuple[list[Tensor] | None, Exception | None]:
    """Return outputs, and gradients of `_watched`; or what the model raised."""
    try:
        return _outputs_and_gradients(model, batch), None
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever its code comes to with these rows
        return None, error


def _outputs_and_gradients(model: TaskModel, batch: Batch) -> list[Tensor]:
    with torch.enable_grad():
        outputs = model(batch)
        if model.head_reads == "tokens":  # what stands in the place of padding means nothing
            mask_BS = torch.arange(batch.max_seqlen) < torch.tensor(_LENGTHS)[:, None]
            outputs = outputs.where(mask_BS.unsqueeze(-1).to(outputs.device), 0.0)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype, device=outputs.device).view_as(outputs)
        gradients = torch.autograd.grad((outputs * weights).sum(), _watched(model), allow_unused=True)
    tensors = [outputs.detach(), *(torch.zeros(1) if gradient is None else gradient for gradient in gradients)]
    return [tensor.cpu() for tensor in tensors]


def _watched(model: TaskModel) -> list[Any]:
    """Return parameters of the first block and of small embeddings: their gradients have been through all of it."""
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
    modules = [*(each for each in embeddings if len(each.weight) <= _SMALL), *find_blocks(model.hf)[:1]]
    return [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]


def _is_same(found: list[Tensor] | None, expected: list[Tensor] | None) -> bool:
    if found is None or expected is None:
        return False
    if any(tensor.shape != other.shape for tensor, other in zip(found, expected, strict=True)):
        return False
    allowed = [_TOLERANCE.get(other.dtype, _ELSE) for other in expected]
    return all(apart <= most for apart, most in zip(_distances(found, expected), allowed, strict=True))


def _distances(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return how far outputs and each gradient are from what is expected, each as a part of its largest number."""
    # Outputs are compared beside how far they differ among themselves: a bias may be far larger than that.
    spread = expected[0] - expected[0].mean(dim=0)
    # The gradient of a key's bias is 0 but for rounding: what is far below all others is not compared with itself.
    floor = 1e-2 * max((float(gradient.abs().max()) for gradient in expected[1:]), default=0.0)
    scales = [float(spread.abs().max()), *(max(float(gradient.abs().max()), floor) for gradient in expected[1:])]
    apart = [float((tensor - other).abs().max()) for tensor, other in zip(found, expected, strict=True)]
    return [x / scale if scale > 0 else x and float("inf") for x, scale in zip(apart, scales, strict=True)]
