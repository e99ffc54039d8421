import pytest
from make_run import make_run
from raised import raises_code

from paratune.reports.runs.read import read_runs
from paratune.reports.runs.sameness import allowed_by_axes, compare, differs_of, read_allowed


def read(folder, name, *, seeds=(1, 2), **changes):
    made = [make_run(folder / f"{name}{seed}", seed=seed, run_changes=changes) for seed in seeds]
    return read_runs(made).runs


def test_runs_that_trained_the_same_do_not_differ(tmp_path):
    found = differs_of(read(tmp_path, "a"), read(tmp_path, "b"), ())
    assert (found.refused, found.allowed, found.batch, found.elsewhere) == ((), (), False, False)


def test_initial_weights_of_different_seeds_are_not_a_difference(tmp_path):
    base = read(tmp_path, "a", **{"model.init_fingerprint": "x"})
    assert differs_of(base, read(tmp_path, "b", seeds=(3, 4), **{"model.init_fingerprint": "y"}), ()).refused == ()
    found = differs_of(base, read(tmp_path, "c", **{"model.init_fingerprint": "y"}), ())
    assert found.refused == ("the initial weights (init_fingerprint)",)


def test_the_batch_may_be_what_is_compared(tmp_path):
    base = read(tmp_path, "a")
    changed = {"batch.global_batch_size": 64, "plan.num_steps": 113, "plan.steps_per_epoch": 38}
    other = read(tmp_path, "b", **changed)
    refused = differs_of(base, other, ())
    steps = "the number of steps and epochs (num_steps, steps_per_epoch)"
    assert refused.refused == ("the global batch size (32 → 64)", steps)
    allowed = differs_of(base, other, {"batch"})
    assert (allowed.refused, allowed.allowed, allowed.batch) == ((), refused.refused, True)
    # More epochs do not follow from the batch.
    longer = differs_of(base, read(tmp_path, "c", **changed, **{"plan.num_epochs": 6}), {"batch"})
    assert longer.refused == (steps.replace(")", ", num_epochs)"),)


def test_a_training_on_more_samples_is_another_budget(tmp_path):
    # 225 steps of 32 samples in 3 epochs; 4 times the steps.
    base = read(tmp_path, "a")
    longer = {"plan.num_steps": 900, "plan.num_epochs": 12}
    found = differs_of(base, read(tmp_path, "b", **longer), {"steps"})
    assert (found.samples, found.refused) == (4.0, ())
    assert found.allowed[-1] == "the training budget in samples (7,200 → 28,800)"
    assert differs_of(base, read(tmp_path, "c", **longer), ()).refused[-1] == found.allowed[-1]
    # The same number of steps of a batch of half the size, and of one that follows from equal epochs.
    half = read(tmp_path, "d", **{"batch.global_batch_size": 16, "plan.num_epochs": 1.5})
    assert differs_of(base, half, {"batch", "steps"}).samples == 0.5
    follows = read(tmp_path, "e", **{"batch.global_batch_size": 64, "plan.num_steps": 114})
    assert differs_of(base, follows, {"batch"}).samples is None
    assert differs_of(base, read(tmp_path, "f", **{"plan.num_steps": None}), ()).samples is None


@pytest.mark.parametrize("seeds", [(1, 2), (3, 4)])
def test_another_model_is_named_also_with_other_seeds(tmp_path, seeds):
    base = read(tmp_path, "a")
    other = read(tmp_path, "b", seeds=seeds, **{"config.model.name": "bert", "model.init_fingerprint": "y"})
    assert differs_of(base, other, {"model"}).allowed == ("the model (demo:minilm → bert)",)
    assert compare([*base, *other]).verdict == "different"
    # A model of each seed is one model.
    names = {seed: {"config.model.name": f"runs/mlm_seed-{seed}/best"} for seed in (1, 2, *seeds)}
    own = [read(tmp_path, f"own-{seed}-", seeds=(seed,), **changes)[0] for seed, changes in names.items()]
    assert compare(own).verdict == "other_seeds"


def test_other_machines_are_marked(tmp_path):
    other = read(tmp_path, "b", hardware=[{"hostname": "x", "cpu_model": "Another", "gpus": [{"name": "H200"}]}])
    assert differs_of(read(tmp_path, "a"), other, ()).elsewhere is True


def test_names_that_may_be_allowed():
    assert read_allowed(["batch, model", "steps"]) == {"batch", "model", "steps"}
    with raises_code("cli.invalid_value", "modle", "mean model", option="--allow"):
        read_allowed(["modle"])
    for text in ("", "batch,"):
        with raises_code("cli.invalid_value", "''", option="--allow"):
            read_allowed([text])


def test_axes_allow_the_differences_that_they_make():
    assert allowed_by_axes(["batch.global", "strategy.kind", "env.NCCL_NSOCKS", "nproc"]) == {"batch", "steps"}
    assert allowed_by_axes(["model.name", "train.learning_rate"]) == {"model", "train", "steps"}
    assert allowed_by_axes(["strategy.kind", "strategy.param_dtype", "precision"]) == {"weights"}
    # How many processes load data is no reason for other data.
    assert allowed_by_axes(["data.num_workers", "train.compile", "batch.layout"]) == frozenset()
