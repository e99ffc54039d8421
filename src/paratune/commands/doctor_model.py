"""The facts about the model that `paratune doctor CONFIG` checks: files, type, size. No weights are loaded."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from paratune.base.token_ids import num_token_ids
from paratune.config.feasibility import lacks_decoder_start
from paratune.config.permission import REMOTE_CODE, NamedCode, allow, is_allowed
from paratune.config.sections import Config, ModelOptions
from paratune.doctor.facts import ModelFacts
from paratune.errors import ParatuneError, nearest_name
from paratune.models.config import load_config, max_positions, most_tokens
from paratune.models.load import WEIGHT_FILES
from paratune.models.locate import file_problems, load_error, locate
from paratune.models.tokenizer import TOKENIZER_FILES, load_tokenizer

LFS_HEAD = b"version https://git-lfs"
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
_CONFIG_KINDS = {"model_type": str, "vocab_size": int, "num_hidden_layers": int, "id2label": dict}
"""Types of the values of config.json that are read here."""


def model_facts(config: Config, environ: Mapping[str, str]) -> tuple[ModelFacts, Any, int | None]:
    """Return the facts about the model of a configuration.

    Args:
        environ: Environment of the run, which may set the cache of the hub.

    Returns:
        The facts; the tokenizer, None if it cannot be loaded; and the maximum number of tokens of the model, None if
        it has no limit or is unknown.
    """
    facts, tokenizer, limit = _files(config.model, hub_cache(environ)), None, None
    # Python code of a model is not run; other findings have the reason where files are missing.
    if facts.folder is not None and not (facts.needs_code or facts.error or facts.missing or facts.damaged):
        try:
            count = _count(_local(config.model, facts))
            facts = replace(facts, num_parameters=count) if config.model.from_scratch else facts
        except ParatuneError as error:
            if error.code == "model.cannot_load":
                facts = replace(facts, damaged=(("config.json", f"describes no model: {error}"),))
    if facts.error is None and (facts.folder is not None) and facts.has_tokenizer and not facts.damaged:
        try:
            tokenizer = load_tokenizer(_local(config.model, facts), config.data.truncation_side)
            facts = replace(facts, num_tokens=num_token_ids(tokenizer))
        except ParatuneError as error:
            # Its own Python code is not imported without --run-code: unknown, and no problem.
            facts = replace(facts, tokenizer_error=None if error.code == "code.refused" else str(error))
    if tokenizer is not None and facts.model_type is not None:
        with suppress(ParatuneError):
            own = load_config(_local(config.model, facts))
            limit = (max_positions if config.data.max_length is None else most_tokens)(own, tokenizer)
            if config.model.from_scratch:  # the configured size, or that of the tokenizer
                facts = replace(facts, vocab_size=getattr(own, "vocab_size", None))
    return facts, tokenizer, limit


def _count(model: ModelOptions) -> int:
    """Return the number of parameters of the architecture in config.json and `model.overrides`, on the meta device.

    Raises:
        ConfigError: It cannot be built.
    """
    import torch
    from transformers import AutoModel

    config = load_config(model)
    try:
        with torch.device("meta"):
            model_on_meta = AutoModel.from_config(config)
    except Exception as error:
        raise load_error("model", model.name, error) from error
    return sum(parameter.numel() for parameter in model_on_meta.parameters())


def _local(model: ModelOptions, facts: ModelFacts) -> ModelOptions:
    """Return the section with the local folder as its name, so that no request goes to the hub."""
    update: dict[str, Any] = {"name": str(facts.folder), "revision": None}
    if model.trust_remote_code and is_allowed(model.name):
        allow([NamedCode(REMOTE_CODE, str(facts.folder))])
    return model.model_copy(update=update)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of the hub's cache by the rules of huggingface_hub."""
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _files(model: ModelOptions, cache: Path) -> ModelFacts:
    try:
        source = locate(model.name)
    except ParatuneError as error:
        path, nearest = Path(model.name).expanduser(), None
        with suppress(OSError, ValueError):  # the name is too long
            folders = [] if path.exists() else [folder.name for folder in path.parent.iterdir() if folder.is_dir()]
            nearest = nearest_name(path.name, folders)
        return ModelFacts(model.name, error=str(error), nearest=str(path.with_name(nearest)) if nearest else "")
    folder = Path(source)
    is_on_hub = not folder.is_dir()
    if is_on_hub:
        cached = cached_folder(cache, source, model.revision)
        if cached is None:
            return ModelFacts(model.name, is_on_hub=True)
        folder = cached
    return _inspect(ModelFacts(model.name, folder, is_on_hub), folder, model, cache)


