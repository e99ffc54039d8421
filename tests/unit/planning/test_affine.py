"""A profile extrapolated from two traces equals a third trace."""

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoConfig

from paratune.config.task_sections import ClassificationTask, MaskedLMTask
from paratune.planning.predict import TRACED_ROWS, NotAffineError, extrapolate_profile
from paratune.planning.profile import Profile, Shape, profile
from paratune.precision import POLICIES

TASK = ClassificationTask(kind="classification", labels=["no", "yes"])
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def traced(kind: str, rows: int, task: Any = TASK, **options: Any) -> Profile:
    config = AutoConfig.for_model(kind, vocab_size=1000, pad_token_id=0, **SIZES)
    # On a CPU more tokens: dropout keeps other numbers of small tensors than of large ones.
    longest = 40 if options.get("on_cuda", True) else 200
    lengths = (*(longest,) * (rows - 1), longest - 1)
    return profile(config, task, Shape(lengths), POLICIES[options.pop("precision", "fp32")], **options)


def same(profile: Profile, expected: Profile) -> bool:
    sizes = "saved_bytes", "saved_by_block", "batch_bytes", "saved_before", "hidden_bytes", "parameters"
    return (
        all(getattr(profile, name) == getattr(expected, name) for name in sizes)
        and profile.timeline == expected.timeline
        and profile.forward.kernels == expected.forward.kernels
        and profile.backward.kernels == expected.backward.kernels
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {}),
        ("bert", {"precision": "bf16", "activation_checkpointing": 1}),
        ("bert", {"task": MaskedLMTask(kind="mlm"), "on_cuda": False}),
        ("deberta-v2", {}),
        ("modernbert", {"attention": "eager"}),
    ],
)
def test_third_profile_is_extrapolated_from_two(kind: str, options: dict[str, Any]) -> None:
    low, high, other = (traced(kind, rows, **options) for rows in (4, 8, 23))
    assert same(extrapolate_profile(low, high, at=(4, 8), rows=23), other)
    assert same(extrapolate_profile(low, high, at=(4, 8), rows=8), high)


def test_extrapolated_labelled_tokens_have_a_small_error() -> None:
    # 15% of 64 rows of 128 tokens are 1,228.8; of 2 and 6 rows 38.4 and 115.2, and 38 + 62 * (115 - 38) / 4 = 1,231.5.
    # Of 2 and 4 rows it would be 38 + 62 * (77 - 38) / 2 = 1,247.
    config = AutoConfig.for_model("bert", vocab_size=1000, pad_token_id=0, **SIZES)
    task = MaskedLMTask(kind="mlm")
    low, high, other = (profile(config, task, Shape((128,) * rows), POLICIES["fp32"]) for rows in (*TRACED_ROWS, 64))
    extrapolated = extrapolate_profile(low, high, at=TRACED_ROWS, rows=64)
    assert abs(extrapolated.batch_bytes - other.batch_bytes) <= 3 * 8
    assert extrapolated.saved_bytes == pytest.approx(other.saved_bytes, rel=0.001)


def test_profiles_with_other_operations_are_not_extrapolated() -> None:
    low, high = traced("bert", 4), traced("bert", 8)
    with pytest.raises(NotAffineError, match="other operations"):
        extrapolate_profile(
            low, replace(high, forward=replace(high.forward, kernels=high.forward.kernels[1:])), at=(4, 8), rows=9
        )
    with pytest.raises(NotAffineError, match="other allocations"):
        extrapolate_profile(low, replace(high, timeline=replace(high.timeline, marks=())), at=(4, 8), rows=9)
    with pytest.raises(NotAffineError, match=f"{low.batch_bytes} bytes or FLOP for 4 rows"):
        extrapolate_profile(low, replace(high, batch_bytes=high.batch_bytes + 1), at=(4, 8), rows=9)
