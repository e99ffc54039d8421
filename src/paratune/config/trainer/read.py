"""Reads settings of a Trainer: JSON, YAML, a command line, a file of Accelerate or DeepSpeed; names those of others."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from paratune.base.text import listing, plain
from paratune.base.unique_keys import unique_keys
from paratune.config.layers import read_text
from paratune.config.plain import flatten
from paratune.config.trainer.table import FSDP, MEANT, TABLE, WITHOUT_EFFECT_BELOW, has_no_effect
from paratune.config.validate import describe_value
from paratune.config.yaml_tree import Tree, read_tree
from paratune.errors import ConfigError

_OTHER_PROGRAMS: Final = (
    ("fastai", "", r"\bfastai\b|fit_one_cycle"),
    ("PyTorch Lightning", "seed_everything trainer.max_epochs trainer.accelerator trainer.devices trainer.precision "
     "max_epochs+accelerator max_epochs+gpus max_epochs+devices optimizer.class_path", r"\b(pytorch_)?lightning\b"),
    ("simpletransformers", "model_class manual_seed use_multiprocessing evaluate_during_training",
     r"\bsimpletransformers\b"),
    ("spaCy", "nlp.pipeline training.optimizer", r"^\[(nlp|components|training)[\].]|\bspacy train\b"),
    ("Flair", "", r"\bfrom flair\b"),
    ("AllenNLP", "dataset_reader", r"\ballennlp\b"),
    ("fairseq", "common.fp16+optimization.lr", r"\bfairseq-(train|hydra-train)\b"),
    ("axolotl", "base_model+datasets base_model+sequence_len sequence_len+micro_batch_size", r"\baxolotl\b"),
    ("LLaMA-Factory", "finetuning_type", r"\bllamafactory-cli\b"),
    ("Megatron-LM", "", r"--tensor-model-parallel-size"),
    ("Keras", "", r"\bmodel\.compile\("),
    ("AutoTrain", "backend+params", None),
    ("Composer", "max_duration", None),
    ("torchtune", "tokenizer._component_ model._component_", None),
    ("Ludwig", "input_features", None),
    ("NeMo", "exp_manager", None),
    ("model configurations (config.json)", "architectures", None),
    ("PEFT adapters", "peft_type", None),
)  # fmt: skip
"""Other programs; keys of their settings, with + all of these keys; a pattern of scripts and command lines."""
_SCRIPT: Final = re.compile(r"\.py(\s|$)|\s-m\s+\S+\s+--|(^|\s)--[A-Za-z][\w-]*[=\s]")
_NAMED_FILES: Final = (
    *("deepspeed", "deepspeed_config", "fsdp_config"),
    *("accelerate.config_file", "accelerate.deepspeed_config.deepspeed_config_file"),
)
"""Keys whose value may be the path of a file of settings."""
_LAUNCHERS: Final = {"torchrun": "torchrun", "deepspeed": "torchrun", "accelerate": "accelerate"}
_TO_JSON = "open('training_args.json', 'w').write(trainer.args.to_json_string())"


@dataclass
class Settings:
    """Settings of one or several files that belong together."""

    values: dict[str, Any] = field(default_factory=dict)  # of Accelerate and DeepSpeed with their names before the key
    notes: list[tuple[str, Any, str]] = field(default_factory=list)  # key, value and what to decide about it
    script: str = ""  # its name on a command line


def read_settings(files: Sequence[str]) -> Settings:
    """Read files of settings that belong together, such as a command line and a file of Accelerate.

    Raises:
        ConfigError: None is given, or one is missing, a pickle, no settings of a Trainer, or has duplicate keys.
    """
    if not files:
        raise ConfigError("needed: a file of settings of a Trainer, or a command line in quotes", code="cli.required")
    found = Settings()
    for file in files:
        _add_file(found, file)
    return found


def _add_file(found: Settings, file: str) -> None:
    path = Path(file)
    if not path.exists() and re.search(r"\s--\w", file):
        path, values = Path("the command line"), _command_line(found, file, "the command line")
    else:
        start = b""
        with suppress(OSError), path.open("rb") as opened:
            start = opened.read(4)
        if start.startswith((b"PK\x03\x04", b"\x80")) or (start and path.suffix in (".bin", ".pt", ".pkl")):
            message = f"{path} is a pickle: reading it would run the code in it; the script can write JSON: {_TO_JSON}"
            raise ConfigError(message, code="trainer.settings", path=path)
        text = read_text(path)
        if path.suffix in (".py", ".ipynb", ".cfg", ".toml", ".ini"):
            raise _refused(path, _other_program(text) or f"a {path.suffix} file")
        is_script = path.suffix not in (".json", ".yaml", ".yml") and _SCRIPT.search(text) and text.lstrip()[:1] != "{"
        values = _command_line(found, text, str(path)) if is_script else _load(path, text)
    values = _named(values, path)
    for key in _NAMED_FILES:
        name = values.get(key)
        if isinstance(name, str) and not isinstance(from_json(name), Mapping):
            places = (path.parent / name, Path(name), path.parent / Path(name).name)
            other = next(filter(Path.is_file, places), None)
            if other is None:
                found.notes.append((key, name, f"not found beside {path}; give the file as a further argument"))
            elif key == "fsdp_config":
                values = {**values, key: _load(other, read_text(other))}
            else:
                values = {**_named(_load(other, read_text(other)), other), **values}
    if path.is_file() and not any(key.startswith("deepspeed") for key in values):
        for other in sorted(path.parent.glob("*.json"))[:100]:
            if other != path and re.search("ds|deepspeed|zero", other.stem) and "zero_optimization" in read_text(other):
                why = "a file of DeepSpeed lies beside; give it as a further argument if the run used it"
                found.notes.append((other.name, None, why))
    found.values |= {key: value for key, value in values.items() if value is not None or key not in found.values}


def _load(path: Path, text: str) -> dict[str, Any]:
    """Return the mapping of a JSON or YAML file."""
    is_json = path.suffix == ".json" or text.lstrip().startswith("{")
    tree = Tree() if is_json else read_tree(text, str(path))
    problems = [f"{problem.place and problem.place.origin}: {problem.message}" for problem in tree.problems]
    try:
        settings = json.loads(text, object_pairs_hook=unique_keys) if is_json else tree.value
    except (ValueError, RecursionError) as error:
        problems = [f"{path} is not JSON: {error}"]
    if problems and (other := _other_program(text)):
        raise _refused(path, other)
    if not problems and not (isinstance(settings, dict) and settings):
        problems = [f"{path} has {describe_value(settings)}; the settings of a Trainer are a mapping with keys"]
    if problems:
        raise ConfigError("\n".join(problems), code="trainer.settings", path=path)
    return {str(key): value for key, value in settings.items()}


def _other_program(text: str) -> str | None:
    patterns = ((name, words) for name, _, words in _OTHER_PROGRAMS if words)
    return next((name for name, words in patterns if re.search(words, text, re.MULTILINE)), None)


def _refused(path: Path, what: str) -> ConfigError:
    message = (
        f"{plain(path)} is not converted ({what}): only settings of Hugging Face's Trainer, Accelerate and DeepSpeed "
        f"are. A program with a Trainer writes them by {_TO_JSON}; for others: paratune config init"
    )
    return ConfigError(message, code="trainer.settings", path=path, what=what)


def _named(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return settings by the keys of the table: with the name of the program, and without sections around them."""
    if "log_history" in values and "global_step" in values:
        message = f"{path} is a trainer_state.json, without most settings; name the training_args.json of the same run"
        raise ConfigError(message, code="trainer.settings", source=path)
    paths = set(flatten(values)) | set(values)
    for name, signs, _ in _OTHER_PROGRAMS:
        if any(all(key in paths for key in sign.split("+")) for sign in signs.split()):
            raise _refused(path, f"settings of {name}")
    if "distributed_type" in values or "compute_environment" in values:
        return _of_accelerate(values)
    if "zero_optimization" in values or "train_micro_batch_size_per_gpu" in values:
        return of_deepspeed(values)
    inner = dict(_unwrapped(values))
    if not any(key in TABLE or key in MEANT for key in inner):
        message = f"{path} has no setting of a Trainer: its keys are {listing(map(plain, values), 5)}"
        raise ConfigError(message, code="trainer.settings", path=path)
    return inner


