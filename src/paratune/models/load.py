"""Loads a pre-trained model from a folder, the hub, or the demo package.

Weights are read from safetensors only: other formats are pickles. transformers keeps a head of the right size whatever
its labels are: of a model for [negative, positive], the row of negative would start as that of "positive" in a task
whose labels are in another order. So the rows of a loaded head are put in the order of the labels of the task.
"""

import importlib
import inspect
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from paratune.base.imports import collector_off_for_imports
from paratune.base.text import listing
from paratune.base.token_ids import num_token_ids
from paratune.config.sections import BaseKind, ModelOptions
from paratune.errors import CheckpointError, ConfigError, ParatuneError, coded
from paratune.models.adapters import add_adapter, load_adapter
from paratune.models.config import load_config, require_pooling
from paratune.models.locate import (
    adapter_folder,
    base_model,
    check_files,
    hub_options,
    load_error,
    locate,
    refuse_revision,
    require_weight_files,
    runs_code,
    weight_folder,
)
from paratune.models.new_weights import make_by_blocks
from paratune.models.objectives import Objective
from paratune.models.onnx_model import ONNX_FILE, OnnxModel
from paratune.models.own_model import has_own_head, own_model_class, set_initial_values
from paratune.models.quantized import round_base
from paratune.models.stored import draw_in_float32, float32_shapes, stored_dtype
from paratune.models.task_model import TaskModel, find_blocks, in_body, is_pooler, output_layers
from paratune.precision import Precision
from paratune.records.own import read_task_file

ADAPTER_LABELS = "head_labels"
"""Entry of `paratune.json` in an adapter folder, whose base model has other labels: those of the outputs, in order."""
QUANTIZED_BASE = "quantize_base"
"""Entry of `paratune.json` in an adapter folder: `model.quantize_base` of its training."""
log = logging.getLogger(__name__)
ENCODER = "AutoModel"
"""Class of a model without a head: `Head.auto_class` of sentence embeddings."""


@dataclass(frozen=True)
class Head:
    """The head of a task on the encoder."""

    auto_class: str
    """Class of transformers that creates it, such as AutoModelForSequenceClassification."""
    num_outputs: int | None = None
    """Outputs of a row; None where the class of the head determines it."""
    names: tuple[str, ...] = ()
    """Names of the outputs, in order; empty where outputs are numbers."""
    problem_type: str | None = None
    """Value of `problem_type` in the model's configuration."""


def load_model(
    model: ModelOptions,
    task_kind: str,
    head: Head,
    tokenizer: Any,
    precision: Precision,
    seed: int,
    *,
    head_must_exist: bool = False,
    keeps_stored: bool = False,
    objective: Objective | None = None,
) -> TaskModel:
    """Return the model with a head for a task, on the CPU, in the parameter dtype of the precision policy.

    Args:
        seed: Seed of new weights, so that all processes and strategies start with the same weights.
        head_must_exist: Raise where a weight of the head is missing, for use without training.
        keeps_stored: Leave 16-bit weights of the folder as they are, and new blocks of `from_scratch` without memory;
            `strategies.whole.cast_weights` changes them.
        objective: As for `TaskModel`.

    Raises:
        ConfigError: The architecture has no such head, safetensors weights are missing, or the vocabulary is another.
    """
    load_config(model)  # checks `model.keep_layers`
    config = load_config(model.model_copy(update={"keep_layers": None, "resize_vocabulary": False}))
    saved = [] if model.from_scratch else saved_labels(config, adapter_folder(model))
    if head.num_outputs is not None:
        # Not as options of `from_pretrained`: it refuses one output of a model that was saved as a classifier.
        config.problem_type, config.num_labels = head.problem_type, head.num_outputs
    if head.names:
        config.id2label = dict(enumerate(head.names))
        config.label2id = {name: index for index, name in enumerate(head.names)}
    config.pad_token_id = tokenizer.pad_token_id
    if not model.resize_vocabulary:
        _check_vocabulary(tokenizer, config, model)
    if head.auto_class == "AutoModelForSequenceClassification":
        require_pooling(config, model.name)
    hf, new = _build(model, config, head.auto_class, head_must_exist, seed, keeps_stored)
    grown: tuple[str, ...] = ()
    size = getattr(config, "vocab_size", None)
    if model.resize_vocabulary and size is not None and num_token_ids(tokenizer) > size:
        grown = _grow_vocabulary(hf, num_token_ids(tokenizer), seed, model.name)
        new = tuple(sorted({*new, *grown}))
    order = None
    if head.names and not head_must_exist and not model.from_scratch:
        order = order_rows(hf, saved, head.names, new, is_ordinal=task_kind == "ordinal")
    if model.keep_layers is not None:
        blocks = find_blocks(hf)
        for module in hf.modules():
            if isinstance(module, nn.ModuleList) and list(module) == blocks:
                layers = [module[number] for number in model.keep_layers]
                del module[:]
                module.extend(layers)
        hf.config.num_hidden_layers = len(model.keep_layers)
    if model.adapter is not None:
        with float32_shapes(hf):
            add_adapter(hf, model.adapter, new_weights=new, seed=seed)
    if not keeps_stored:
        hf = hf.to(precision.param_dtype)
    loaded = TaskModel(hf, task_kind, new_weights=new, objective=objective)
    loaded.head_order, loaded.own_class, loaded.grown = order, model.class_, grown
    return loaded


def kept_dtype(model: ModelOptions, config: Any = None) -> torch.dtype | None:
    """Return the dtype of 16 bits in which `load` leaves the weights of a file (`keeps_stored`), else None.

    Without weight files it is that of the model's own `config`, as of a model that is planned before it is downloaded.
    """
    # Own code may have tensors that are no parameters.
    has_own_code = model.class_ or model.head or model.trust_remote_code
    # Added rows and DoRA compute with the weights.
    is_changed = model.resize_vocabulary or (model.adapter is not None and model.adapter.dora)
    if model.from_scratch or has_own_code or is_changed or adapter_folder(model) is not None:
        return None
    folder = weight_folder(model)
    dtype = getattr(config, "dtype", None) if folder.is_dir() and not [*folder.glob("*.safetensors")] else None
    return dtype if dtype in (torch.bfloat16, torch.float16) else stored_dtype(str(folder))


def _build(
    model: ModelOptions, config: Any, auto_class: str, head_must_exist: bool, seed: int, keeps_stored: bool
) -> tuple[Any, tuple[str, ...]]:
    """Return the model, and the names of its new weights, which the folder does not have."""
    torch.manual_seed(seed)
    with collector_off_for_imports():
        import transformers
        from huggingface_hub import constants
        from huggingface_hub.utils.tqdm import enable_progress_bars
        from transformers.utils import logging as hf_logging  # `load_config` has made it quiet

        maker = getattr(transformers, auto_class)
        _import_class_of(config)
        own_class = own_model_class(model, config)
        options_of_class = encoder_options(auto_class, config) if own_class is None else {}
    hf_logging.disable_progress_bar()  # hides the bars of loading, and of downloads, which are enabled again below
    if not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()
    if head_must_exist and (Path(locate(model.name)) / ONNX_FILE).is_file():
        return OnnxModel(Path(locate(model.name)), config), ()
    folder = None if model.from_scratch else adapter_folder(model)
    base = base_model(model)
    source = model.name if model.from_scratch else locate(base.name)
    options = hub_options(source)
    if not model.from_scratch:
        require_weight_files(source)
    try:
        if model.from_scratch:
            if own_class is not None:
                hf = own_class._from_config(config)
                set_initial_values(hf, hf.state_dict() if has_own_head(hf) else (), seed)
            else:
                make = partial(maker.from_config, config, trust_remote_code=runs_code(model, model.name))
                hf = make_by_blocks(partial(make, **options_of_class)) if keeps_stored else make(**options_of_class)
            return hf, tuple(name for name, _ in hf.named_parameters())
        if getattr(config, "quantization_config", None) is not None:
            # With the package of its quantizer, transformers loads layers that paratune cannot train.
            raise ValueError("its weights are quantized")
        stored = kept_dtype(model) if keeps_stored else None
        hf, info = (own_class or maker).from_pretrained(
            source,
            config=config,
            revision=base.revision,
            trust_remote_code=runs_code(model, base.name),
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # for a head with other labels; `_check_loaded` refuses all other new weights
            output_loading_info=True,
            dtype=stored or torch.float32,
            adapter_kwargs=dict(options),  # with PEFT installed, transformers also looks for an adapter on the hub
            **options,
            **options_of_class,
        )
    except ParatuneError:  # of code outside the package
        raise
    except Exception as error:
        raise load_error("model", source, error) from error
    if keeps_stored and kept_dtype(model) != stored:
        # They were downloaded just now, by this process or another one of the run: all ranks need the same dtypes.
        return _build(model, config, auto_class, head_must_exist, seed, keeps_stored)
    new = tuple(sorted({*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])}))
    if stored is not None:
        draw_in_float32(hf, new, seed)
        if any(buffer.dtype == stored or bool(buffer.isnan().any()) for buffer in hf.buffers()):  # rounded numbers
            return _build(model, config, auto_class, head_must_exist, seed, keeps_stored=False)
    if own_class is not None:
        set_initial_values(hf, new, seed)
    if folder is not None:
        kind: Any = read_task_file(folder).get(QUANTIZED_BASE)
        if kind in get_args(BaseKind):
            round_base(hf, kind)
        elif kind is not None:
            message = f"{folder}: its base was quantized to {kind}, which this version of paratune does not know"
            raise CheckpointError(message, code="model.adapter", folder=folder)
        new = tuple(sorted(set(new) - load_adapter(hf, folder)))
    _check_loaded(hf, new, auto_class, model, head_must_exist=head_must_exist)
    return hf, new


