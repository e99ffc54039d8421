"""Divides a batch into parts, which the stages of a pipeline predict one after the other."""

from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from paratune.batch import Batch


def parts_of(batch: Batch, num_parts: int) -> list[Batch]:
    """Divide the samples of a padded batch into at most `num_parts` batches."""
    assert not batch.is_packed
    samples = len(batch.index)
    size = -(-samples // num_parts)
    sample_values: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    sample_values = {name: value for name, value in sample_values.items() if isinstance(value, Tensor)}
    places, offsets = sample_values.pop("label_places", None), sample_values.pop("sample_offsets", None)
    sequence_values = {
        name: sample_values.pop(name)
        for name in ("input_ids", "attention_mask", "token_type_ids", "labels")
        if name in sample_values and (name != "labels" or places is not None)  # then each token has a label
    }
    first_sequences = list(range(samples + 1)) if offsets is None else offsets.tolist()
    length = batch.input_ids.shape[1]
    parts = []
    for start in range(0, samples, size):
        end = min(start + size, samples)
        rows = slice(first_sequences[start], first_sequences[end])
        part = {name: value[start:end] for name, value in sample_values.items()}
        part |= {name: value[rows] for name, value in sequence_values.items()}
        if offsets is not None:
            part["sample_offsets"] = offsets[start : end + 1] - offsets[start]
        if places is not None:
            begin, behind = rows.start * length, rows.stop * length
            part["label_places"] = places[(places >= begin) & (places < behind)] - begin
        parts.append(replace(batch, **part))
    return parts