def of_deepspeed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of DeepSpeed by dotted key; a section that the table does not have is one value."""
    flat: dict[str, Any] = {"deepspeed": True}
    for key, value in values.items():
        name = f"deepspeed.{key}"
        is_known = any(row.startswith(f"{name}.") for row in (*TABLE, *WITHOUT_EFFECT_BELOW))
        flat |= flatten({name: value}) if is_known else {name: value}
    return flat


def _of_accelerate(values: Mapping[str, Any]) -> dict[str, Any]:
    flat = {
        f"accelerate.{key}": value for key, value in values.items() if not key.endswith(("fsdp_config", "speed_config"))
    }
    flat |= flatten(values.get("deepspeed_config") or {}, "accelerate.deepspeed_config.")
    is_fsdp = str(values.get("distributed_type")).upper() == "FSDP"
    return flat | ({"fsdp_config": values.get("fsdp_config") or {}} if is_fsdp else {})


def _unwrapped(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings, also those in sections, and in sections that are JSON in a text."""
    for key, value in values.items():
        value = from_json(value)
        if isinstance(value, Mapping) and key not in TABLE and any(name in TABLE for name in value):
            yield from _unwrapped(value)
        else:
            yield str(key), value


def from_json(value: Any) -> Any:
    """Return the value of a text that is JSON: some programs write settings as JSON within JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"'):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _command_line(found: Settings, text: str, place: str) -> dict[str, Any]:
    """Return the options of the command in a script with the most of them."""
    variables: dict[str, str] = {}
    commands: list[list[str]] = []
    text = re.sub(r"(?m)^\s*#.*$", "", text)  # a comment does not continue on the next line
    text = re.sub(r"\$\(\(.*?\)\)|\$\([^()]*\)", "$computed", text)
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        try:
            words = shlex.split(_with_variables(line, variables), comments=True)
        except ValueError:  # a quote that spans lines, or an apostrophe
            continue
        if words[:1] == ["for"] and words[2:3] == ["in"] and len(words) > 3:
            values = [word.rstrip(";") for word in words[3:] if word not in (";", "do")]
            variables[words[1]] = values[0]
            found.notes.append((words[1], values, f"a loop of the script; {values[0]} is written"))
        words = words[1:] if words[:1] in (["export"], ["local"]) else words
        while words and (pair := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
            variables[pair[1]] = pair[2]
            words = words[1:]
        commands.append(words)
    command = max(commands, key=lambda words: sum(word.startswith("--") for word in words), default=[])
    if other := _other_program(" ".join(command)):
        raise _refused(Path(place), other)
    options = dict(_options(found, command))
    if not options:
        message = f"{place}: no command with options, such as python run_glue.py --task_name mrpc"
        raise ConfigError(message, code="trainer.settings", path=place)
    for key, value in list(options.items()):
        if isinstance(value, str) and (unset := re.search(r"\$\{?\w+\}?", value)):
            is_whole = value == unset[0]
            if not has_no_effect(key):
                found.notes.append((key, value, f"the script does not set {unset[0]}{'; left out' * is_whole}"))
            if is_whole:
                del options[key]
    devices = variables.get("CUDA_VISIBLE_DEVICES", "")
    if devices.count(",") and not any(key.startswith(("torchrun.", "accelerate.")) for key in options):
        options["_n_gpu"] = devices.count(",") + 1
    return options


def _with_variables(line: str, variables: Mapping[str, str]) -> str:
    """Return a line of a script with its variables, as far as the script sets them; `${1:-x}` is x."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], (match[2] or "").strip("\"'")
        return variables.get(name, default or match[0])

    return re.sub(r"\$\{(\w+)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)", value, line)


