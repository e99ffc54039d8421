"""Plain tensors of the meta device count what PyTorch's fake ones do."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from raised import raises_code
from torch._subclasses.fake_tensor import FakeTensor
from transformers import AutoConfig, masking_utils

from paratune.config.task_sections import ClassificationTask
from paratune.errors import ConfigError
from paratune.planning import profile as profile_module
from paratune.planning import trace
from paratune.planning.profile import Shape, profile
from paratune.precision import POLICIES

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize("lengths", [(12, 12), (12, 7, 9)], ids=["no mask", "mask"])
@pytest.mark.parametrize("kind", ["bert", "deberta-v2", "modernbert"])
def test_both_kinds_of_tensors_give_the_same(
    kind: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ClassificationTask(kind="classification", labels=["no", "yes"])
    config = AutoConfig.for_model(kind, vocab_size=100, pad_token_id=0, **SIZES)
    made: list[int] = []

    class Watched(trace.FakeTensorMode):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            made.append(1)
            super().__init__(*args, **options)

    monkeypatch.setattr(trace, "FakeTensorMode", Watched)

    def traced() -> Any:
        return profile(config, task, Shape(lengths), POLICIES["bf16"], with_division=True)

    original = traced()
    assert not made, "plain tensors are enough for the model and for its division"

    plain = profile_module.build_model

    def refuses(*args: Any) -> Any:
        if type(torch.zeros(1)) is torch.Tensor:
            raise RuntimeError("no plain tensors")
        return plain(*args)

    monkeypatch.setattr(profile_module, "build_model", refuses)
    fake = traced()
    assert made == [1, 1]
    assert [
        field.name for field in fields(original) if getattr(original, field.name) != getattr(fake, field.name)
    ] == []


def test_first_and_second_trace_are_equal() -> None:
    task = ClassificationTask(kind="classification", labels=["no", "yes"])
    config = AutoConfig.for_model("bert", vocab_size=100, pad_token_id=0, **SIZES)
    first, second = (profile(config, task, Shape((12, 12)), POLICIES["bf16"]) for _ in range(2))
    assert first == second


def test_fake_tensors_are_used_when_a_model_reads_a_value() -> None:
    tried: list[type] = []

    def run() -> float:
        made = torch.zeros(3)
        tried.append(type(made))
        return torch.tensor(3.0, device="cpu").item() if isinstance(made, FakeTensor) else made.sum().item()

    assert trace.on_meta(run) == 3.0
    assert tried == [torch.Tensor, FakeTensor]


def test_user_errors_are_raised_at_once() -> None:
    tried: list[int] = []

    def run() -> None:
        tried.append(1)
        raise ConfigError("train.activation_checkpointing: 9", code="config.invalid_value")

    with raises_code("config.invalid_value", "9"):
        trace.on_meta(run)
    assert tried == [1]


def test_transformers_is_patched_only_during_the_trace() -> None:
    originals = masking_utils.is_tracing
    masks = torch.ones(2, device="meta"), torch.ones(2)
    assert trace.on_meta(lambda: [masking_utils.is_tracing(mask) for mask in masks]) == [True, False]
    assert masking_utils.is_tracing is originals


def test_a_model_that_cannot_be_traced_prints_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        torch.ones(1, 6, 768) + torch.ones(1, 6, 32)

    with pytest.raises(RuntimeError):
        trace.on_meta(fails)
    assert [record.name for record in caplog.records] == []
