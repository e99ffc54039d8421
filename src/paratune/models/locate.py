"""Finds the folder of a model, or raises why it cannot be used, and checks its files against `paratune.json`.

Imports no torch.
"""

import importlib.util
import json
import re
import shlex
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from paratune import hub
from paratune.base.piece import Piece
from paratune.base.system_errors import system_error
from paratune.base.text import listing
from paratune.config.feasibility import DEMO_MODEL, DEMO_PACKAGE
from paratune.config.permission import REMOTE_CODE, NamedCode, admit, require_allowed
from paratune.config.sections import ModelOptions
from paratune.errors import CheckpointError, ConfigError, MissingDependency, ParatuneError
from paratune.records import MODEL_FOLDER, RUN_FILE, file_sha256, read_json
from paratune.records.own import TASK_FILE, is_own, read_task_file

_MODEL_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*.onnx", "*.gguf", "pytorch_model*", "tf_model*", "flax_model*"),
    *("config.json", "adapter_*", "checkpoint-*", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json"),
    *("spiece.model", "sentencepiece*.model", "trainer_state.json", "training_args.bin", "model", "modules.json"),
)
"""Names that the files of a model have."""
ADAPTER_CONFIG: Final = "adapter_config.json"
WEIGHT_FILES: Final = ("model.safetensors", "model.safetensors.index.json")
_PICKLES: Final = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
_OF_TRAINING: Final = re.compile(r"(optimizer|scheduler|scaler|rng_state).*")
"""Pickles of a checkpoint that are no weights."""
_KNOWN_ERRORS: Final = (
    (
        r"has model type `(.+?)` but Transformers does not",
        "its type is {0}, which transformers {version} does not have (it was saved by {saved_by}); install a newer "
        "version (pip install -U transformers), or name another model",
    ),
    (
        r"Unrecognized configuration class.*?\b(\w+)Config\b.*AutoModel: (\w+)",
        "transformers has no {1} of type {0}; name another model",
    ),
    (
        r"deserializing header",
        "its weights are incomplete, or a pointer of Git LFS; copy the folder again, or run git lfs pull there",
    ),
    (
        r"Couldn't instantiate the backend tokenizer",
        "no file of the folder is a vocabulary that transformers reads; copy tokenizer.json there, or set "
        "model.tokenizer to another tokenizer",
    ),
    (
        r"quantiz|bitsandbytes|GPTQ|AWQ",
        "its weights are quantized (quantization_config in its config.json); name the model that it was made from",
    ),
)
"""Errors of transformers, as patterns, and what they mean here. Their own advice is for programs that call it."""


def file_names(folder: Path) -> str:
    """Return the names of model files in a folder; others may be private, and say nothing about a model."""
    named = [path.name for path in sorted(folder.iterdir()) if any(map(path.match, _MODEL_FILES))]
    return listing(named, 8) or "no files of a model"


