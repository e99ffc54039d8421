"""Comparisons of steps and of norms of gradients, and the configurations with which others' runs are repeated."""

import math

import pytest
from raised import raises_code

from paratune.records.certificate import TOLERANCES
from paratune.records.typed import RunFile
from paratune.verify.check import read_way
from paratune.verify.steps import Steps, compare_steps, norm_differences, other_data, probe_values

WEIGHTS = ({"a": "1" * 64, "b": "2" * 64}, {"a": "3" * 64, "b": "4" * 64})
STEPS = Steps((0.5, 0.25), (1.0, 2.0), WEIGHTS)


def test_equal_steps_are_equal_also_without_hashes_in_the_record():
    assert compare_steps(STEPS, STEPS, "fp32").status == "equal"
    assert compare_steps(Steps((0.5, 0.25), (1.0, 2.0)), STEPS, "fp32").status == "equal"


@pytest.mark.parametrize(("change", "status"), [(0.9, "within the bound"), (1.1, "different")])
def test_the_bound_is_that_of_the_precision(change: float, status: str):
    bound = TOLERANCES["fp32"].losses
    found = compare_steps(STEPS, Steps((0.5, 0.25 * (1 + change * bound)), (1.0, 2.0), WEIGHTS), "fp32", after=8)
    assert (found.status, found.first_step, found.bound) == (status, 10, f"{bound:.0e}")


def test_a_step_that_fp16_skipped_has_no_norm_in_both():
    first, second = Steps((0.5, 0.25), (None, 1.0)), Steps((0.5, 0.25 * (1 + 1e-6)), (None, 1.0))
    assert compare_steps(first, first, "fp16").status == "equal"
    assert compare_steps(first, second, "fp16").status == "within the bound"
    assert compare_steps(first, Steps((0.5, 0.25), (1.0, 1.0)), "fp16").status == "different"


def test_the_first_step_and_the_tensors_that_differ_are_named():
    other = (WEIGHTS[0], WEIGHTS[1] | {"b": "5" * 64})
    found = compare_steps(STEPS, Steps(STEPS.losses, STEPS.grad_norms, other), "fp32")
    assert (found.status, found.first_step, found.tensors) == ("within the bound", 2, ("b",))


@pytest.mark.parametrize("found", [Steps((0.5,), (1.0,), WEIGHTS[:1]), Steps((0.5, None), (1.0, 2.0), WEIGHTS)])
def test_a_missing_step_or_value_is_different(found: Steps):
    assert compare_steps(STEPS, found, "fp32").status == "different"


def test_norms_differ_relative_to_their_tensor_or_to_a_hundredth_of_all():
    # Norms 3 and 4: together 5, so the floor is 0.05. The third tensor is below it.
    expected, found = {"a": 3.0, "b": 4.0, "c": 0.0}, {"a": 3.0, "b": 4.4, "c": 0.01}
    result = norm_differences(expected, found)
    assert (result["worst_name"], result["largest"]) == ("c", pytest.approx(0.01 / 0.05))
    assert result["length"] == pytest.approx(math.sqrt(9 + 4.4**2 + 0.01**2) / 5 - 1)
    lost = norm_differences(expected, {"a": 3.0, "b": None, "d": 1.0})
    assert (lost["largest"], lost["missing"], lost["unexpected"]) == (math.inf, ["c"], ["d"])


def test_data_that_the_record_does_not_have_are_named():
    recorded = RunFile(data={"train": {"fingerprint": "a"}, "test": {"fingerprint": None}})  # type: ignore[dict-item]
    assert other_data(recorded, RunFile(data={"train": {"fingerprint": "a"}})) == []  # type: ignore[dict-item]
    (reason,) = other_data(recorded, RunFile(data={"train": {"fingerprint": "b"}}))  # type: ignore[dict-item]
    assert "data.train" in reason


def test_a_damaged_configuration_is_an_error(tmp_path):
    with raises_code("run.damaged"):
        probe_values(RunFile(config={"run": "x"}), {}, tmp_path)


@pytest.mark.parametrize("word", ["train.epochs=1", "precision=fp64", "data.train", "strategy.kind=ddp", "device=tpu"])
def test_a_setting_that_changes_the_training_is_refused(word: str):
    with raises_code("cli.invalid_value"):
        read_way([word], None, None, run_code=False)


def test_places_and_ways_are_read():
    way = read_way(["data.train=x.csv", "data.predict.a=y.csv", "precision=bf16"], "ddp", 2, run_code=False)
    assert way.inputs == {"data.train": "x.csv", "data.predict.a": "y.csv"}
    assert (way.precision, way.strategy, way.nproc, way.is_other) == ("bf16", "ddp", 2, True)
    with raises_code("cli.invalid_value"):
        read_way([], None, 0, run_code=False)
