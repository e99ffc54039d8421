"""How long a sample may be.

Floor 3.
"""

from typing import Any

from paratune.config.sections import Config
from paratune.errors import ConfigError
from paratune.models.load import load_config

_NO_LIMIT = 10**9
"""transformers says 10**30 where a tokenizer knows no limit."""


def token_limit(config: Config, tokenizer: Any) -> int:
    """Return the tokens per sample that the configuration and the model allow.

    Raises:
        ConfigError: More is asked for than the model has positions, or neither sets a limit.
    """
    model_config = load_config(config.model)
    limit = max_positions(model_config, tokenizer)
    asked = config.data.max_length
    if asked is not None and limit is not None and asked > limit:
        raise ConfigError(
            f"data.max_length: {asked} is more than {config.model.name} has positions for: at most {limit}",
            code="model.max_length",
            key="data.max_length",
            value=asked,
            name=config.model.name,
        )
    if asked is None and limit is None:
        raise ConfigError(
            f"data.max_length: {config.model.name} sets no limit; set one, such as 512",
            code="model.max_length",
            key="data.max_length",
            name=config.model.name,
        )
    return asked or limit or 0


def max_positions(config: Any, tokenizer: Any) -> int | None:
    """Return the most tokens that a sample may have, or None when neither model nor tokenizer sets a limit."""
    limits = [] if (positions := num_positions(config)) is None else [positions]
    if tokenizer.model_max_length < _NO_LIMIT:
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)


def num_positions(config: Any) -> int | None:
    """Return the tokens that a model has positions for, or None where it sets no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    # RoBERTa numbers positions from pad_token_id + 1, so its table of 514 holds 512 tokens.
    return positions - (config.pad_token_id + 1 if config.model_type in _POSITIONS_AFTER_PAD else 0)


_POSITIONS_AFTER_PAD = {
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""The model types that do so; no configuration says it. A test compares them with the installed transformers."""
