"""The layout of batches by configuration, model and strategy."""

from typing import Any

import pytest
from raised import raises_code
from tiny import tiny_model

from paratune.config.traits import TRAITS, Traits
from paratune.models.packed import BatchLayout, choose_batch_layout, enable_packed_batches
from paratune.models.task_model import TaskModel

WHY = "Own has its own attention"


@pytest.fixture(scope="module")
def packs() -> TaskModel:
    model = TaskModel(tiny_model(), "classification")
    enable_packed_batches(model)
    return model


@pytest.fixture(scope="module")
def pads() -> TaskModel:
    model = TaskModel(tiny_model(), "classification")
    model.why_padded = WHY
    return model


def _choose(asked: Any, traits: Traits, model: TaskModel, **where: bool) -> BatchLayout:
    return choose_batch_layout(asked, traits, entry=model.entry, why_padded=model.why_padded, **where)


def test_models_that_support_packed_rows_are_packed(packs: TaskModel):
    for asked in ("auto", "packed"):
        assert _choose(asked, TRAITS["ddp"], packs, on_cpu=True) == BatchLayout("packed")


@pytest.mark.parametrize(("on_cpu", "compiles"), [(True, True), (False, False), (False, True)])
def test_numbers_of_tokens_are_rounded_on_gpus_and_with_compilation(packs: TaskModel, on_cpu: bool, compiles: bool):
    actual = _choose("auto", TRAITS["ddp"], packs, on_cpu=on_cpu, compiles=compiles)
    assert actual == BatchLayout("packed", rounds=True)
    assert not _choose("auto", TRAITS["ddp"], packs, on_cpu=True).rounds


def test_other_models_are_bucketed_with_a_reason(pads: TaskModel):
    on_cpu = _choose("auto", TRAITS["ddp"], pads, on_cpu=True)
    assert (on_cpu.kind, on_cpu.reason, on_cpu.num_buckets) == ("bucketed", WHY, 4)
    on_gpu = _choose("auto", TRAITS["ddp"], pads, on_cpu=False)
    assert (on_gpu.kind, on_gpu.num_buckets) == ("bucketed", 1)
    # Weights would be gathered once more for each part.
    assert _choose("auto", TRAITS["zero3"], pads, on_cpu=True).num_buckets == 1


def test_a_configured_layout_has_no_reason(packs: TaskModel):
    assert _choose("padded", TRAITS["ddp"], packs, on_cpu=True) == BatchLayout("padded")
    assert _choose("bucketed", TRAITS["ddp"], packs, on_cpu=False) == BatchLayout("bucketed", None, 1)


def test_packed_is_an_error_for_models_that_do_not_support_it(pads: TaskModel):
    with raises_code("model.unsupported", WHY):
        _choose("packed", TRAITS["single"], pads, on_cpu=True)


def test_a_pipeline_pads_its_micro_batches_to_one_shape(packs: TaskModel):
    actual = _choose("auto", TRAITS["pipeline"], packs, on_cpu=True)
    assert (actual.kind, actual.reason) == (
        "padded",
        "strategy.kind: pipeline needs micro-batches of equal shapes",
    )
    assert _choose("padded", TRAITS["pipeline"], packs, on_cpu=True) == BatchLayout("padded")
    for asked in ("packed", "bucketed"):
        with raises_code("model.unsupported", asked):
            _choose(asked, TRAITS["pipeline"], packs, on_cpu=True)
