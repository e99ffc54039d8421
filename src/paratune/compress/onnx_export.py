"""Exports a model to an ONNX file, and quantizes such a file with onnxruntime.

Weights are 8-bit integers with a scale for each output channel. They use 7 of the 8 bits: on a CPU without VNNI, sums
of products of 8 bits exceed 16 bits and are cut off, so that results would depend on the CPU.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paratune.batch import Batch
from paratune.errors import ConfigError, require, require_installed

OPSET = 18
"""Version of ONNX's operators."""
OPERATORS = ("MatMul", "Gather")
"""Operators whose weights become integers: linear layers and embeddings. Products inside attention stay float32."""


class _Exported(nn.Module):
    """A model of transformers with tensors as inputs and outputs."""

    def __init__(self, hf: Any, names: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self._hf, self._names, self._outputs = hf, names, outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        result = self._hf(**dict(zip(self._names, inputs, strict=True)))
        return tuple(getattr(result, name) for name in self._outputs)


def require_onnx() -> None:
    """Raise MissingDependency where a package of the extra `serve` is not installed."""
    for name in ("onnx", "onnxruntime"):
        require_installed(name, extra="serve")


def batch_inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the inputs of a padded batch by name."""
    assert batch.attention_mask is not None
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    return inputs if batch.token_type_ids is None else inputs | {"token_type_ids": batch.token_type_ids}


def export_onnx(hf: Any, batch: Batch, path: Path, target: str) -> None:
    """Write a model as an ONNX file for any batch size and length.

    The exporter follows the operators of one batch: it takes a second, where that of `torch.export` takes ten and needs
    onnxscript. It would not notice a model that decides by its inputs; `quantize.compare` does, on other rows.

    Args:
        hf: Model of transformers, float32, on the CPU, in evaluation mode.
        batch: Padded rows.
        path: File.
        target: Name of the model in messages.

    Raises:
        ConfigError: The architecture cannot be exported.
    """
    inputs = batch_inputs(batch)
    outputs = ("start_logits", "end_logits") if "ForQuestionAnswering" in type(hf).__name__ else ("logits",)
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    axes |= {name: {0: "batch"} for name in outputs}
    earlier, hf.config._attn_implementation = hf.config._attn_implementation, "eager"
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # that this exporter is the older one, and on constants of the trace
            torch.onnx.export(
                _Exported(hf, list(inputs), outputs).eval(),
                tuple(inputs.values()),
                path,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
    except OSError:  # a full disk: the architecture is not the reason
        raise
    except Exception as error:  # torch raises many kinds here
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{target} ({type(hf).__name__}) cannot be exported to ONNX: {first}; use --to bf16, which needs no export",
            code="quantize.export",
            target=target,
            architecture=type(hf).__name__,
        ) from error
    finally:
        hf.config._attn_implementation = earlier


def quantize_dynamic(source: Path, path: Path) -> None:
    """Write a file with integer weights; the range of activations is computed for each batch, while it runs."""
    quantization: Any = require("onnxruntime.quantization", extra="serve")
    with _quiet():
        quantization.quantize_dynamic(
            source,
            path,
            op_types_to_quantize=list(OPERATORS),
            per_channel=True,
            reduce_range=True,  # leaves one of the 8 bits unused
            weight_type=quantization.QuantType.QInt8,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what onnxruntime logs at the root logger, such as advice on preprocessing for convolutions."""
    root = logging.getLogger()
    earlier, handlers, root.disabled = root.disabled, list(root.handlers), True
    try:
        yield
    finally:
        root.disabled, root.handlers[:] = earlier, handlers  # its first message would add a handler
