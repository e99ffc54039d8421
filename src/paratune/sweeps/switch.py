"""Drops settings of the base that an axis supersedes: the other batch rule, the options of another strategy.

Merged key by key, `batch.per_device` would be next to the base's `batch.global`, and the stages of a pipeline next to
the offload of the base's zero3.
"""

from dataclasses import replace
from typing import Any

from paratune.config.layers import Layer

_OTHER_RULE = {"global": ("per_device", "grad_accum_steps"), "per_device": ("global", "micro_batch_size")}
"""By the key that sets the samples of a step: the keys of the other rule."""


def drop_superseded_settings(base: Layer, part: Layer) -> Layer:
    """Return a layer without the settings that `part`, which is merged on top, supersedes."""
    return _without_strategy(_without_rule(base, part), part)


def _without_rule(base: Layer, part: Layer) -> Layer:
    below, above = base.values.get("batch"), part.values.get("batch")
    if not isinstance(below, dict) or not isinstance(above, dict):
        return base
    superseded = {other for key, others in _OTHER_RULE.items() if above.get(key) is not None for other in others} - {
        *above
    }
    return _without(base, "batch", {key: value for key, value in below.items() if key not in superseded})


def _without_strategy(base: Layer, part: Layer) -> Layer:
    below, above = _kind(base.values.get("strategy")), _kind(part.values.get("strategy"))
    if below is None or above is None or below == above:
        return base
    return _without(base, "strategy", {})


def _kind(section: Any) -> Any:
    return section.get("kind") if isinstance(section, dict) else section


def _without(base: Layer, section: str, left: dict[Any, Any]) -> Layer:
    """Return the layer with the remaining settings of a section; an empty section is dropped."""
    values = {key: value for key, value in base.values.items() if key != section} | ({section: left} if left else {})
    names = {f"{section}.{key}" for key in left}
    places = {
        key: place
        for key, place in base.places.items()
        if key.partition("[")[0].split(".")[0] != section
        or (left and key == section)
        or ".".join(key.split(".")[:2]).partition("[")[0] in names
    }
    return replace(base, values=values, places=places)
