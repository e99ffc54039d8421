"""Writes the model card (`README.md`) of a smaller model."""

from collections.abc import Mapping, Sequence
from typing import Any

from paratune.base.text import plain
from paratune.base.units import format_bytes, format_share

_PIPELINES = {"qa": "question-answering", "token_classification": "token-classification"}
_USE_TORCH = """from transformers import {auto_class}, AutoTokenizer

model = {auto_class}.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")"""
_USE_ONNX = """import onnxruntime
from transformers import AutoTokenizer

session = onnxruntime.InferenceSession("FOLDER/model.onnx", providers=["CPUExecutionProvider"])
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer(["a text"], padding=True, truncation=True, return_tensors="np")
outputs = session.run(None, {entry.name: inputs[entry.name] for entry in session.get_inputs()})"""


def model_card(record: Mapping[str, Any], kind: str, names: Sequence[str]) -> str:
    """Return the card of a smaller model, from the content of `quantized.json` and the names of classes, if any."""
    is_torch = record["form"] == "bf16"
    source, size, check, settings = (record[key] for key in ("source", "size", "check", "settings"))
    auto_class = "AutoModelFor" + source["architecture"].partition("For")[2]
    decisions = "n/a (the output is a number)" if check["agreement"] is None else format_share(check["agreement"])
    rows = {
        "made from": f"{source['model']} ({source['architecture']})",
        "task": kind + (f": {', '.join(names)}" if names else ""),
        "size of the weights": f"{format_bytes(size['weights_bytes'])}, {format_share(size['share'])} of float32",
        **{name.replace("_", " "): _text(value) for name, value in settings.items()},
        "compared on": f"{check['num_rows']} rows of {check['data']}",
        "largest difference of an output": f"{check['max_abs']:.3g} (outputs reach {check['largest_output']:.3g})",
        "mean difference of an output": f"{check['mean_abs']:.3g}",
        "same decisions": decisions,
    }
    lines = [f"| {plain(key)} | {plain(value).replace('|', chr(92) + '|')} |" for key, value in rows.items()]
    use = _USE_TORCH.format(auto_class=auto_class) if is_torch else _USE_ONNX
    return "\n".join(
        [
            "---",
            f"library_name: {'transformers' if is_torch else 'onnxruntime'}",
            f"pipeline_tag: {_PIPELINES.get(kind, 'text-classification')}",
            "---",
            "",
            f"# {record['form']} model",
            "",
            "Made by `paratune quantize`. The licence is that of the original model.",
            "",
            "| | |",
            "|---|---|",
            *lines,
            "",
            "```python",
            use,
            "```",
            "",
            "`paratune evaluate FOLDER --data FILE` and `paratune predict FOLDER` apply it, too.",
            "",
        ]
    )


def _text(value: Any) -> str:
    """Return a setting for readers."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_text(entry)}" for key, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
