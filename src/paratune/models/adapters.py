"""LoRA adapters by PEFT: small trained matrices beside the weights of an encoder, which stay as they are.

PEFT changes modules in place (`inject_adapter_in_model`), so the class of the model, its blocks and its head stay those
of transformers: strategies, packed rows and plans need no other code. The head, and weights that the loaded model does
not have, are trained whole.
"""

import warnings
from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paratune.base.text import listing
from paratune.config.sections import LoraOptions
from paratune.errors import CheckpointError, ConfigError, require
from paratune.models.locate import ADAPTER_CONFIG
from paratune.models.task_model import find_blocks, in_body
from paratune.records import read_json

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_NAME: Final = "default"
"""PEFT's name of the only adapter; part of names of parameters."""
_PREFIX: Final = "base_model.model."
"""Start of names in PEFT's files."""
_QUERY_AND_VALUE: Final = (("query", "value"), ("q_proj", "v_proj"), ("q", "v"), ("q_lin", "v_lin"), ("Wqkv",))
"""Names of the projections of queries and values, for types without a choice of PEFT's. Source: Hu et al., LoRA, ICLR
2022, section 7.1: of the pairs of attention weights these two are the best."""


def add_adapter(hf: Any, options: LoraOptions, *, new_weights: tuple[str, ...] = (), seed: int = 0) -> None:
    """Add the adapter to a model in place, and freeze all weights of the encoder but `new_weights`, by name.

    Raises:
        ConfigError: The model has no layers that the options name.
        MissingDependency: PEFT is not installed.
    """
    peft = require("peft", extra="hub")
    config = peft.LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        use_rslora=options.rslora,
        use_dora=options.dora,
        target_modules=_targets(hf, options),
    )
    trained = {name for name, _ in hf.named_parameters() if not in_body(hf, name)} | set(new_weights)
    torch.manual_seed(seed)
    _inject(config, hf)
    for name, parameter in hf.named_parameters():
        parameter.requires_grad_(is_adapter_weight(name) or name in trained)


def is_adapter_weight(name: str) -> bool:
    """Return whether a parameter with this name belongs to the adapter."""
    return ".lora_" in name


def _targets(hf: Any, options: LoraOptions) -> list[str]:
    """Return the names of the layers with an adapter.

    auto is PEFT's own choice by the type of the model, where it has one: mostly query and value. all-linear is every
    linear layer of the blocks.
    """
    from transformers.pytorch_utils import Conv1D  # a linear layer with a transposed weight: all layers of GPT-2

    inside = {id(module) for block in find_blocks(hf) for module in block.modules()}
    kinds = (nn.Linear, Conv1D)
    linear = [name for name, module in hf.named_modules() if isinstance(module, kinds) and id(module) in inside]
    names = {name.rpartition(".")[2] for name in linear}
    wanted = names if isinstance(options.target_modules, str) else set(options.target_modules)
    if options.target_modules == "auto":
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as CHOICES

        choice = CHOICES.get(hf.config.model_type)  # a list of names, or for few types a pattern
        candidates = (*([choice] if isinstance(choice, list) else ()), *_QUERY_AND_VALUE)
        wanted = next((set(layers) for layers in candidates if names.issuperset(layers)), names)
    unknown = [name for name in sorted(wanted) if not any(f".{layer}".endswith(f".{name}") for layer in linear)]
    if unknown or not wanted:
        problem = f"{listing(unknown, 3)} is no linear layer of its blocks; name some of {listing(sorted(names))}"
        raise ConfigError(
            f"model.adapter.target_modules: {options.target_modules} does not fit {hf.config.model_type}: "
            + (f"{problem}, or use all-linear" if names else "its blocks have no linear layers; remove model.adapter"),
            code="model.adapter",
            key="model.adapter.target_modules",
            value=options.target_modules,
        )
    return [layer for layer in linear if any(f".{layer}".endswith(f".{name}") for name in wanted)]


def _inject(config: Any, hf: Any) -> None:
    from peft import inject_adapter_in_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as advice for quantized layers
        inject_adapter_in_model(config, hf, adapter_name=_NAME)


