"""Builds the model of a configuration with the head of its task, on the current default device, without its weights."""

from typing import Any

import torch

from paratune.config.sections import LoraOptions
from paratune.config.task_sections import EmbeddingTask, Task, class_names
from paratune.models.adapters import add_adapter
from paratune.models.embedding import embedding
from paratune.models.load import ENCODER, encoder_options
from paratune.models.task_model import TaskModel
from paratune.precision import Precision

_HEADS = {
    "embedding": ENCODER,
    "mlm": "AutoModelForMaskedLM",
    "qa": "AutoModelForQuestionAnswering",
    "token_classification": "AutoModelForTokenClassification",
}
"""Class of transformers by the kind of task; all others have a head for rows."""


def build_model(
    hf_config: Any, task: Task, precision: Precision, attention: str | None, adapter: LoraOptions | None = None
) -> TaskModel:
    """Return the model in training mode, with the adapter of `model.adapter` if there is one.

    `hf_config` is not changed. `attention` is transformers' name of it.
    """
    import transformers

    config = type(hf_config).from_dict(hf_config.to_dict())
    config.num_labels = 2 if task.kind == "qa" else max(1, len(class_names(task)))
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if attention is not None:
        config._attn_implementation = attention
    before = torch.get_default_dtype()
    torch.set_default_dtype(precision.pass_dtype or precision.param_dtype)
    try:
        auto_class = _HEADS.get(task.kind, "AutoModelForSequenceClassification")
        hf = getattr(transformers, auto_class).from_config(config, **encoder_options(auto_class, config))
        if adapter is not None:
            add_adapter(hf, adapter)
        objective = embedding(task) if isinstance(task, EmbeddingTask) else None
        return TaskModel(hf, task.kind, objective=objective).train()
    finally:
        torch.set_default_dtype(before)
