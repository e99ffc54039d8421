"""Checks of a model's own configuration, which anybody may have written. Imports no torch."""

from collections.abc import Iterator
from typing import Any

from paratune.config.feasibility.layers import DECODER_START, lacks_decoder_start
from paratune.config.permission import NamedCode, admit
from paratune.errors import ConfigError


def check_config(config: Any, name: str, source: str) -> None:
    """Check a configuration of transformers before a model is made.

    Args:
        name: `model.name`.
        source: Its folder or hub name.

    Raises:
        ConfigError: It names code of the hub that --run-code does not allow, has no list of architectures, or has a
            decoder without a start token.
    """
    kernels = [NamedCode("attn_implementation", kernel) for kernel in dict.fromkeys(_kernels(config))]
    admit(kernels, source, is_own=False)
    architectures = config.architectures or ()
    if not (isinstance(architectures, list | tuple) and all(isinstance(entry, str) for entry in architectures)):
        raise ConfigError(
            f"model.name: the config.json of {name} has architectures: {architectures!r}; it is a list of class names",
            code="model.cannot_load",
            key="model",
            source=source,
        )
    _require_decoder_start(config, name)


def _kernels(config: Any) -> Iterator[str]:
    """Yield the repositories of the hub, OWNER/NAME, whose code transformers would run to compute the attention."""
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str) and "/" in attention:
        yield attention
    for part in getattr(config, "sub_configs", ()):
        yield from _kernels(getattr(config, part, None))


def _require_decoder_start(config: Any, name: str) -> None:
    """Raise a ConfigError for a decoder without a start token, which would fail in the first forward pass."""
    values = {"model_type": config.model_type, DECODER_START: getattr(config, DECODER_START, None)}
    if lacks_decoder_start(values):
        raise ConfigError(
            f"model.name: the config.json of {name} ({config.model_type}) has no {DECODER_START}, the first token of "
            f"the decoder's input; set model.overrides: {{{DECODER_START}: 0}}, the padding token, with which the "
            "published models of this type were trained",
            code="model.decoder_start",
            key="model.overrides",
            name=name,
        )


def require_pooling(config: Any, name: str) -> None:
    """Raise a ConfigError for a head that reads the last position of a row: batches are padded on the right."""
    if getattr(config, "summary_type", None) == "last":
        raise ConfigError(
            f"model.name: the head of {name} ({config.model_type}) reads the last position of a row, which is padding "
            "in all rows but the longest; set model.overrides: {summary_type: first}, or use another model",
            code="model.pooling",
            key="model.name",
            name=name,
        )
