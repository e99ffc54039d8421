"""The model of a configuration with the head of its task, made on the device that is set, without weights behind it."""

from typing import Any

import torch

from paratune.config.task_sections import Task, class_names
from paratune.models.task_model import TaskModel
from paratune.precision import Precision

_HEADS = {"mlm": "AutoModelForMaskedLM", "qa": "AutoModelForQuestionAnswering"}
"""Class of transformers by the kind of task; all others have a head for rows."""


def build_model(hf_config: Any, task: Task, precision: Precision, attention: str | None) -> TaskModel:
    """Return the model in training mode; `hf_config` is not changed. `attention` is transformers' name of it."""
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
        maker = getattr(transformers, _HEADS.get(task.kind, "AutoModelForSequenceClassification"))
        return TaskModel(maker.from_config(config), task.kind).train()
    finally:
        torch.set_default_dtype(before)
