"""`OnnxModel`: an ONNX file in the place of a model of transformers, computed by onnxruntime on the CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paratune.errors import CheckpointError, require

ONNX_FILE = "model.onnx"
"""File of a folder that `paratune quantize` wrote, in the place of `model.safetensors`."""


class OnnxModel(nn.Module):
    """Has the outputs of the exported model, but no weights and no gradients."""

    def __init__(self, folder: Path, config: Any) -> None:
        """Open `ONNX_FILE` of a folder on the CPU, with the threads of torch; `config` is that of the exported model.

        Raises:
            CheckpointError: The file cannot be read.
            MissingDependency: onnxruntime is not installed.
        """
        super().__init__()
        self.config, path = config, folder / ONNX_FILE
        onnxruntime = require("onnxruntime", extra="serve")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its classes have no common base class
            message = (
                f"{path} cannot be read by onnxruntime {onnxruntime.__version__}: {error}; copy the folder again, or "
                "install the version that its quantized.json names"
            )
            raise CheckpointError(message, code="model.cannot_load", path=path) from error
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        """Return the outputs by name: `logits`, or `start_logits` and `end_logits`; inputs are (B, S), int64.

        Without `token_type_ids`, they are 0 everywhere.
        """
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
        arrays = self._session.run(self._outputs, {name: given[name].numpy() for name in self._inputs})
        outputs = zip(self._outputs, arrays, strict=True)
        return SimpleNamespace(**{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in outputs})
