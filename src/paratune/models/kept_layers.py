"""Reduces a model to some of its layers: `model.keep_layers`.

Source: Sajjad et al., On the Effect of Dropping Layers of Pre-trained Transformer Models, Computer Speech & Language
2023; Sanh et al., DistilBERT, 2019, section 3, whose student starts with every second layer of its teacher.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from paratune.errors import ConfigError
from paratune.models.task_model import find_blocks

_DIFFERENT_LAYERS = ("layer_types", "global_attn_every_n_layers", "num_hidden_groups", "block_sizes")
"""Options of configurations whose layers differ or are shared: the number of a layer then has a meaning."""


def check_kept(config: Any, kept: Sequence[int], name: str) -> None:
    """Raise a ConfigError where a model lacks layers to keep (numbers from 0, ascending), or its layers are not alike.

    `config` is the model's own configuration, with all layers.
    """
    count = getattr(config, "num_hidden_layers", None)
    different = next((key for key in _DIFFERENT_LAYERS if getattr(config, key, None) is not None), None)
    if config.is_encoder_decoder or not isinstance(count, int) or different is not None:
        reason = "has layers that differ or are shared" + (f" ({different})" if different else "")
        raise ConfigError(
            f"model.keep_layers: {name} ({config.model_type}) {reason}; remove the option",
            code="model.keep_layers",
            key="model.keep_layers",
            name=name,
        )
    if max(kept) >= count:
        raise ConfigError(
            f"model.keep_layers: {name} has {count} layers, 0 to {count - 1}, and no layer {max(kept)}",
            code="model.no_blocks",
            key="model.keep_layers",
            value=max(kept),
        )


def keep_layers(hf: Any, kept: Sequence[int]) -> None:
    """Remove all layers but those of these numbers, from a model and from its configuration."""
    blocks = find_blocks(hf)
    for module in hf.modules():
        if isinstance(module, nn.ModuleList) and list(module) == blocks:
            layers = [module[number] for number in kept]
            del module[:]
            module.extend(layers)
    hf.config.num_hidden_layers = len(kept)