def file_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file of a model folder except `paratune.json`, by name.

    Raises:
        OSError: A file cannot be read.
    """
    return {
        path.name: {"num_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != TASK_FILE
    }


def saved_weights(folder: Path, step: int, names: Sequence[str]) -> tuple[Callable[..., Any], Sequence[str]]:
    """Return a function that reads weights of a model folder by their names in a checkpoint, and these names.

    `folder` is from `save_model`; its weights must be from `step`. Names are such as model/hf.classifier.weight.

    Raises:
        CheckpointError: The folder is absent, from another step, changed, or lacks a weight.
    """
    from safetensors import safe_open

    path = folder / "model.safetensors"
    if not (path.is_file() and (folder / TASK_FILE).is_file()):
        message = f"{folder} does not have all weights in one file"
        raise CheckpointError(message, code="checkpoint.unreadable", folder=folder)
    record = read_json(folder / TASK_FILE)
    if not isinstance(record, dict) or record.get("kept_step") != step:
        message = f"{folder} is not from step {step}"
        raise CheckpointError(message, code="checkpoint.unreadable", folder=folder, step=step)
    check_files(folder)
    file: Any = safe_open(path, framework="pt")
    keys = {name: name.removeprefix("model/").removeprefix("hf.") for name in names}
    if lacking := sorted(set(keys.values()) - set(file.keys())):
        raise CheckpointError(f"{path} lacks {listing(lacking, 3)}", code="checkpoint.unreadable", path=path)

    def read(name: str, piece: Piece | None = None) -> Any:
        tensor = file.get_tensor(keys[name])
        return tensor if piece is None else piece.cut_from(tensor, name)

    return read, names


def check_files(folder: Path) -> None:
    """Check that the files of a model folder are those that its `paratune.json` lists.

    Raises:
        CheckpointError: Files are missing or changed; the message names all of them.
    """
    if problems := file_problems(folder):
        message = (
            f"{folder} has changed since it was saved: {'; '.join(map(' '.join, problems))}. Copy the folder again, "
            f"or train again. If you changed a file on purpose, delete its entry under `files` in {folder / TASK_FILE}"
        )
        raise CheckpointError(message, code="model.changed", folder=folder)


def file_problems(folder: Path) -> list[tuple[str, str]]:
    """Return name and problem of each missing or changed file; an empty list without `paratune.json` or hashes.

    Raises:
        CheckpointError: `paratune.json` is damaged.
    """
    expected = read_task_file(folder).get("files", {})
    if not isinstance(expected, dict) or not all(isinstance(item, dict) for item in expected.values()):
        message = f"{folder / TASK_FILE} is damaged: `files` is not a mapping of names to sizes and hashes"
        raise CheckpointError(message, code="run.damaged")
    problems = ((name, _problem(folder / name, about)) for name, about in expected.items())
    return [(name, problem) for name, problem in problems if problem is not None]


def _problem(path: Path, about: dict[str, Any]) -> str | None:
    try:
        size = path.stat().st_size
        if size != about.get("num_bytes"):
            return f"has {size} bytes instead of {about.get('num_bytes')}"
        return None if file_sha256(path) == about.get("sha256") else "does not match its SHA-256"
    except (FileNotFoundError, ValueError):  # a name with a null byte
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def locate(name: str, key: str = "model.name") -> str:
    """Return the folder or hub name of a model, which option `key` names; of a run folder, the folder of its model.

    Raises:
        CheckpointError: `name` is a run without a model.
        ConfigError: `name` looks like a path, and the folder does not exist.
        MissingDependency: The package of the demo model is not installed.
    """
    if name == DEMO_MODEL:
        spec = importlib.util.find_spec(DEMO_PACKAGE)
        if spec is None or spec.origin is None:
            raise MissingDependency(
                f"{DEMO_MODEL} is not installed; install it with: pip install 'paratune[demo]'",
                code="dependency.missing",
            )
        return str(Path(spec.origin).parent / "model")
    if name.startswith("<") and name.endswith(">"):
        message = f"{key}: {name} is a placeholder; replace it with a Hugging Face model folder or a hub name"
        raise ConfigError(message, code="config.placeholder", key=key, name=name)
    path, is_demo = Path(name).expanduser(), name.startswith("demo:")
    try:
        is_folder, exists = path.is_dir(), path.exists() or "\0" in name
    except OSError:  # the name is too long
        is_folder, exists = False, True
    if is_folder and not is_demo:
        return str(run_model_folder(path))
    if is_demo or exists or name.startswith((".", "/", "~")) or name.count("/") > 1:
        problem = "is not a folder; give a Hugging Face model folder or a hub name"
        if is_demo:
            problem = f"is not a demo model; the only one is {DEMO_MODEL}"
        raise ConfigError(f"{key}: {name} {problem}", code="model.not_found", key=key, name=name)
    return name


def weight_folder(model: ModelOptions) -> Path:
    """Return the folder of the weights; of a hub name that in the cache, or the name as a path if they are not there.

    `load_config` has made its newest commit that of the cache, where the hub can be reached.
    """
    from huggingface_hub import try_to_load_from_cache

    folder = Path(locate(model.name))
    for file in WEIGHT_FILES if not folder.is_dir() else ():
        if isinstance(found := try_to_load_from_cache(model.name, file, revision=model.revision), str):
            parts = set(read_json(Path(found))["weight_map"].values()) if file.endswith(".json") else set()
            return Path(found).parent if all(Path(found).with_name(part).exists() for part in parts) else folder
    return folder


def teacher_folder(name: str) -> Path:
    """Return the model folder of a teacher (`distil.teacher`), a run folder or a model folder.

    Raises:
        CheckpointError: It is a run without a model.
        ConfigError: It is not a folder.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        message = (
            f"distil.teacher: {name} is not a folder; name the folder of a finished run, or a model folder; download a "
            "model of the hub first"
        )
        raise ConfigError(message, code="distil.teacher", key="distil.teacher", value=name)
    return run_model_folder(path)


