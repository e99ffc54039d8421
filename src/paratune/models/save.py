"""Writes the trained model as a plain Hugging Face folder that is complete or absent.

With the files by which sentence-transformers loads it: which pooling follows the encoder, and whether vectors are
normalised. They are plain JSON; sentence-transformers itself is not needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from safetensors import SafetensorError
from torch import Tensor

from paratune.base.atomic import replace_folder
from paratune.errors import CheckpointError, ConfigError
from paratune.models.adapters import merged_weights, save_adapter
from paratune.models.load import ADAPTER_LABELS
from paratune.models.locate import file_records
from paratune.models.quantized import plain_weights
from paratune.models.task_model import TaskModel
from paratune.models.tokenizer import save_tokenizer
from paratune.processes.progress import working
from paratune.records import read_json, write_json
from paratune.records.own import TASK_FILE, signed

MODULES_FILE: Final = "modules.json"
POOLING_FOLDER: Final = "1_Pooling"
LIMIT_FILE: Final = "sentence_bert_config.json"
_PACKAGE: Final = "sentence_transformers.models"
_POOLINGS: Final[dict[str, str]] = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}


@dataclass(frozen=True)
class SentenceModules:
    """What follows the encoder."""

    pooling: Literal["mean", "cls"]
    normalize: bool
    max_length: int | None = None
    """Most tokens of a text, special ones included; None where the folder has no limit."""


def write_modules(folder: Path, modules: SentenceModules, *, width: int) -> None:
    """Write the files into a model folder with config.json, weights and tokenizer; `width` is that of a vector.

    Raises:
        OSError: The folder cannot be written.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if modules.normalize else [])]
    entries = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"{_PACKAGE}.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    write_json(folder / MODULES_FILE, entries)
    write_json(folder / LIMIT_FILE, {"max_seq_length": modules.max_length, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    chosen = {key: name == modules.pooling for name, key in _POOLINGS.items()}
    pooling = {"word_embedding_dimension": width, **chosen}
    for number, kind in enumerate(kinds[1:], start=1):
        (folder / f"{number}_{kind}").mkdir()
    write_json(folder / POOLING_FOLDER / "config.json", {**pooling, "include_prompt": True})


def read_modules(folder: Path) -> SentenceModules | None:
    """Return what follows the encoder of a folder of sentence-transformers; None for other folders.

    Raises:
        ConfigError: It has modules or a pooling that paratune does not support, or its files are damaged.
    """
    if not (folder / MODULES_FILE).is_file():
        return None
    try:
        kinds = [str(entry["type"]).rpartition(".")[2] for entry in read_json(folder / MODULES_FILE)]
        poolings = _poolings(read_json(folder / POOLING_FOLDER / "config.json")) if "Pooling" in kinds else []
        limits = folder / LIMIT_FILE
        max_length = read_json(limits).get("max_seq_length") if limits.is_file() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unsupported(folder, f"its {MODULES_FILE} or {POOLING_FOLDER}/config.json is damaged: {error}") from error
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise _unsupported(folder, f"it has the modules {', '.join(kinds)}")
    if poolings not in (["mean"], ["cls"]):
        raise _unsupported(folder, f"its pooling is {', '.join(poolings) or 'none'}")
    length = max_length if isinstance(max_length, int) and max_length > 0 else None
    return SentenceModules("mean" if poolings == ["mean"] else "cls", "Normalize" in kinds, length)


def _poolings(config: dict[str, Any]) -> list[str]:
    """Return the poolings of a configuration: one option with names in newer versions, one for each pooling before."""
    names = config.get("pooling_mode")
    if names is not None:
        return [names] if isinstance(names, str) else [str(name) for name in names]
    chosen = [key for key, is_chosen in config.items() if key.startswith("pooling_mode_") and is_chosen is True]
    known = {key: name for name, key in _POOLINGS.items()}
    return [known.get(key, key) for key in chosen]


def _unsupported(folder: Path, problem: str) -> ConfigError:
    message = (
        f"{folder} is a model of sentence-transformers, and {problem}; supported are Transformer, Pooling (mean or "
        "cls) and Normalize"
    )
    return ConfigError(message, code="model.unsupported", source=folder)


def save_model(
    folder: Path,
    model: TaskModel,
    tokenizer: Any,
    tensors: Mapping[str, Tensor],
    task: Mapping[str, Any],
    *,
    adapter_base_model: str | None = None,
) -> None:
    """Write configuration, weights (safetensors), tokenizer and `paratune.json`: all files or none (see `atomic`).

    Args:
        model: Gives the architecture and the configuration; its own weights are not read.
        tensors: Whole weights on the CPU by their names in `model`, such as hf.classifier.weight.
        task: Content of `paratune.json` as JSON values; the hashes of the files are added.
        adapter_base_model: Folder or hub name of the base model; then only the adapter is written. None writes a plain
            model folder, with an adapter added to the weights.

    Raises:
        CheckpointError: The folder cannot be written; an existing folder is not changed.
    """
    try:
        state = {name.removeprefix("hf."): tensor.contiguous() for name, tensor in tensors.items()}
        with replace_folder(folder) as temporary, working(f"write {folder.name}"):
            if adapter_base_model is not None:
                save_adapter(temporary, model.hf, state, base=adapter_base_model, new_weights=model.new_weights)
                task = {**task, ADAPTER_LABELS: list(model.hf.config.id2label.values())}
            else:
                state = plain_weights(model.hf, state)
                whole = merged_weights(model.hf, state) if hasattr(model.hf, "peft_config") else state
                model.hf.save_pretrained(temporary, state_dict=whole)
            task = {**task, **save_tokenizer(temporary, tokenizer, task.get("max_length"))}
            if (own := task.get("task") or {}).get("kind") == "embedding":
                modules = SentenceModules(own["pooling"], own["normalize"], task["max_length"])
                write_modules(temporary, modules, width=model.hf.config.hidden_size)
            write_json(temporary / TASK_FILE, signed({**task, "files": file_records(temporary)}, temporary))
    except (OSError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        message = (
            f"{folder} could not be written: {error}; free space there or make it writable, then continue with "
            "--resume from the newest checkpoint, if checkpoint.every saved one"
        )
        raise CheckpointError(message, code="output.not_writable", folder=folder) from error