def merged_weights(hf: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the model without adapter layers, with the adapter added to them.

    `hf` has the adapter and gives the architecture; `weights` are whole, on the CPU, by their names in `hf`.

    Source: PEFT's own `merge` of each layer.
    """
    config = deepcopy(hf.config)
    config._attn_implementation = "eager"
    with torch.device("meta"):  # `assign` below puts the weights in, so that there is no second copy in memory
        plain = type(hf)(config)
        _inject(_without_modules(hf.peft_config[_NAME]), plain)
    plain.load_state_dict(dict(weights), strict=False, assign=True)
    _merge(plain)
    return {name: tensor.detach() for name, tensor in plain.state_dict().items() if tensor.device.type != "meta"}


def _without_modules(config: Any) -> Any:
    """Return the settings of an adapter for injection, without modules that PEFT would copy to train them."""
    config = deepcopy(config)
    config.modules_to_save = None
    config.inference_mode = False
    return config


def _merge(hf: nn.Module) -> None:
    """Add the adapter to the weights in place, and put the plain layers back."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [(name, module) for name, module in hf.named_modules() if isinstance(module, BaseTunerLayer)]
    for name, layer in layers:
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(hf.get_submodule(parent), child, layer.get_base_layer())


def save_adapter(
    folder: Path, hf: Any, weights: Mapping[str, Tensor], *, base: str, new_weights: Collection[str] = ()
) -> None:
    """Write the adapter and the weights that are trained whole in the format of PEFT, into a folder that exists.

    `weights` are whole, on the CPU, by their names in `hf`; `base` is the folder or hub name of the model that the
    adapter belongs to; `new_weights` as for `add_adapter`.
    """
    config = _without_modules(hf.peft_config[_NAME])
    # By name: a rank of a pipeline freezes the weights of other ranks.
    trained = [name for name in weights if is_adapter_weight(name) or name in new_weights or not in_body(hf, name)]
    whole = [name for name in trained if not is_adapter_weight(name)]
    # The modules that PEFT restores: the head as a whole, or a new layer of the encoder.
    config.modules_to_save = sorted(
        {name.rpartition(".")[0] if in_body(hf, name) else name.partition(".")[0] for name in whole}
    )
    config.target_modules = sorted(config.target_modules)  # PEFT has a set, and files are to be the same each time
    config.base_model_name_or_path = base
    config.task_type = "SEQ_CLS" if type(hf).__name__.endswith("ForSequenceClassification") else None
    config.inference_mode = True
    config.save_pretrained(str(folder))
    state = {_PREFIX + name.replace(f".{_NAME}", ""): weights[name].contiguous() for name in trained}
    save_file(state, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def load_adapter(hf: Any, folder: Path) -> set[str]:
    """Add a saved adapter to the weights of its base model, and replace those that were trained whole; return their
    names. The folder is from `save_adapter`, or of PEFT for LoRA; nothing of PEFT stays in the model.

    Raises:
        CheckpointError: The folder cannot be read, or is an adapter for another model.
        MissingDependency: PEFT is not installed.
    """
    config = _saved_config(folder)
    is_trained = {name: parameter.requires_grad for name, parameter in hf.named_parameters()}
    try:
        weights = {_name_in_model(key): value for key, value in load_file(folder / ADAPTER_WEIGHTS).items()}
    except (OSError, SafetensorError) as error:
        raise _unfit(folder, folder / ADAPTER_WEIGHTS, f"cannot be read: {error}; copy the folder again") from error
    try:
        _inject(_without_modules(config), hf)
        unknown = hf.load_state_dict(weights, strict=False).unexpected_keys
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:  # values of any type
        problem = f"is an adapter for another model than {config.base_model_name_or_path}: {error}"
        raise _unfit(folder, folder, problem) from error
    if unknown:
        raise _unfit(folder, folder, f"has weights that {type(hf).__name__} lacks: {listing(unknown, 3)}")
    _merge(hf)
    del hf.peft_config  # with it the model counts as one with an adapter
    for name, parameter in hf.named_parameters():  # PEFT froze them
        parameter.requires_grad_(is_trained[name])
    return set(weights)


def _saved_config(folder: Path) -> Any:
    """Return the settings of a saved LoRA adapter, whose file may have been written by anybody.

    PEFT would make settings of any kind, and import the module that `megatron_core` names.
    """
    peft, path = require("peft", extra="hub"), folder / ADAPTER_CONFIG
    values = read_json(path)
    is_lora = isinstance(values, dict) and values.get("peft_type") == "LORA"
    if not is_lora or values.get("megatron_config") is not None:
        kind = "LoRA with layers of Megatron" if is_lora else "no LoRA (peft_type)"
        raise _unfit(folder, path, f"is {kind}, which paratune does not load; merge the adapter into its model")
    try:
        return peft.LoraConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _unfit(folder, path, f"is damaged: {error}; copy the folder again") from error


def _unfit(folder: Path, path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path} {problem}", code="model.adapter", folder=folder)


def _name_in_model(key: str) -> str:
    """Return the name of a weight in the model by its name in PEFT's file."""
    name = key.removeprefix(_PREFIX)
    for part in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"):
        name = name.replace(f".{part}.weight", f".{part}.{_NAME}.weight")
    return name.replace(".lora_magnitude_vector.weight", f".lora_magnitude_vector.{_NAME}.weight")
