"""Puts the rows of a loaded head in the order of the labels of the task.

transformers keeps a head of the right size whatever its labels are: of a model for [negative, positive], the row of
negative would start as that of "positive" in a task whose labels are in another order.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paratune.base.text import listing
from paratune.models.files import read_task_file

ADAPTER_LABELS = "head_labels"
"""Entry of `paratune.json` in an adapter folder, whose base model has other labels: those of the outputs, in order."""


def saved_labels(config: Any, adapter: Path | None) -> list[str]:
    """Return the labels of the outputs of a saved head, in order: LABEL_0, ... where they have no names.

    `config` is the model's own configuration, `adapter` the folder of the adapter that has the head.
    """
    if adapter is not None:
        labels = read_task_file(adapter).get(ADAPTER_LABELS) or []
    else:
        labels = [config.id2label[number] for number in sorted(config.id2label)]
    return [str(label) for label in labels]


def order_rows(
    hf: Any, saved: Sequence[str], names: Sequence[str], new: Sequence[str], *, is_ordinal: bool = False
) -> tuple[int, str] | None:
    """Put the rows of a loaded head in the order of the labels of a task; return level and text of a message, or None.

    Labels are the same up to case and white space around them. A head for other labels is kept as it is, as
    `from_pretrained` of transformers keeps it: its rows are a start like any other.

    Args:
        hf: On the CPU.
        saved: Labels of the rows, from `saved_labels`.
        names: Labels of the task, as many as the head has outputs.
        new: Names of the weights that were not loaded.
        is_ordinal: Whether an output stands for all labels above one, which are others in another order.
    """
    layer = _output_layer(hf, len(names))
    is_new = layer is not None and any(p is layer.weight for name, p in hf.named_parameters() if name in new)
    if list(saved) == list(names) or is_new or (layer is None and new):  # own code: a part of its head is new
        return None
    given, wanted = listing(saved, 4), listing(names, 4)
    key = str if set(saved) == set(names) else _key
    places = {key(name): row for row, name in enumerate(saved)}
    is_same_set = len(names) == len(places) == len(places.keys() & set(map(key, names)))
    order = [places[key(name)] for name in names] if is_same_set else []
    if not is_same_set or (is_ordinal and order != sorted(order)):
        if list(saved) == [f"LABEL_{number}" for number in range(len(saved))]:
            return logging.INFO, f"its labels are unknown, and its outputs now stand for {wanted}"
        return logging.WARNING, f"its outputs stood for {given}, and now stand for {wanted}"
    if order == sorted(order):
        return None
    if layer is None:
        text = f"its outputs stood for {given}, and now stand for {wanted}: rows of own code cannot be reordered"
        return logging.WARNING, text
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter[order])
    return logging.INFO, f"its rows for {given} are put in the order of task.labels: {wanted}"


def _key(label: str) -> str:
    return label.strip().casefold()


def _output_layer(hf: Any, num_outputs: int) -> nn.Linear | None:
    """Return the last linear layer with this number of outputs outside of the encoder; None in code of others.

    In all classes of transformers it is the layer of the logits: layers of the same size come before it.
    """
    if not type(hf).__module__.startswith("transformers."):
        return None
    encoder = {id(module) for module in hf.base_model.modules()}
    layers = [
        module
        for module in hf.modules()
        if isinstance(module, nn.Linear) and module.out_features == num_outputs and id(module) not in encoder
    ]
    return layers[-1] if layers else None
