"""Forest plots, the score over the learning rate, and loss curves with bands."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from make_matrix import SEED, STRATEGY, Made, make_matrix

from paratune.records.finished import Curve
from paratune.records.sweep import Axis, read_sweep
from paratune.reports.figures.canvas import page_figure
from paratune.reports.figures.runs import loss_band
from paratune.reports.systems.effect_figures import _interval, effect_drawings, style_of
from paratune.reports.systems.judging import axis_effects, judged
from paratune.reports.systems.model import Systems, build_systems
from paratune.verdicts import MeasureComparison

RATE = Axis("train.learning_rate", "rate", {"high": "0.001", "low": "1e-05"}, keys=("train.learning_rate",))
RATES = {"high": 1e-3, "low": 1e-5}
FOUND = MeasureComparison("accuracy", False, 0.8, 0.81, (3, 3), change=0.01, low=-0.002, high=0.022, margin=0.005)


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Systems:
    """Two strategies at two learning rates; accuracy 0.8 or 0.9 by the rate, 0.02 more with the second seed."""

    def tell(values: Mapping[str, str]) -> Made:
        second = values["seed"] == "seed-2"
        accuracy = {"high": 0.9, "low": 0.8}[values["rate"]] + 0.02 * second
        step = {"ddp": 100.0, "zero3": 50.0}[values["strategy"]] * (1.01 if second else 1.0)
        return Made(
            kind=values["strategy"], step_ms=step, run={"config.train.learning_rate": RATES[values["rate"]]},
            summary={"scores.validation.accuracy": accuracy},
        )  # fmt: skip

    folder = tmp_path_factory.mktemp("m") / "m"
    make_matrix(folder, (STRATEGY, RATE, SEED), tell)
    return build_systems(folder, read_sweep(folder))


def test_axes_have_main_effects_and_every_effect_has_a_point_with_its_interval(systems: Systems):
    (family,) = axis_effects(systems)
    speeds = {effect.level: effect.comparison.change for effect in family.effects if effect.comparison.is_ratio}
    assert speeds == {"zero3": pytest.approx(1.0), "1e-05": None}  # 100 ms against 50 ms; a learning rate has no speed
    verdicts, _ = judged(systems)
    of_axes, of_configurations = effect_drawings(verdicts, (family,))
    assert (of_axes.key, of_configurations.key) == ("axis_effects", "effects")
    svg = str(page_figure(of_axes))
    assert svg.count("<g><title>") == sum(effect.comparison.change is not None for effect in family.effects)
    assert "zero3 strategy, against ddp: speed +100.0%" in svg.replace("+100%", "+100.0%")


@pytest.mark.parametrize(
    ("outcome", "is_better", "label"),
    [
        ("different", True, "better"),
        ("different", False, "worse"),
        ("equal", None, "equal within the margin"),
        ("cannot tell", None, "cannot tell"),
        ("n/a", None, "cannot tell"),
    ],
)
def test_style_of_an_effect_follows_its_outcome_and_not_its_sign(outcome: str, is_better: bool | None, label: str):
    comparison = replace(FOUND, outcome=outcome, is_better=is_better)
    style = style_of(comparison)
    assert style.label == label
    assert style.is_hollow == (label == "cannot tell")
    row = _interval(comparison, 100.0, "zero3 against ddp", "classification")
    assert row.text == f"zero3 against ddp: Accuracy +1.0 points [−0.2, +2.2], {label}"
    assert (row.value, row.low, row.high, row.margin) == pytest.approx((1.0, -0.2, 2.2, 0.5))


def test_the_legend_has_the_shape_of_each_outcome(systems: Systems):
    drawing = next(effect_drawings(judged(systems)[0]))
    looks = {(key.marker, key.is_hollow) for key in drawing.legend}
    assert len(looks) == len(drawing.legend) == 4


def test_a_band_is_over_the_steps_that_all_runs_have():
    first = Curve((1, 2, 3), (None,) * 3, (4.0, 2.0, None))
    second = Curve((1, 2, 3), (None,) * 3, (2.0, 1.0, 1.0))
    band = loss_band([first, second], by_epoch=False)
    assert [column.tolist() for column in band] == [
        [1, 2], [3.0, 1.5], [2.0, 1.0], [4.0, 2.0],
    ]  # fmt: skip
    # Running means over 2 steps: 4, 3 and 2, 1.5.
    assert loss_band([first, second], by_epoch=False, window=2)[1].tolist() == [3.0, 2.25]
    assert loss_band([first, Curve((), (), ())], by_epoch=False)[0].tolist() == []