def _options(found: Settings, words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a command: those of the launcher before the script, and those of the script."""
    program = next((_LAUNCHERS[name] for word in words[:4] if (name := Path(word).name) in _LAUNCHERS), "")
    if any(word in ("torch.distributed.launch", "torch.distributed.run") for word in words):
        program = "torchrun"
    script = next((at for at, word in enumerate(words) if word.endswith(".py") or word == "lightning"), None)
    if script is None:  # `python -m package.module --options`
        modules = [at + 1 for at, word in enumerate(words[:-1]) if word == "-m" and "distributed" not in words[at + 1]]
        script = modules[0] if modules else 0
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, has_value, value = word[2:].partition("=")
        following = []
        for other in words[at + 1 : None if at > script else script] if not has_value else ():
            if other.startswith(("--", ">", "2>", "&", "|", "$@", "$*")):
                break
            following.append(other)
        single: Any = value if has_value else following[0] if following else True
        given = following if len(following) > 1 else single
        name = name.replace("-", "_")
        if at < script:
            yield _launcher_key(program, name), given
        elif name not in TABLE and name.removeprefix("no_") in TABLE:
            yield name.removeprefix("no_"), False
        else:
            yield name, given
    found.script = Path(words[script]).stem if script < len(words) else ""


def _launcher_key(program: str, name: str) -> str:
    if program == "accelerate":
        if name.startswith("fsdp_"):
            return f"{FSDP}{name.removeprefix('fsdp_')}"
        if f"accelerate.deepspeed_config.{name}" in TABLE:
            return f"accelerate.deepspeed_config.{name}"
        return f"accelerate.{name}"
    return f"torchrun.{ {'num_gpus': 'nproc_per_node', 'num_nodes': 'nnodes'}.get(name, name) }"