def cached_folder(cache: Path, name: str, revision: str | None) -> Path | None:
    """Return the folder of a model in the hub's cache, also if it is incomplete; None if it is not there."""
    top = cache / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    with suppress(OSError):
        commit = (top / "refs" / commit).read_text(encoding="utf-8").strip()
    folder = top / "snapshots" / commit
    return folder if folder.is_dir() else None


def _inspect(facts: ModelFacts, folder: Path, model: ModelOptions, cache: Path) -> ModelFacts:
    damaged = [(path.name, reason) for path in sorted(folder.iterdir()) if (reason := _damage(path)) is not None]
    with suppress(ParatuneError):  # a damaged paratune.json is already in the list
        damaged += [item for item in file_problems(folder) if item[0] not in dict(damaged)]
    config = _json(folder / "config.json")
    for key, kind in _CONFIG_KINDS.items():
        if config.get(key) is not None and not isinstance(config[key], kind):
            damaged.append(("config.json", f"has {key}: {config[key]!r}; it is of type {kind.__name__}"))
            config.pop(key)
    if not all(key.isdigit() for key in config.get("id2label") or {}):
        damaged.append(
            ("config.json", f"has id2label: {config.pop('id2label')!r}; its keys are the numbers of classes")
        )
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    weights, lacking = weight_files(folder)
    pickles: tuple[str, ...] = ()
    if not model.from_scratch:
        missing += lacking
        if not weights and not lacking:
            pickles = tuple(sorted(path.name for kind in PICKLES for path in folder.glob(kind)))
            missing += [] if pickles else [WEIGHT_FILES[0]]
    count = None
    if not damaged and not lacking and weights:
        count = sum(_num_values(path) for path in weights)
    labels = config.get("id2label") or {}
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    return replace(
        facts,
        missing=tuple(missing),
        damaged=tuple(damaged),
        pickles=pickles,
        has_tokenizer=_has_tokenizer(folder, model, cache),
        model_type=config.get("model_type"),
        vocab_size=config.get("vocab_size"),
        num_layers=len(model.keep_layers) if model.keep_layers else config.get("num_hidden_layers"),
        labels=() if all(name.startswith("LABEL_") for name in names) else names,
        needs_code="auto_map" in config,
        lacks_decoder_start=lacks_decoder_start({**config, **model.overrides}),
        num_parameters=None if model.from_scratch or model.keep_layers else count,
    )


def _has_tokenizer(folder: Path, model: ModelOptions, cache: Path) -> bool:
    if model.tokenizer is not None:
        try:
            folder = Path(locate(model.tokenizer))
        except ParatuneError:
            return False
        if not folder.is_dir():
            return cached_folder(cache, str(folder), model.tokenizer_revision) is not None
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def weight_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files of the weights, and the names in the index without a file."""
    index = _json(folder / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict):
        names = sorted({str(name) for name in index.values()})
        return [folder / name for name in names], [name for name in names if not _is_file(folder / name)]
    file = folder / "model.safetensors"
    return ([file], []) if file.is_file() else ([], [])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def _damage(path: Path) -> str | None:
    """Return the damage of a file in words; None if it is intact."""
    if path.is_symlink() and not path.exists():
        return "is a link to a missing file: the download was not finished"
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if head.startswith(LFS_HEAD):
        return "is a pointer of Git LFS instead of the file"
    if path.suffix == ".json":
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError):
            return "is not JSON: it is an error page, or truncated"
    if path.suffix == ".safetensors":
        try:
            _num_values(path)
        except (SafetensorError, OSError) as error:
            return f"is damaged or truncated: {error}"
    return None


def _num_values(path: Path) -> int:
    """Return the number of values in the tensors of a file; only its header is read.

    Raises:
        SafetensorError: The header is not valid, or does not fit the size of the file.
        OSError: The file cannot be read.
    """
    with safe_open(path, framework="np") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping
