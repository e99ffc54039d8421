"""The model that `paratune doctor CONFIG` checks: its files, type and size, and their problems. Loads no weights."""

import json
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from paratune.base.token_ids import num_token_ids
from paratune.config.feasibility import DECODER_START, lacks_decoder_start
from paratune.config.permission import REMOTE_CODE, NamedCode, allow, is_allowed
from paratune.config.plain import one_line
from paratune.config.sections import Config, ModelOptions
from paratune.doctor.facts import Finding, ModelFacts, QueuedRun
from paratune.errors import ParatuneError, nearest_name
from paratune.models.config import load_config, max_positions, most_tokens
from paratune.models.locate import WEIGHT_FILES, file_problems, load_error, locate, pickles, safetensors_line
from paratune.models.tokenizer import TOKENIZER_FILES, load_tokenizer

LFS_HEAD = b"version https://git-lfs"
_CONFIG_KINDS = {"model_type": str, "vocab_size": int, "num_hidden_layers": int, "id2label": dict}
"""Types of the values of config.json that are read here."""


def model_facts(config: Config, setup: QueuedRun) -> tuple[ModelFacts, Any, int | None]:
    """Return the facts about the model of a configuration, with its problems.

    Returns:
        The facts; the tokenizer, None if it cannot be loaded; and the maximum number of tokens of the model, None if
        it has no limit or is unknown.
    """
    model, tokenizer, limit = config.model, None, None
    folder, is_on_hub, findings = _folder_of(model, setup)
    facts = ModelFacts(model.name)
    if folder is None:
        return replace(facts, findings=tuple(findings)), None, None
    about, missing, damaged, weights = _inspect(folder, model)
    labels = about.get("id2label") or {}
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    facts = replace(
        facts,
        model_type=about.get("model_type"),
        vocab_size=about.get("vocab_size"),
        num_layers=len(model.keep_layers) if model.keep_layers else about.get("num_hidden_layers"),
        labels=() if all(name.startswith("LABEL_") for name in names) else names,
    )
    if weights and not (damaged or missing or model.from_scratch or model.keep_layers):
        facts = replace(facts, num_parameters=sum(_num_values(path) for path in weights))
    # Python code of a model is not run; other findings have the reason where files are missing.
    if not ("auto_map" in about or missing or damaged):
        try:
            count = _count(_local(model, folder))
            facts = replace(facts, num_parameters=count) if model.from_scratch else facts
        except ParatuneError as error:
            if error.code == "model.cannot_load":
                damaged.append(("config.json", f"describes no model: {error}"))
    has_tokenizer, tokenizer_error = _has_tokenizer(folder, model, hub_cache(setup.machine.environ)), None
    if has_tokenizer and not damaged:
        try:
            tokenizer = load_tokenizer(_local(model, folder), config.data.truncation_side)
            facts = replace(facts, num_tokens=num_token_ids(tokenizer))
        except ParatuneError as error:
            # Its own Python code is not imported without --run-code: unknown, and no problem.
            tokenizer_error = None if error.code == "code.refused" else str(error)
    if tokenizer is not None and facts.model_type is not None:
        with suppress(ParatuneError):
            own = load_config(_local(model, folder))
            limit = (max_positions if config.data.max_length is None else most_tokens)(own, tokenizer)
            if model.from_scratch:  # the configured size, or that of the tokenizer
                facts = replace(facts, vocab_size=getattr(own, "vocab_size", None))
    if is_on_hub and (absent := [*missing, *(name for name, _ in damaged)]):
        fact = f"the cache of {model.name} lacks {', '.join(absent)} ({folder})"
        findings.append(_cache_finding(setup, "cache_incomplete", fact, model.name))
    elif not is_on_hub:
        pickled = [] if model.from_scratch or weights else pickles(folder)
        cannot_load = "The model cannot be loaded."
        for name, reason in damaged:
            line = "git lfs pull" if "LFS" in reason else ""
            remedy = f"in {folder}" if line else "copy it again"
            fact = f"{folder}/{name} {reason}"
            findings.append(_problem(setup, "model_damaged", fact, cannot_load, line, remedy))
        if pickled:
            fact = f"{folder} has its weights in {', '.join(path.name for path in pickled)}, and not in safetensors"
            why = "Reading a pickle can run any code (CVE-2025-32434, CVE-2026-24747); paratune reads none."
            findings.append(_problem(setup, "model_pickle", fact, why, safetensors_line(pickled), "if you trust it"))
        if missing:
            fact = f"{folder} lacks {', '.join(missing)}"
            findings.append(_problem(setup, "model_incomplete", fact, cannot_load, "", "copy it again"))
        if not has_tokenizer:
            fact, remedy = f"{folder} has no tokenizer", "name the folder of the tokenizer of its training"
            line = "model.tokenizer: FOLDER_OF_THE_TOKENIZER"
            findings.append(_problem(setup, "tokenizer_absent", fact, "Training needs it.", line, remedy))
        elif tokenizer_error is not None:
            why = "Without it every word would be unknown."
            findings.append(_problem(setup, "tokenizer_unusable", tokenizer_error, why, "", "copy it again"))
    if "auto_map" in about and not setup.config.model.trust_remote_code:
        fact = f"{model.name} contains Python code, which does not run unless you allow it"
        why = "transformers has no such model. The code can do everything that you can do: read it first."
        findings.append(_problem(setup, "model_code", fact, why, "model.trust_remote_code: true"))
    if lacks_decoder_start({**about, **model.overrides}):
        fact = f"the config.json of {model.name} ({about.get('model_type')}) has no {DECODER_START}"
        why = "The input of its decoder begins with that token; training fails without it."
        line = f"model.overrides: {one_line({**model.overrides, DECODER_START: 0})}"
        findings.append(_problem(setup, "decoder_start", fact, why, line))
    return replace(facts, findings=tuple(findings)), tokenizer, limit


def _problem(setup: QueuedRun, code: str, fact: str, why: str, line: str = "", remedy: str = "") -> Finding:
    return setup.finding(code, "problem", fact, why, line, remedy, key="model.name")


def _count(model: ModelOptions) -> int:
    """Return the number of parameters of the architecture in config.json and `model.overrides`, on the meta device."""
    import torch
    from transformers import AutoModel

    config = load_config(model)
    try:
        with torch.device("meta"):
            model_on_meta = AutoModel.from_config(config)
    except Exception as error:
        raise load_error("model", model.name, error) from error
    return sum(parameter.numel() for parameter in model_on_meta.parameters())


def _local(model: ModelOptions, folder: Path) -> ModelOptions:
    """Return the section with the local folder as its name, so that no request goes to the hub."""
    update: dict[str, Any] = {"name": str(folder), "revision": None}
    if model.trust_remote_code and is_allowed(model.name):
        allow([NamedCode(REMOTE_CODE, str(folder))])
    return model.model_copy(update=update)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of the hub's cache by the rules of huggingface_hub."""
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _folder_of(model: ModelOptions, setup: QueuedRun) -> tuple[Path | None, bool, list[Finding]]:
    """Return the folder of a model, None without one; whether it is of the hub; and the finding without a folder."""
    try:
        source = locate(model.name)
    except ParatuneError as error:
        path, near = Path(model.name).expanduser(), None
        with suppress(OSError, ValueError):  # the name is too long
            folders = [] if path.exists() else [folder.name for folder in path.parent.iterdir() if folder.is_dir()]
            near = nearest_name(path.name, folders)
        line = f"model.name: {path.with_name(near)}" if near else ""
        remedy = "" if line else "name a folder from save_pretrained, or a model of the hub"
        return None, False, [_problem(setup, "model_absent", str(error), "Training needs it.", line, remedy)]
    if Path(source).is_dir():
        return Path(source), False, []
    folder = cached_folder(hub_cache(setup.machine.environ), source, model.revision)
    fact = f"{model.name} is on the hub and not in the cache"
    return folder, True, [] if folder is not None else [_cache_finding(setup, "cache_absent", fact, model.name)]


def _cache_finding(setup: QueuedRun, code: str, fact: str, name: str) -> Finding:
    command = f"hf download {shlex.quote(name)}"
    if not setup.is_offline:
        return setup.finding(code, "note", fact, "The run downloads it at its start.", command, key="model.name")
    remedy = "on a machine with a network; or copy all files with paratune bundle"
    why = "The machines of the run have no access to the hub, so the run ends before its first step."
    return _problem(setup, code, fact, why, command, remedy)


def cached_folder(cache: Path, name: str, revision: str | None) -> Path | None:
    """Return the folder of a model in the hub's cache, also if it is incomplete; None if it is not there."""
    top = cache / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    with suppress(OSError):
        commit = (top / "refs" / commit).read_text(encoding="utf-8").strip()
    folder = top / "snapshots" / commit
    return folder if folder.is_dir() else None


def _inspect(folder: Path, model: ModelOptions) -> tuple[dict[str, Any], list[str], list[tuple[str, str]], list[Path]]:
    """Return the content of config.json, the missing files, the damaged ones with the reason, and those of weights."""
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
    if not model.from_scratch:
        missing += lacking
        missing += [] if weights or pickles(folder) else [WEIGHT_FILES[0]]
    return config, missing, damaged, weights


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
        return [folder / name for name in names], [name for name in names if not os.path.isfile(folder / name)]  # noqa: PTH113 - a name may be too long
    file = folder / "model.safetensors"
    return ([file], []) if file.is_file() else ([], [])


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
    """Return the number of values in the tensors of a file; only its header is read."""
    with safe_open(path, framework="np") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping
