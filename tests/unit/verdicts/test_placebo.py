"""Options that cannot change a step, and the negative control: against the options and an analysis of variance."""

from dataclasses import replace

import numpy as np
import pytest
from fake_run import make_run
from scipy import stats

from paratune.config.options import section_options
from paratune.config.sections import Config
from paratune.verdicts import Differs, Group, judge
from paratune.verdicts.groups import ANY_VALUE, WITHOUT, negative_control
from paratune.verdicts.judge import factor_effects
from paratune.verdicts.speeds import changes_of

CONFIG = {
    "run": {"name": "a", "seed": 1},
    "train": {"learning_rate": 1e-5, "weight_decay": 0.01, "schedule": "linear", "layer_decay": 1.0},
    "model": {"name": "m", "overrides": {"hidden_dropout_prob": 0.1}},
    "batch": {"layout": "packed"},
    "strategy": {"kind": "ddp"},
}  # fmt: skip


def changed(key, value):
    section, *rest = key.split(".")
    values = dict(CONFIG.get(section, {}))
    inner = values
    for name in rest[:-1]:
        inner[name] = dict(inner.get(name, {}))
        inner = inner[name]
    inner[rest[-1]] = value
    return CONFIG | {section: values}


def step_class(one):
    return Group("x", (one,)).step_class


RECORDED = {"run__hardware": [{"cpu_model": "CPU"}], "run__data__train__fingerprint": "f"}


def run(name="x", rate=100.0, config=CONFIG, **values):
    return make_run(name, 1, rate, run__config=config, **(RECORDED | values))


def group(label, rates, config=CONFIG, **values):
    return Group(label, tuple(run(f"{label}{at}", rate, config, **values) for at, rate in enumerate(rates)))


def option_keys(section, prefix=""):
    for key, option in section_options(section).items():
        yield f"{prefix}{key}"
        for inner in option.sections:
            yield from option_keys(inner, f"{prefix}{key}.")


def test_each_key_of_the_table_is_an_option():
    keys = set(option_keys(Config))
    # Overrides are of the configuration of transformers, not of ours.
    assert {key for key in {*ANY_VALUE, *WITHOUT} if not key.startswith("model.overrides.")} <= keys
    assert "model.overrides" in keys


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.name", "b"), ("run.seed", 2), ("train.learning_rate", 3e-4), ("train.weight_decay", 0.0),
        ("train.schedule", "cosine"), ("train.warmup_ratio", 0.1), ("train.betas", [0.8, 0.9]),
        ("evaluate.patience", 3), ("measure.reference_batch", 8), ("model.overrides.hidden_dropout_prob", 0.3),
    ],
)  # fmt: skip
def test_options_of_values_alone_do_not_change_a_step(key, value):
    assert step_class(run(config=changed(key, value))) == step_class(run())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.optimizer", "adafactor"), ("train.schedule", {"class": "own:schedule"}), ("train.max_steps", 9),
        ("train.layer_decay", 0.9), ("train.max_grad_norm", 1.0), ("train.compile", True), ("batch.layout", "padded"),
        ("strategy.kind", "zero3"), ("model.name", "n"), ("model.overrides.hidden_dropout_prob", 0.0),
        ("task.label_smoothing", 0.1), ("task.mask_probability", 0.3), ("data.num_workers", 2),
    ],
)  # fmt: skip
def test_options_that_change_operations_or_memory_do(key, value):
    assert step_class(run(config=changed(key, value))) != step_class(run())


@pytest.mark.parametrize(
    "values",
    [
        {"run__world_size": 2}, {"run__num_threads": 4}, {"run__environment": {"NCCL_NSOCKS": "4"}},
        {"run__hardware": [{"cpu_model": "x"}] * 2}, {"run__versions": {"torch": "2.12"}},
        {"run__device": "cuda"}, {"run__batch": {"micro_batch_size": 4}},
    ],
)  # fmt: skip
def test_so_do_processes_nodes_versions_and_the_environment(values):
    base = {"run__hardware": [{"cpu_model": "x", "hostname": "a"}]}
    assert step_class(run(**(base | values))) != step_class(run(**base))
    other_host = {
        "run__hardware": [{"cpu_model": "x", "hostname": "b"}],
        "run__environment": {"CUDA_VISIBLE_DEVICES": "1"},
    }
    assert step_class(run(**other_host)) == step_class(run(**base))


@pytest.mark.parametrize("unknown", [{"run__hardware": []}, {"run__data__train__fingerprint": None}])
def test_a_run_whose_machine_or_data_are_unknown_is_in_no_class(unknown):
    assert step_class(run()) is not None
    assert step_class(run(**unknown)) is None


def test_a_run_without_a_configuration_is_in_no_class():
    assert step_class(make_run("x", 1, 100.0, **RECORDED)) is None
    assert not Group("a", (make_run("x", 1, 100.0),)).cannot_differ(Group("b", (make_run("y", 1, 100.0),)))


def test_configurations_that_cannot_differ_have_no_verdict_on_speed():
    # 28% faster, in three runs without any overlap.
    other = group("b", [128.0, 129.0, 127.0], changed("train.learning_rate", 3e-4))
    (verdict,) = judge([group("a", [100.0, 101.0, 99.0]), other], "a")
    speed = verdict.speed
    assert (speed.outcome, speed.code, speed.change, speed.low) == ("n/a", "placebo", None, None)
    assert (speed.baseline, speed.value) == (pytest.approx(99.997, abs=1e-3), pytest.approx(127.997, abs=1e-3))
    assert speed.control.most == pytest.approx(speed.value / speed.baseline - 1)
    assert speed.control.p_value < 0.05


@pytest.mark.parametrize(
    ("measure", "code"),
    [("samples_per_s", "placebo"), ("forward_mean_ms", "placebo"), ("peak_memory_largest_bytes", "placebo"),
     ("train_s", None), ("energy_j", None), ("goodput_samples_per_s", None)],
)  # fmt: skip
def test_measures_of_a_step_have_no_change_and_those_of_the_run_have(measure, code):
    rates = [100.0, 101.0, 99.0], [128.0, 129.0, 127.0]
    base, other = group("a", rates[0]), group("b", rates[1], changed("train.schedule", "cosine"))
    (found,) = changes_of(base, [other], measure, [rates], is_speed=False)
    assert (found.code, found.change is None) == (code, code is not None)


def test_the_control_is_the_variance_component_of_a_one_way_analysis_of_variance():
    rng = np.random.default_rng(4)
    logs = rng.normal(size=(4, 5)) + np.array([0.0, 2.0, 1.0, 3.0])[:, None]
    found = negative_control([*logs.tolist(), [9.0, 9.1]], ["a", "a", "a", "a", "b"])
    expected = stats.f_oneway(*logs)
    assert found.p_value == pytest.approx(expected.pvalue)
    between, within = 5 * np.var(logs.mean(axis=1), ddof=1), np.mean(np.var(logs, axis=1, ddof=1))
    assert (found.variance, found.freedom) == (pytest.approx((between - within) / 5), 3)
    assert found.most == pytest.approx(np.expm1(np.ptp(logs.mean(axis=1))))
    assert negative_control(logs.tolist(), ["a", "b", None, None]) is None


def test_the_spread_of_the_control_is_in_every_difference_of_speed():
    # Learning rates of ddp: 0, 8% and 4% without any reason; zero3 is 5% faster than the first of them.
    noise = np.array([0.999, 1.0, 1.001])
    low, high = changed("train.learning_rate", 3e-4), changed("train.learning_rate", 1e-3)
    zero3 = group("z", 105 * noise, changed("strategy.kind", "zero3"))
    alone = judge([group("a", 100 * noise), zero3], "a")[0].speed
    assert (alone.outcome, alone.control) == ("different", None)
    *_, among = judge(
        [group("a", 100 * noise), group("b", 108 * noise, low), group("c", 104 * noise, high), zero3], "a"
    )
    speed = among.speed
    assert (speed.outcome, speed.code) == ("cannot tell", "negative_control")
    # The variance of the configurations' means less a third of that of a run; of a difference twice.
    means = np.log([100, 108, 104])
    expected = 2 * np.var(means, ddof=1)
    assert speed.estimate.standard_error**2 == pytest.approx(expected, rel=0.01)
    assert (speed.runs_to_tell, speed.num_samples_needed) == (None, None)


def test_an_axis_of_learning_rates_has_no_main_effect_on_speed():
    cells = []
    for strategy, speed in (("ddp", 100.0), ("zero3", 150.0)):
        for rate, more in (("1e-5", 1.0), ("1e-3", 1.2)):
            config = changed("train.learning_rate", float(rate)) | {"strategy": {"kind": strategy}}
            rates = speed * more * np.array([0.99, 1.0, 1.01])
            levels = {"strategy": strategy, "rate": rate}
            cells.append(replace(group(f"{strategy}{rate}", rates, config), levels=levels))
    found = {effect.axis: effect for effect in factor_effects(cells, {"strategy": "ddp", "rate": "1e-5"})}
    assert (found["rate"].comparison.code, found["rate"].comparison.change) == ("placebo", None)
    speed = found["strategy"].comparison
    assert (speed.change, speed.control.most) == (pytest.approx(0.5), pytest.approx(0.2))
    # Half of the machine's variance of a difference: two combinations.
    control = speed.control.variance
    assert speed.estimate.standard_error**2 > control


def test_goodput_is_in_no_negative_control():
    # Of a batch of 64 samples two learning rates have other noise scales: goodput may differ.
    noise = {"run__batch__global_batch_size": 64, "summary__noise_scale__value": 50.0}
    base = group("a", [100.0, 100.1, 99.9])
    batch, rates = {"batch": {"layout": "packed", "global": 64}}, [150.0, 150.1, 149.9]
    of_rate = noise | {"summary__noise_scale__value": 500.0}
    others = [
        group("b", rates, CONFIG | batch, **noise),
        group("c", rates, changed("train.learning_rate", 1e-3) | batch, **of_rate),
    ]
    assert others[0].cannot_differ(others[1])
    verdicts = judge([base, *others], "a", differs={name: Differs(batch=True) for name in "bc"})
    assert [(one.speed.measure, one.speed.control, one.speed.outcome) for one in verdicts] == [
        ("goodput", None, "different")
    ] * 2
    changes = [(50 + 32) / (50 + 64), (500 + 32) / (500 + 64)]
    assert [one.speed.change for one in verdicts] == pytest.approx([1.5 * share - 1 for share in changes], rel=1e-3)
