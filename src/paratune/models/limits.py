"""The most tokens that a sample may have."""

import logging
from typing import Any

from paratune.config.sections import Config
from paratune.errors import ConfigError, coded
from paratune.models.load import load_config

log = logging.getLogger(__name__)

_NO_LIMIT = 10**9
"""`model_max_length` of a tokenizer without a limit is 10**30 in transformers."""


def token_limit(config: Config, tokenizer: Any) -> int:
    """Return the most tokens per sample: `data.max_length`, or else the limit of the model.

    Raises:
        ConfigError: `data.max_length` is more than the model has positions, or neither sets a limit.
    """
    model_config = load_config(config.model)
    limit, most = max_positions(model_config, tokenizer), most_tokens(model_config, tokenizer)
    configured = config.data.max_length
    if configured is not None and most is not None and configured > most:
        raise ConfigError(
            f"data.max_length: {configured} is more than the {most} positions of {config.model.name}; "
            f"set at most {most}",
            code="model.max_length",
            key="data.max_length",
            value=configured,
            name=config.model.name,
        )
    if configured is None and limit is None:
        raise ConfigError(
            f"data.max_length: {config.model.name} has no limit; set one, such as 512",
            code="model.max_length",
            key="data.max_length",
            name=config.model.name,
        )
    if configured is None and limit is not None and most is not None and limit <= most // 2:
        log.warning(
            "texts are truncated to %d tokens, the model_max_length of the tokenizer of %s (tokenizer_config.json); "
            "the model has %d positions: set data.max_length, up to this number",
            limit,
            config.model.tokenizer or config.model.name,
            most,
            extra=coded("tokenizer.max_length_small", value=limit, most=most),
        )
    return configured or limit or 0


def max_positions(config: Any, tokenizer: Any) -> int | None:
    """Return the most tokens of a sample, or None when neither model nor tokenizer sets a limit."""
    limits = [] if (positions := num_positions(config)) is None else [positions]
    if tokenizer.model_max_length < _NO_LIMIT:
        limits.append(int(tokenizer.model_max_length))
    return min(limits, default=None)


def most_tokens(config: Any, tokenizer: Any) -> int | None:
    """Return the most tokens that `data.max_length` may set: the positions of the model, or else `max_positions`.

    The limit of a tokenizer is often that of an earlier training, and not one of the model.
    """
    return num_positions(config) or max_positions(config, tokenizer)


def num_positions(config: Any) -> int | None:
    """Return the most tokens for which a model has positions, or None where it has no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    # RoBERTa numbers positions from pad_token_id + 1 on: with 514 positions it has room for 512 tokens.
    return positions - (config.pad_token_id + 1 if config.model_type in _POSITIONS_AFTER_PAD else 0)


_POSITIONS_AFTER_PAD = {
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Model types with such positions, which no configuration shows. A test compares them with transformers."""