def _grow_vocabulary(hf: Any, size: int, seed: int, name: str) -> tuple[str, ...]:
    """Add random rows to the embedding and to a head with a score for each token; return the names of their weights.

    These count as new weights: nothing may freeze them, and an adapter trains them whole.
    """
    torch.manual_seed(seed)
    before = hf.config.vocab_size
    # Not the mean of the rows, which transformers takes by default: its last bits depend on the machine.
    hf.resize_token_embeddings(size, mean_resizing=False)
    layers = [layer for layer in (hf.get_input_embeddings(), hf.get_output_embeddings()) if layer is not None]
    scores = hf.named_parameters() if hf.get_output_embeddings() is not None else ()
    if left := [key for key, weight in scores if len(weight) == before and not in_body(hf, key)]:  # the bias of ESM
        message = f"model.resize_vocabulary: transformers does not grow {listing(left, 3)} of {name}; train without it"
        raise ConfigError(message, code="model.vocabulary", key="model.resize_vocabulary", name=name)
    weights = {id(weight) for layer in layers for weight in layer.parameters()}
    return tuple(name for name, weight in hf.named_parameters() if id(weight) in weights)


def encoder_options(auto_class: str, config: Any) -> dict[str, bool]:
    """Return the option with which `AutoModel` has no pooler, which no task would train; empty for other classes."""
    import transformers

    if auto_class != ENCODER:
        return {}
    classes = transformers.MODEL_MAPPING.get(type(config), None)
    first = classes[0] if isinstance(classes, tuple) else classes
    takes = first is not None and "add_pooling_layer" in inspect.signature(first.__init__).parameters
    return {"add_pooling_layer": False} if takes else {}


def _import_class_of(config: Any) -> None:
    """Import the module of the model's class now, inside `collector_off_for_imports`; transformers imports it later."""
    module = type(config).__module__
    if module.startswith("transformers.models."):
        with suppress(ImportError):
            importlib.import_module(module.replace(".configuration_", ".modeling_"))


def log_new_weights(model: TaskModel, name: str) -> None:
    """Log the weights of the model that `name` does not have, and that training starts from random values."""
    if len(model.new_weights) == sum(1 for _ in model.hf.parameters()):
        log.info("all weights are new")
        return
    if new := [key for key in model.new_weights if key not in model.grown]:
        log.info("new weights, which %s does not have: %s", name, ", ".join(new))
    if model.grown:
        size = model.hf.config.vocab_size
        log.info("the vocabulary of %s grows to %d tokens; the rows of added ones are new", name, size)
    if model.head_order:
        level, text = model.head_order
        log.log(level, "the head of %s is kept: %s", name, text, extra=coded("model.head_labels", name=name))
    if pooler := [key for key in model.new_weights if is_pooler(model.hf, key)]:
        extra = coded("model.new_pooler", name=name)
        log.warning("the pooler of %s is new, too: %s; it must be trained", name, ", ".join(pooler), extra=extra)


