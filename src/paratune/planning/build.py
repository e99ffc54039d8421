"""Builds the model of a configuration with the head of its task, on the current default device, without its weights."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paratune.config.permission import is_allowed
from paratune.config.sections import ModelOptions
from paratune.config.task_sections import EmbeddingTask, Task, class_names
from paratune.errors import ConfigError
from paratune.models.adapters import add_adapter
from paratune.models.embedding import embedding
from paratune.models.load import ENCODER, encoder_options
from paratune.models.own_model import own_model_class
from paratune.models.task_model import TaskModel
from paratune.precision import Precision

_HEADS = {
    "embedding": ENCODER,
    "mlm": "AutoModelForMaskedLM",
    "multiple_choice": "AutoModelForMultipleChoice",
    "qa": "AutoModelForQuestionAnswering",
    "token_classification": "AutoModelForTokenClassification",
}
"""Class of transformers by the kind of task; all others have a head for rows."""


class _SortedSet(set[Any]):
    """A set whose order does not depend on PYTHONHASHSEED."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))


@contextmanager
def sets_in_order(model: nn.Module) -> Iterator[None]:
    """Let the code of a model loop over sets in a fixed order, and so allocate in a fixed order.

    ModernBERT loops over the set of its kinds of layers: each process would plan another fragmentation.
    """
    names = {type(module).__module__ for module in model.modules()}
    modules = [vars(sys.modules[name]) for name in names if name.startswith("transformers.models.")]
    for module in modules:
        module["set"] = _SortedSet  # found before the built-in name
    try:
        yield
    finally:
        for module in modules:
            module.pop("set", None)


def build_model(
    hf_config: Any, task: Task, precision: Precision, attention: str | None, model_options: ModelOptions | None = None
) -> TaskModel:
    """Return the model in training mode, with the adapter, the own head or the class of `model_options`.

    A head or a class that may not be imported here (`paratune.config.permission`) is replaced by the head of the task.

    `hf_config` is not changed. `attention` is transformers' name of it.

    Raises:
        ConfigError: Code outside the package cannot be imported, or does not fit the model; or the model has no head
            for the task, or cannot be made of its configuration.
    """
    import transformers

    config = type(hf_config).from_dict(hf_config.to_dict())
    config.num_labels = 2
    if task.kind != "qa":
        num_classes = len(class_names(task)) - (task.kind == "ordinal")  # ordinal: "is the label above class k?"
        config.num_labels = int(getattr(task, "num_outputs", max(1, num_classes)))
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if attention is not None:
        config._attn_implementation = attention
    before, dtype = torch.get_default_dtype(), precision.pass_dtype or precision.param_dtype
    config.dtype = dtype  # not that of the model's files: training loads the weights in its own
    torch.set_default_dtype(dtype)
    try:
        auto_class = _HEADS.get(task.kind, "AutoModelForSequenceClassification")
        maker, options = getattr(transformers, auto_class), encoder_options(auto_class, config)
        own_class = None
        if model_options is not None:
            name = model_options.class_ if model_options.head is None else model_options.head.function
            is_refused = name is not None and not is_allowed(name)
            importable = {"head": None, "class_": None} if is_refused else {}
            own_class = own_model_class(model_options.model_copy(update=importable), config)
        try:
            hf = maker.from_config(config, **options) if own_class is None else own_class._from_config(config)
        except Exception as error:  # transformers raises many kinds here
            if own_class is not None:
                raise
            first_line = next(iter(str(error).splitlines()), type(error).__name__)
            message = f"model.name: {maker.__name__} cannot make a model of its config.json ({config.model_type}): "
            raise ConfigError(
                message + first_line, code="model.cannot_load", key="model.name", model_type=config.model_type
            ) from error
        if model_options is not None and model_options.adapter is not None:
            add_adapter(hf, model_options.adapter)
        for parameter in hf.parameters():  # some models make a weight in float32 whatever the default is
            if parameter.dtype == torch.float32 != dtype:
                parameter.data = parameter.data.to(dtype)
        objective = embedding(task) if isinstance(task, EmbeddingTask) else None
        return TaskModel(hf, task.kind, objective=objective).train()
    finally:
        torch.set_default_dtype(before)
