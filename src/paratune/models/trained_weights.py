"""Selects the weights that are trained, and the factor of the learning rate of each layer."""

from fnmatch import fnmatchcase

from torch import nn

from paratune.config.sections import FreezeOptions, Train
from paratune.errors import ConfigError
from paratune.models.task_model import TaskModel, find_blocks, freeze_encoder, in_body, refuse_random, require_blocks


def freeze_weights(model: TaskModel, train: Train) -> None:
    """Freeze the weights that `train.freeze_encoder` and `train.freeze` name.

    Raises:
        ConfigError: The weights are new and would stay random, are not there, or are all that there are.
    """
    if train.freeze_encoder:
        freeze_encoder(model)
    if train.freeze != FreezeOptions():
        names = _frozen_names(model, train.freeze)
        random = [name for name in model.new_weights if name in names]
        refuse_random(random, "train.freeze", "train them, or use a model that has them")
        for name, parameter in model.hf.named_parameters():
            if name in names:
                parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        message = "train.freeze freezes all weights of the model; leave some to train"
        raise ConfigError(message, code="model.nothing_trained", key="train.freeze")


def _frozen_names(model: TaskModel, options: FreezeOptions) -> set[str]:
    depths, num_blocks = layer_depths(model), len(find_blocks(model.hf))
    require_blocks(num_blocks, "train.freeze.blocks", options.blocks, fewest=options.blocks)
    first = 0 if options.embeddings else 1
    frozen = {name for name, depth in depths.items() if first <= depth <= options.blocks}
    if options.embeddings and not any(depth == 0 for depth in depths.values()):
        message = (
            "train.freeze.embeddings: true, but no weights of this model come before its blocks; remove the option"
        )
        raise ConfigError(message, code="config.no_effect", key="train.freeze.embeddings")
    for pattern in options.names:
        matching = {name for name in depths if fnmatchcase(name, pattern)}
        if not matching:
            some = [*depths][:: max(1, len(depths) // 4)]
            message = (
                f"train.freeze.names: no parameter of this model matches {pattern}; some of its names are "
                f"{', '.join(some)}"
            )
            raise ConfigError(message, code="config.no_effect", key="train.freeze.names", value=pattern)
        frozen |= matching
    return frozen


def layer_depths(model: TaskModel) -> dict[str, int]:
    """Return the depth of each parameter of `model.hf` by name, in the model's order.

    0 for embeddings and other weights before the blocks, n for the n-th block from 1, and the number of blocks + 1 for
    the head and other weights after the blocks. A weight that several parts share has the smallest of their depths.
    """
    hf = model.hf
    blocks = find_blocks(hf)
    block_of: dict[int, int] = {}
    for number, block in enumerate(blocks, start=1):
        for parameter in block.parameters():
            block_of.setdefault(id(parameter), number)
    embedded = {id(p) for m in hf.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    depths, has_seen_block = {}, False
    for name, parameter in hf.named_parameters():
        depth = block_of.get(id(parameter))
        has_seen_block = has_seen_block or depth is not None
        if depth is None:
            is_first = id(parameter) in embedded or (not has_seen_block and in_body(hf, name))
            depth = 0 if is_first else len(blocks) + 1
        depths[name] = depth
    return depths


def layer_rate_factors(model: TaskModel, layer_decay: float) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter of `model` by name: decay^(blocks + 1 - depth).

    Source: Clark et al., ELECTRA, ICLR 2020, appendix A.2; Bao et al., BEiT, ICLR 2022, whose code has these exponents.

    Raises:
        ConfigError: The model has no repeated layers.
    """
    if layer_decay == 1.0:
        return {}
    depths, blocks = layer_depths(model), find_blocks(model.hf)
    require_blocks(len(blocks), "train.layer_decay", layer_decay)
    return {f"hf.{name}": layer_decay ** (len(blocks) + 1 - depth) for name, depth in depths.items()}