def _check_loaded(hf: Any, new: Sequence[str], auto_class: str, model: ModelOptions, *, head_must_exist: bool) -> None:
    """Raise a ConfigError where weights of the encoder are missing, which transformers replaces by random weights.

    With `head_must_exist`, also where weights of the head are missing, and where the code in the folder has another
    class than transformers for this type of model, and may not run: outputs would differ.
    """
    name, order = model.name, {key: number for number, key in enumerate(hf.state_dict())}
    random = [key for key in new if in_body(hf, key) and not is_pooler(hf, key)]
    if random:
        random.sort(key=lambda key: order.get(key, len(order)))
        message = (
            f"model.name: {name} has no weights that fit {listing(random, 3)}: its config.json and "
            "model.overrides describe another model; set model.from_scratch: true to train new weights"
        )
        raise ConfigError(message, code="model.files_missing", key="model.name", name=name)
    wanted, loaded = (getattr(hf.config, "architectures", None) or [None])[0], type(hf).__name__
    has_own_class = auto_class in (getattr(hf.config, "auto_map", None) or {}) and wanted not in (None, loaded)
    if head_must_exist and not model.trust_remote_code and has_own_class:
        message = (
            f"model: {name} was saved by its own class {wanted}, and without its code transformers loads {loaded}, "
            "whose outputs differ; add --run-code (in Python: run_code=True) if you trust its code"
        )
        raise ConfigError(message, code="model.class_unfit", key="model", name=name, value=wanted)
    if head_must_exist and new:
        message = f"model: {name} was not trained for this task: it has no weights for {', '.join(new)}"
        raise ConfigError(message, code="model.files_missing", key="model", name=name)


def _check_vocabulary(tokenizer: Any, config: Any, model: ModelOptions) -> None:
    size = getattr(config, "vocab_size", None)
    num_ids = num_token_ids(tokenizer)
    if size is not None and num_ids > size:
        advice = "set model.tokenizer to the tokenizer of its training, or model.resize_vocabulary: true for new rows"
        if model.from_scratch:
            advice = f"set model.overrides.vocab_size to {num_ids}"
            if model.tokenizer is not None:
                advice = "remove model.overrides.vocab_size: the size of model.tokenizer is used"
        has = f"{num_ids} tokens" if num_ids == len(tokenizer) else f"token ids up to {num_ids - 1}"
        message = f"model.name: {model.name} has {size} embeddings and its tokenizer {has}; {advice}"
        raise ConfigError(message, code="model.vocabulary", key="model.name", name=model.name)


def require_weights(model: ModelOptions) -> None:
    """Check that the folder of a model has readable weights, and import its own code, before the data is tokenized.

    Raises:
        ConfigError: It has no weights, or only pickled ones, which are never read; a revision is set for a folder; or
            `model.head` or `model.class` cannot be imported.
        CheckpointError: paratune saved the model, and its files have changed since.
    """
    refuse_revision("model.revision", model.revision, locate(model.name))
    if not model.from_scratch:
        if (folder := adapter_folder(model)) is not None:
            check_files(folder)
            model = base_model(model)
        require_weight_files(locate(model.name))
        check_files(Path(locate(model.name)))
    if model.head is not None or model.class_ is not None:
        own_model_class(model, load_config(model))


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

    `saved` are the labels of the rows, `names` those of the task, as many; `new` are the weights that were not loaded.
    If `is_ordinal`, an output stands for all labels above one, which are others in another order.
    """
    # Rows of the code of others are not reordered: its last layer may not be that of the logits.
    layers = output_layers(hf, len(names)) if type(hf).__module__.startswith("transformers.") else []
    layer = layers[-1][1] if layers else None
    is_new = layer is not None and any(p is layer.weight for name, p in hf.named_parameters() if name in new)
    if list(saved) == list(names) or is_new or (layer is None and new):  # own code: a part of its head is new
        return None
    given, wanted = listing(saved, 4), listing(names, 4)
    wanted_keys, saved_keys = list(names), list(saved)
    if set(saved) != set(names):
        wanted_keys, saved_keys = ([label.strip().casefold() for label in labels] for labels in (names, saved))
    places = {key: row for row, key in enumerate(saved_keys)}
    is_same_set = len(names) == len(places) == len(places.keys() & set(wanted_keys))
    order = [places[key] for key in wanted_keys] if is_same_set else []
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
