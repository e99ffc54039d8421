"""Models that are known to exceed the range of fp16.

A loss scale helps against gradients that are too small or too large, but activations above 65504 become infinite with
any loss scale. Whether a model has such activations depends on its weights, trained in bf16 or fp32, and cannot be
derived from its configuration. This table contains what users have reported.
"""

from typing import Any

_T5 = "https://github.com/huggingface/transformers/issues/4586"
_GEMMA3 = "https://github.com/huggingface/transformers/issues/36822"

REPORTED = {
    "t5": _T5,
    "mt5": "https://github.com/huggingface/transformers/pull/10956",
    "umt5": _T5,
    "longt5": "https://github.com/huggingface/transformers/pull/19229",
    "deberta-v2": "https://github.com/microsoft/DeBERTa/issues/77",
    "gpt_neo": "https://github.com/huggingface/transformers/issues/11076",
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
}
"""Reports of overflow in fp16 by `model_type`; `deberta-v2` is also that of DeBERTa-v3 and mDeBERTa."""


def overflow_warning(config: Any) -> str | None:
    """Return the warning for training a model with this configuration of transformers in fp16, or None."""
    report = REPORTED.get(config.model_type)
    if report is None:
        return None
    return (
        f"precision: fp16: models of the type {config.model_type} have been reported to overflow in fp16 ({report}); "
        "prefer precision: bf16, or fp32 or tf32, and look at `skipped` in the event log "
        "(docs/explanation/precision.md#fp16)"
    )
