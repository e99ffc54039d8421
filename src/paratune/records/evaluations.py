"""Evaluations of a run as lines of text, for the log and `paratune watch`."""

from collections.abc import Mapping
from typing import Any

from paratune.base.units import format_number

Scores = Mapping[str, float | None]
MAX_SCORES = 3
"""Scores in a line; a record has all of them."""


def ordered_scores(scores: Scores, metric: str | None) -> dict[str, float | None]:
    """Return the scores with the selecting metric first.

    `f1` is left out if it equals `f1_macro`, as with more than two classes, and does not select.
    """
    is_f1_macro = "f1_macro" in scores and scores.get("f1") == scores["f1_macro"]
    names = sorted(scores, key=lambda name: name != metric)
    return {name: scores[name] for name in names if name != "f1" or metric == "f1" or not is_f1_macro}


def scores_text(scores: Scores, metric: str | None) -> str:
    """Return "loss 0.412, accuracy 0.834, f1 0.829": the loss, the selecting metric, and others."""
    others = [name for name in ordered_scores(scores, metric) if name != "loss"][: MAX_SCORES - 1]
    names = ["loss", *others] if "loss" in scores else others
    return ", ".join(f"{name} {format_number(scores[name])}" for name in names)


def evaluation_text(
    event: Mapping[str, Any], *, num_steps: int, metric: str | None, best: Mapping[str, Any] | None
) -> str:
    """Return the line of an `evaluation` event; `metric` selects the kept model, `best` has step and value so far."""
    scores = scores_text(event["scores"], metric)
    text = f"step {event['step']:,}/{num_steps:,}, epoch {event['epoch']:.2f}: {event['split']} {scores}"
    if metric is None:
        return text
    if event["is_best"]:
        return f"{text}; best so far by {metric}, kept"
    if best is None:
        return f"{text}; not kept: {metric} is unknown"
    return f"{text}; not kept: best {metric} {format_number(best['value'])} at step {best['step']:,}"