def run_model_folder(path: Path) -> Path:
    """Return the folder of a run's model; other folders as they are.

    Raises:
        CheckpointError: The run has no model: it is not finished, a probe, a fitted baseline, or the form fp32.
    """
    if not (path / RUN_FILE).is_file():
        return path
    folder = path / MODEL_FOLDER
    if not folder.is_dir():
        record = read_json(path / RUN_FILE)
        kind = record.get("kind") if isinstance(record, dict) else ""
        problem = {
            "baseline": "is a fitted baseline, which has no saved model: give the run of a model",
            "probe": "is a probe, which has no saved model: train the whole run",
            "form": "is a form of a run without a model of its own: give the run, or a smaller form",
        }.get(str(kind), "is a run without a model: it is not finished; continue it with --resume")
        message = f"{path} {problem}"
        raise CheckpointError(
            message, code="baseline.no_model" if kind == "baseline" else "run.not_finished", target=str(path)
        )
    return folder


def adapter_base(folder: Path) -> str | None:
    """Return the model that an adapter folder belongs to; None for other folders.

    Raises:
        CheckpointError: The folder names no model.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    own = read_json(folder / ADAPTER_CONFIG)
    base = read_task_file(folder).get("base_model") or (
        own.get("base_model_name_or_path") if isinstance(own, dict) else None
    )
    if not isinstance(base, str):
        message = f"{folder / ADAPTER_CONFIG} does not name the model of the adapter (base_model_name_or_path)"
        raise CheckpointError(message, code="model.adapter", folder=folder)
    return base


def base_model_name(name: str) -> str:
    """Return a name of a base model, `model.name`, that stays valid in another working directory.

    Raises:
        ConfigError: It is the name of an adapter folder.
    """
    folder = Path(locate(name))
    if adapter_base(folder) is not None:
        message = (
            f"model.adapter.save: adapter needs a base model, and model.name: {name} is an adapter folder; set "
            "model.adapter.save: merged, or name the base model"
        )
        raise ConfigError(message, code="model.adapter", key="model.adapter.save", name=name)
    return str(folder.absolute()) if folder.is_dir() else name


def adapter_folder(model: ModelOptions) -> Path | None:
    """Return the folder of `model.name` if it is that of an adapter."""
    folder = Path(locate(model.name))
    return folder if adapter_base(folder) is not None else None


def base_model(model: ModelOptions) -> ModelOptions:
    """Return the options with the base model of an adapter folder in its place; those of other models as they are."""
    folder = Path(locate(model.name))
    base = None if model.from_scratch else adapter_base(folder)
    if base is None:
        return model
    if model.trust_remote_code:  # the user named the adapter, and its folder names the model whose code would run
        code = [NamedCode(REMOTE_CODE, base, shown=base)]
        admit(code, folder / TASK_FILE, is_own=is_own(read_task_file(folder), folder))
    return model.model_copy(update={"name": base, "revision": None})


def runs_code(model: ModelOptions, name: str) -> bool:
    """Return whether transformers may run the Python files of a model or a tokenizer of these options.

    Raises:
        ConfigError: `trust_remote_code` is set, and this process may not run them.
    """
    if model.trust_remote_code:
        require_allowed(name, REMOTE_CODE, {})
    return model.trust_remote_code


def refuse_revision(key: str, revision: str | None, source: str) -> None:
    """Raise a ConfigError for the revision of a local folder, which would have no effect."""
    if revision is not None and Path(source).is_dir():
        message = (
            f"{key}: {revision} has no effect on {source}, which is a local folder; remove it, or name a model of the "
            "hub"
        )
        raise ConfigError(message, code="config.no_effect", key=key, revision=revision, source=source)


def require_files(source: str, names: Sequence[str], advice: str) -> None:
    """Raise a ConfigError where a folder has none of these files; names of the hub pass."""
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in names):
        message = f"model: {source} has none of {', '.join(names)}; it has {file_names(folder)}; {advice}"
        raise ConfigError(message, code="model.files_missing", key="model", source=source)


def hub_options(source: str) -> dict[str, Any]:
    """Return the option with which transformers does not contact an unreachable hub; empty for a folder."""
    return {"local_files_only": True} if not Path(source).is_dir() and hub.unreachable_reason() else {}


def pickles(folder: Path) -> list[Path]:
    """Return the files with pickled weights in a folder: all parts of a model, those of transformers first."""
    found = (sorted(path for path in folder.glob(kind) if not _OF_TRAINING.match(path.name)) for kind in _PICKLES)
    return next(filter(None, found), [])


def safetensors_line(files: Sequence[Path]) -> str:
    """Return the shell command that saves pickled weights as safetensors in the same folder."""
    names, safe = json.dumps([*map(str, files)]), json.dumps(str(files[0].with_name(WEIGHT_FILES[0])))
    code = (  # only double quotes, so that the shell needs no others
        "import torch; from safetensors.torch import save_file; "
        f'parts = [torch.load(f, map_location="cpu", weights_only=True) for f in {names}]; '
        f'save_file({{k: v.clone() for part in parts for k, v in part.items()}}, {safe}, {{"format": "pt"}})'
    )
    return f"python -c {shlex.quote(code)}"


def require_weight_files(source: str) -> None:
    """Raise a ConfigError where a folder has no weights in safetensors; names of the hub pass."""
    if (files := pickles(Path(source))) and not any((Path(source) / name).is_file() for name in WEIGHT_FILES):
        message = (
            f"model: {source} has its weights in {listing([path.name for path in files])}, a pickle, which can run any "
            "code when it is read; paratune reads none. If you trust it, save it as safetensors once: "
            f"{safetensors_line(files)}"
        )
        raise ConfigError(message, code="model.pickled", key="model", source=source, files=[*map(str, files)])
    advice = "save its weights as safetensors (those of TensorFlow or Flax with transformers 4), or set "
    require_files(source, WEIGHT_FILES, f"{advice}model.from_scratch: true for new weights")


def load_error(part: str, source: str, error: Exception) -> ParatuneError:
    """Return the error to raise when transformers cannot load: the error of the system where that is the cause."""
    if system := system_error(error):
        return system
    text = str(error).replace(source, "")  # a folder may be called bert-AWQ
    for pattern, meaning in _KNOWN_ERRORS:
        if found := re.search(pattern, text, re.DOTALL):
            values = {"version": version("transformers"), "saved_by": "another version"}
            if "{saved_by}" in meaning and (Path(source) / "config.json").is_file():
                values["saved_by"] = read_json(Path(source) / "config.json").get("transformers_version", "n/a")
            message = f"model: {source}: {meaning.format(*found.groups(), **values)}"
            return ConfigError(message, code="model.cannot_load", key="model", source=source)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first = " ".join(map(str.strip, lines[: 2 if lines[0].endswith(":") else 1]))
    if isinstance(error, KeyError | AttributeError | TypeError):  # the text alone is a name
        first = f"{type(error).__name__}: {first}; a file of it has an unknown value, or is damaged"
    if "trust_remote_code" in str(error):
        message = (
            f"model: the {part} of {source} is Python code in its folder, which does not run unless you allow it: read "
            "it, then add --run-code (in Python: run_code=True), or in a configuration model.trust_remote_code: true"
        )
        return ConfigError(message, code="code.refused", path=source, names=[REMOTE_CODE])
    if Path(source).is_dir():
        message = f"model: {source}: the {part} cannot be loaded: {first}"
    elif reason := hub.unreachable_reason():
        message = (
            f"model: {source} is not a local folder, its {part} is not in the cache of the hub, and {reason}; "
            "name a folder, or load it once with a network"
        )
    else:
        message = f"model: {source} is not a local folder, and the hub did not return its {part}: {first}"
    return ConfigError(message, code="model.cannot_load", key="model", source=source)
