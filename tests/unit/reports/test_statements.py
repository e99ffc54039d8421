"""The conclusions on top of a report, and whether they can be trusted; expected values are written out."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import STRATEGY, Made, make_matrix

from paratune.records.sweep import Axis
from paratune.reports.document import Statement
from paratune.reports.matrix import make_sweep, matrix_document
from paratune.reports.outcomes import SweepReport
from paratune.reports.page.document import document_html
from paratune.reports.statements import (
    all_of,
    best_in_quality,
    compared_with,
    fastest,
    is_as_good,
    is_better,
    matrix_statements,
    run_statements,
    trust_statements,
)
from paratune.verdicts import Differs, MeasureComparison, Verdict
from paratune.verdicts.estimate import Estimate

SEEDS = Axis("run.seed", "seed", {f"seed-{at}": str(at) for at in (1, 2, 3)}, is_seed=True, keys=("run.seed",))
RATE = Axis("train.learning_rate", "rate", {"high": "0.001", "low": "1e-05"}, keys=("train.learning_rate",))
FASTER, SLOWER, SAME = ("different", 0.5), ("different", -0.5), ("equal", 0.0)
OPEN, UNKNOWN = ("cannot tell", 0.4), ("n/a", None)
BETTER, WORSE = ("different", 0.1), ("different", -0.1)
SPEEDS = (FASTER, SLOWER, SAME, OPEN, UNKNOWN, ("n/a", 3.0))
"""Outcome and change; of the last one the change of one run each."""
QUALITIES = (BETTER, WORSE, SAME, ("cannot tell", 0.05), UNKNOWN, None)


def compared(outcome: str, change: float | None, *, measure: str = "speed", half: float = 0.2) -> MeasureComparison:
    """Return a comparison; only decided and open ones have an interval."""
    found = MeasureComparison(measure, measure == "speed", 1.0, 1.0, (3, 3), change, margin=0.02, outcome=outcome)
    if change is None or outcome == "n/a":
        return replace(found, reason="unknown")
    is_better = change > 0 if outcome == "different" else None
    return replace(found, low=change - half, high=change + half, is_better=is_better)


def verdict_on(label: str, speed: MeasureComparison, *quality: MeasureComparison) -> Verdict:
    return Verdict(label, "base", (), (), speed, quality, None, "classification", Differs(), 1)


def option(label: str, speed: tuple[str, float | None], *scores: tuple[str, float | None] | None) -> Verdict:
    quality = (compared(*score, measure="accuracy") for score in scores if score is not None)
    return verdict_on(label, compared(*speed), *quality)


def possible(outcome: tuple[str, float | None] | None, *, at_least_equal: bool) -> set[bool]:
    """Return what may be true: whether it is more than the baseline, or at least equal to it."""
    if outcome is None or outcome[0] in ("cannot tell", "n/a"):
        return {True, False}
    return {at_least_equal} if outcome[0] == "equal" else {(outcome[1] or 0) > 0}


WAYS = list(itertools.product(SPEEDS, QUALITIES))


@pytest.mark.parametrize("first", WAYS)
def test_no_mixture_of_unknown_values_is_a_yes_or_a_no(first):
    """A sentence is a yes where it holds in every world that the comparisons allow."""
    for second in WAYS:
        options = [option("first", *first), option("second", *second)]
        leads = [
            {
                is_fast and is_good
                for is_fast in possible(speed, at_least_equal=False)
                for is_good in possible(quality, at_least_equal=True)
            }
            for speed, quality in (first, second)
        ]
        certain = [lead == {True} for lead in leads]
        # Of two that lead, neither is shown to be the faster one: their intervals are equal here.
        expected = all(lead == {False} for lead in leads) or (True in certain and {False} in leads)
        found = fastest(options)
        assert found.is_good is (True if expected else None), (first, second, found.text)
        assert ("Nothing else" in found.text) is all(lead == {False} for lead in leads), (first, second)


@pytest.mark.parametrize("first", QUALITIES)
@pytest.mark.parametrize("second", QUALITIES)
def test_quality_that_is_unknown_is_not_worse(first, second):
    options = [option("first", FASTER, first), option("second", FASTER, second)]
    leads = [possible(quality, at_least_equal=False) for quality in (first, second)]
    expected = all(lead == {False} for lead in leads) or ({True} in leads and {False} in leads)
    statements = list(best_in_quality(options))
    assert len(statements) == (first is not None or second is not None)
    assert all(statement.is_good is (True if expected else None) for statement in statements)


def test_less_is_better_of_a_loss():
    lower, higher = (
        verdict_on(name, compared(*UNKNOWN), replace(compared(*found, measure="loss"), is_better=found[1] < 0))
        for name, found in (("lower", ("different", -0.5)), ("higher", ("different", 0.5)))
    )
    (found,) = best_in_quality([higher, lower])
    assert (found.is_good, found.text.startswith("lower against base")) == (True, True)


@pytest.mark.parametrize("scope", ["seeds", "seeds and samples"])
@pytest.mark.parametrize(("found", "expected"), [(BETTER, True), (WORSE, False), (SAME, True)])
def test_a_verdict_for_these_rows_alone_decides_nothing(found, expected: bool, scope: str):
    score = replace(compared(*found, measure="accuracy"), estimate=Estimate(0.0, (), 0.0, 9, scope))
    verdict = verdict_on("a", compared(*FASTER), score)
    assert is_as_good(verdict) is (expected if scope != "seeds" else None)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [((), True), ((True, True), True), ((True, None), None), ((None, False), False), ((False, True), False)],
)
def test_all_of(facts, expected):
    assert all_of(*facts) is expected


def test_a_different_experiment_is_not_slower():
    refused = Differs(refused=("the training data",))
    unknown = MeasureComparison("speed", True, 1.0, 9.0, (3, 3), code="not_same_experiment", reason="not the same")
    verdict = Verdict("other", "base", (), (), unknown, (), None, "classification", refused, 1)
    (found,) = run_statements([verdict])
    assert found.is_good is None


def report_of(
    folder: Path, axes: tuple[Axis, ...], step_ms: Mapping[str, float], *, in_turn: bool = True
) -> SweepReport:
    """Return a report of runs with these steps, 1% longer with the second seed, which is no drift."""

    def tell(values: Mapping[str, str]) -> Made:
        kind, seed = values["strategy"], int(values["seed"][-1])
        place = 2 * seed + (kind == "zero3") if in_turn else seed + 3 * (kind == "zero3")
        place = 2 * place + (values.get("rate") == "high")  # no two at once
        accuracy = 0.8 + 0.01 * seed + (0.05 if values.get("rate") == "high" else 0.0)
        times = {"created": f"2026-11-{21 + place // 48}T{place % 48 // 2:02}:{30 * (place % 2):02}:00+00:00"}
        summary = {
            "finished": f"2026-11-{21 + place // 48}T{place % 48 // 2:02}:{30 * (place % 2) + 29:02}:50+00:00",
            "scores.validation.accuracy": accuracy + 0.001 * seed * (values.get("rate") == "high"),
            "time.total_s": 1800.0,
        }
        return Made(kind=kind, step_ms=step_ms[kind] * (1.01 if seed == 2 else 1.0), run=times, summary=summary)

    make_matrix(folder, axes, tell)
    return make_sweep(folder, None)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> SweepReport:
    """Three seeds of ddp at 100 ms and of zero3 at 50 ms, at two learning rates."""
    folder = tmp_path_factory.mktemp("doubled") / "m"
    return report_of(folder, (STRATEGY, RATE, SEEDS), {"ddp": 100.0, "zero3": 50.0})


def by_label(statements: tuple[Statement, ...]) -> dict[str, Statement]:
    return {statement.label: statement for statement in statements}


def test_the_sentences_come_from_the_main_effects_of_the_axes(doubled: SweepReport):
    # An axis of learning rates has no effect on speed, and no sentence.
    ((axis, (strategy,)),) = compared_with(doubled).items()
    assert (axis, strategy.speed.change) == ("strategy", pytest.approx(1.0))  # 100 ms against 50 ms
    statements = by_label(matrix_statements(doubled))
    speed = statements["Fastest at equal quality"]
    # All scores differ by nothing between strategies in every seed, but without predictions on these rows alone.
    assert (speed.is_good, speed.evidence) == (None, "verdicts")
    # Logarithms of the rates of a cell: 0, 0.00995, 0; variance 3.3e-5. The effect over 4 cells of 3 runs has the
    # standard error 0.0033, with 8 degrees of freedom: t 2.306, so 2 times exp(-0.0077) to exp(0.0077).
    assert "strategy zero3, 2.00× as fast (1.98–2.02×)" in speed.text
    # 0.05 and 0.001 to 0.003 by seed: 0.052 on average, but without predictions on these rows alone.
    quality = statements["Best in quality"]
    assert quality.is_good is None
    assert "next rate 1e-05, −5.2 points" in quality.text
    # 12 runs of half an hour on one device.
    assert statements["Cost"].text.startswith("12 runs took 6.0 device-hours, energy is recorded for 0 of 12 runs")


def test_each_statement_links_to_a_section_of_the_page(doubled: SweepReport):
    document = matrix_document(doubled)
    page = document_html(document)
    boxes = [box for section in document.sections for box in section.boxes]
    assert [box.title for box in boxes] == ["", "Can this be trusted?"]
    for statement in (statement for box in boxes for statement in box.statements if statement.evidence):
        assert f'<a href="#{statement.evidence}">' in page
        assert f'id="{statement.evidence}"' in page


def test_runs_in_turn_without_a_drift_can_be_trusted(doubled: SweepReport):
    statements = by_label(trust_statements(doubled))
    assert {label: statement.is_good for label, statement in statements.items()} == {
        "Order of runs": True,
        "Drift of the machine": True,
        "Negative control": True,
        "Other programs": None,
        "Seeds": True,
        "Same experiment": True,
        "Certificate": None,
    }


def test_one_configuration_after_the_other_is_a_problem(tmp_path: Path):
    report = report_of(tmp_path / "m", (STRATEGY, SEEDS), {"ddp": 100.0, "zero3": 50.0}, in_turn=False)
    assert by_label(trust_statements(report))["Order of runs"].is_good is False


def test_one_seed_gives_no_conclusion_on_quality(tmp_path: Path):
    seed = replace(SEEDS, values={"seed-1": "1"})
    report = report_of(tmp_path / "m", (STRATEGY, seed), {"ddp": 100.0, "zero3": 50.0})
    statements = by_label(matrix_statements(report))
    assert statements["Fastest at equal quality"].is_good is None
    assert by_label(trust_statements(report))["Seeds"].is_good is False


BATCH = Axis("batch.global", "batch", {"b32": "32", "b64": "64"}, keys=("batch.global",))


def test_what_is_several_times_as_fast_and_has_no_goodput_is_not_excluded(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        batch, seed = int(values["batch"][1:]), int(values["seed"][-1])
        # 64 samples in a quarter of the time of 32: eight times the samples/s. Without a noise scale, no goodput.
        return Made(batch=batch, step_ms=(100.0 if batch == 32 else 25.0) * (1 + 0.01 * seed))

    report = make_sweep(make_matrix(tmp_path / "m", (BATCH, SEEDS), tell), None)
    (only,) = compared_with(report)["against batch 32"]
    assert (only.speed.change, is_better(only.speed)) == (None, None)
    found = by_label(matrix_statements(report))["Fastest at equal quality"]
    assert (found.is_good, "Nothing else" in found.text) == (None, False)


@pytest.mark.parametrize(("state", "expected"), [("failed", None), ("pending", None), ("skipped", True)])
def test_a_configuration_without_runs_is_open_unless_it_cannot_run_here(tmp_path: Path, state, expected):
    def tell(values: Mapping[str, str]) -> Made:
        step_ms = {"ddp": 100.0, "zero3": 300.0, "fsdp2": 1.0}[values["strategy"]]
        return Made(kind=values["strategy"], step_ms=step_ms * (1 + 0.001 * int(values["seed"][-1])))

    three = replace(STRATEGY, values={name: name for name in ("ddp", "zero3", "fsdp2")})
    states = {f"fsdp2_seed-{at}": (state, "x") for at in (1, 2, 3)}
    report = make_sweep(make_matrix(tmp_path / "m", (three, SEEDS), tell, states=states), None)
    assert by_label(matrix_statements(report))["Fastest at equal quality"].is_good is expected


def test_a_value_without_runs_is_open_beside_main_effects(tmp_path: Path):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(kind=values["strategy"], step_ms=100.0 * (1 + 0.001 * int(values["seed"][-1])))

    three = replace(STRATEGY, values={name: name for name in ("ddp", "zero3", "fsdp2")})
    states = {f"fsdp2_{rate}_seed-{at}": ("failed", "x") for rate in RATE.values for at in (1, 2, 3)}
    report = make_sweep(make_matrix(tmp_path / "m", (three, RATE, SEEDS), tell, states=states), None)
    last = compared_with(report)["strategy"][-1]
    assert (last.label, is_better(last.speed)) == ("strategy fsdp2", None)
    assert report.as_dict()["effects"][0]["effects"][-1]["num_combinations"] == 0


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_the_best_in_quality_needs_all_runs_of_the_others(tmp_path: Path, num_seeds: int):
    def tell(values: Mapping[str, str]) -> Made:
        score = {"high": 0.9, "low": 0.6, "mid": 0.8}[values["rate"]] + 0.001 * int(values["seed"][-1])
        return Made(summary={"scores.validation.accuracy": score})

    rates = replace(RATE, values={"high": "0.001", "low": "1e-05", "mid": "1e-04"})
    states = {f"mid_seed-{at}": ("failed", "x") for at in range(1, num_seeds + 1)}
    report = make_sweep(make_matrix(tmp_path / "m", (rates, SEEDS), tell, states=states), None)
    assert by_label(matrix_statements(report))["Best in quality"].is_good is None
