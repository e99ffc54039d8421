"""Loads a model's own configuration and checks it, which anybody may have written; finds the most tokens of a sample.

Imports no torch.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from paratune.base.token_ids import num_token_ids
from paratune.config.feasibility import DECODER_START, lacks_decoder_start
from paratune.config.permission import NamedCode, admit
from paratune.config.sections import Config, ModelOptions
from paratune.errors import ConfigError, coded, did_you_mean
from paratune.models.known import known_config
from paratune.models.locate import (
    base_model,
    hub_options,
    load_error,
    locate,
    refuse_revision,
    require_files,
    runs_code,
)
from paratune.models.tokenizer import load_tokenizer

log = logging.getLogger(__name__)

_NO_LIMIT = 10**9
"""`model_max_length` of a tokenizer without a limit is 10**30 in transformers."""
_DIFFERENT_LAYERS = ("layer_types", "global_attn_every_n_layers", "num_hidden_groups", "block_sizes")
"""Options of configurations whose layers differ or are shared: the number of a layer then has a meaning."""
_POSITIONS_AFTER_PAD = {
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Model types whose positions begin after the padding id, which no configuration shows. A test compares them with
transformers."""


def load_config(model: ModelOptions) -> Any:
    """Return the model's own configuration with `model.overrides` applied, without weights.

    With new weights (`model.from_scratch`) and `model.tokenizer`, the vocabulary is that of the tokenizer; with
    `model.resize_vocabulary` it is at least as large. For new weights, a published shape needs no files.

    Raises:
        ConfigError: It cannot be loaded, an override is not one of its options, its decoder has no start token, or it
            does not have the layers of `model.keep_layers`.
    """
    from transformers import AutoConfig
    from transformers.utils import logging as hf_logging

    # Its warnings are advice for programs that call it; `log_new_weights` reports new weights.
    hf_logging.set_verbosity_error()
    model = base_model(model)
    source = locate(model.name)
    try:
        require_files(source, ("config.json",), "name the folder that save_pretrained wrote")
        refuse_revision("model.revision", model.revision, source)
        trusts = runs_code(model, model.name)
        options = {"revision": model.revision, "trust_remote_code": trusts, **hub_options(source)}
        try:
            config = AutoConfig.from_pretrained(source, **options)
        except Exception as error:
            raise load_error("configuration", source, error) from error
    except ConfigError as error:
        if not model.from_scratch or model.revision is not None or error.code != "model.cannot_load":
            raise
        config = published_config(model.name, error)
    if model.from_scratch and model.tokenizer is not None:
        _take_vocabulary(config, load_tokenizer(model))
    elif model.resize_vocabulary and hasattr(config, "vocab_size"):
        config.vocab_size = max(config.vocab_size, num_token_ids(load_tokenizer(model)))
    override(config, model)
    _check_config(config, model.name, source)
    if model.keep_layers is not None:
        _check_kept(config, model.keep_layers, model.name)
        config.num_hidden_layers = len(model.keep_layers)
    return config


def published_config(name: str, error: ConfigError) -> Any:
    """Return the published shape of a model that is not on this machine, and log a warning; `error` is the reason.

    Raises:
        ConfigError: `error`; the shape is not known, or `name` is a folder.
    """
    known = None if Path(name).exists() else known_config(name)
    if known is None:
        raise error
    _log_published(name, str(error))
    return known


@cache
def _log_published(name: str, reason: str) -> None:
    log.warning("the published shape of %s is used: %s", name, reason, extra=coded("model.published_shape", name=name))


def override(config: Any, model: ModelOptions) -> None:
    """Apply `model.overrides` to the model's own configuration.

    Raises:
        ConfigError: An override is not an option of the model's configuration.
    """
    for key, value in model.overrides.items():
        # An encoder-decoder needs this option, but its configuration may lack the attribute.
        is_start = key == DECODER_START and getattr(config, "is_encoder_decoder", False)
        if not (is_start or hasattr(config, key)):
            message = (
                f"model.overrides.{key} is not an option of {config.model_type}{did_you_mean(key, config.to_dict())}"
            )
            raise ConfigError(message, code="model.unknown_override", key=f"model.overrides.{key}")
        try:
            setattr(config, key, value)
        except Exception as error:  # transformers checks types
            raise load_error("configuration", f"model.overrides.{key}", error) from error


def _take_vocabulary(config: Any, tokenizer: Any) -> None:
    """Set the vocabulary size and the ids of those special tokens that the configuration has."""
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "cls", "eos", "sep", "mask")}
    config.pad_token_id = ids["pad"]
    # A tokenizer may have only one name of a pair: for BERT's, [CLS] begins a text (bos) and [SEP] ends it (eos).
    for name, other in (("bos", "cls"), ("cls", "bos"), ("eos", "sep"), ("sep", "eos"), ("mask", "mask")):
        key = f"{name}_token_id"
        if getattr(config, key, None) is not None:
            setattr(config, key, ids[other] if ids[name] is None else ids[name])
    if hasattr(config, "vocab_size"):
        config.vocab_size = num_token_ids(tokenizer)


def _check_config(config: Any, name: str, source: str) -> None:
    """Raise a ConfigError for a configuration that names code of the hub which --run-code does not allow, has no list
    of architectures, or has a decoder without a start token; `source` is the folder or hub name of `name`."""
    kernels = [NamedCode("attn_implementation", kernel) for kernel in dict.fromkeys(_kernels(config))]
    admit(kernels, source, is_own=False)
    architectures = config.architectures or ()
    if not (isinstance(architectures, list | tuple) and all(isinstance(entry, str) for entry in architectures)):
        message = (
            f"model.name: the config.json of {name} has architectures: {architectures!r}; it is a list of class names"
        )
        raise ConfigError(message, code="model.cannot_load", key="model", source=source)
    # Such a decoder would fail in the first forward pass.
    if lacks_decoder_start({"model_type": config.model_type, DECODER_START: getattr(config, DECODER_START, None)}):
        message = (
            f"model.name: the config.json of {name} ({config.model_type}) has no {DECODER_START}, the first token of "
            f"the decoder's input; set model.overrides: {{{DECODER_START}: 0}}, the padding token, with which the "
            "published models of this type were trained"
        )
        raise ConfigError(message, code="model.unsupported", key="model.overrides", name=name)


def _kernels(config: Any) -> Iterator[str]:
    """Yield the repositories of the hub, OWNER/NAME, whose code transformers would run to compute the attention."""
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str) and "/" in attention:
        yield attention
    for part in getattr(config, "sub_configs", ()):
        yield from _kernels(getattr(config, part, None))


def require_pooling(config: Any, name: str) -> None:
    """Raise a ConfigError for a head that reads the last position of a row: batches are padded on the right."""
    if getattr(config, "summary_type", None) == "last":
        message = (
            f"model.name: the head of {name} ({config.model_type}) reads the last position of a row, which is padding "
            "in all rows but the longest; set model.overrides: {summary_type: first}, or use another model"
        )
        raise ConfigError(message, code="model.unsupported", key="model.name", name=name)


def _check_kept(config: Any, kept: Sequence[int], name: str) -> None:
    """Raise a ConfigError where a model lacks layers to keep (numbers from 0, ascending), or its layers are not alike.

    `config` is the model's own configuration, with all layers.
    """
    count = getattr(config, "num_hidden_layers", None)
    different = next((key for key in _DIFFERENT_LAYERS if getattr(config, key, None) is not None), None)
    if config.is_encoder_decoder or not isinstance(count, int) or different is not None:
        reason = "has layers that differ or are shared" + (f" ({different})" if different else "")
        message = f"model.keep_layers: {name} ({config.model_type}) {reason}; remove the option"
        raise ConfigError(message, code="model.keep_layers", key="model.keep_layers", name=name)
    if max(kept) >= count:
        message = f"model.keep_layers: {name} has {count} layers, 0 to {count - 1}, and no layer {max(kept)}"
        raise ConfigError(message, code="model.unsupported", key="model.keep_layers", value=max(kept))


def token_limit(config: Config, tokenizer: Any) -> int:
    """Return the most tokens per sample: `data.max_length`, or else the limit of the model.

    Raises:
        ConfigError: `data.max_length` is more than the model has positions, or neither sets a limit.
    """
    model_config = load_config(config.model)
    limit, most = max_positions(model_config, tokenizer), most_tokens(model_config, tokenizer)
    configured = config.data.max_length
    if configured is not None and most is not None and configured > most:
        message = (
            f"data.max_length: {configured} is more than the {most} positions of {config.model.name}; "
            f"set at most {most}"
        )
        raise ConfigError(
            message, code="data.max_length_unfit", key="data.max_length", value=configured, name=config.model.name
        )
    if configured is None and limit is None:
        message = f"data.max_length: {config.model.name} has no limit; set one, such as 512"
        raise ConfigError(message, code="data.max_length_unfit", key="data.max_length", name=config.model.name)
    if configured is None and limit is not None and most is not None and limit <= most // 2:
        text = (
            "texts are truncated to %d tokens, the model_max_length of the tokenizer of %s (tokenizer_config.json); "
            "the model has %d positions: set data.max_length, up to this number"
        )
        extra = coded("tokenizer.max_length_small", value=limit, most=most)
        log.warning(text, limit, config.model.tokenizer or config.model.name, most, extra=extra)
    return configured or limit or 0


def max_positions(config: Any, tokenizer: Any) -> int | None:
    """Return the most tokens of a sample by model and tokenizer; None where neither sets a limit."""
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
