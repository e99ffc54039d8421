"""The conclusions on top of a report, and whether they can be trusted; expected values are written out."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import STRATEGY, Made, make_matrix

from paratune.records.sweep import Axis
from paratune.reports.document import Statement, StatementBox
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
from paratune.verdicts.estimate import Estimate, Scope
from paratune.verdicts.finding import PLACEBO
from paratune.verdicts.words import comparison_words

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


@pytest.mark.parametrize(
    ("scope", "unknown", "reasons"),
    [
        ("seeds", (), {"on these rows": True, "is not recorded": False}),
        ("seeds and samples", ("plan",), {"on these rows": False, "is not recorded": True}),
        ("seeds and samples", (), {"on these rows": False, "is not recorded": False}),
    ],
)
def test_a_sentence_has_the_reason_why_a_faster_one_does_not_lead(
    scope: Scope, unknown: tuple[str, ...], reasons: dict[str, bool]
):
    score = replace(compared("equal", 0.0, measure="accuracy"), estimate=Estimate(0.0, (), 1e-6, 9, scope))
    verdict = replace(verdict_on("a", compared("different", 0.5), score), differs=Differs(unknown=unknown))
    statement = fastest([verdict])
    assert {words: words in statement.text for words in reasons} == reasons
    assert statement.is_good is (None if any(reasons.values()) else True)


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
    assert run_statements([verdict]) == ()  # a report and a comparison say by themselves what differs
    *ranked, last = run_statements([verdict, option("same", FASTER, BETTER)])
    assert [statement.is_good for statement in ranked] == [True, True]
    assert not any("other" in statement.text for statement in ranked)
    assert (last.is_good, "other against base differ in the training data" in last.text) == (None, True)


def test_an_unknown_difference_of_the_experiments_is_no_yes():
    known = option("other", FASTER, BETTER)
    assert [statement.is_good for statement in run_statements([known])] == [True, True]
    unknown = replace(known, differs=Differs(unknown=("the validation data",)))
    assert [statement.is_good for statement in run_statements([unknown])] == [None, None]


def one_run(label: str, speed: float, score: float) -> Verdict:
    """Return the verdict on one run against one of 400 samples/s and the accuracy 0.9."""
    return verdict_on(label, *(
        MeasureComparison(measure, measure == "speed", base, value, (1, 1), change, code="one_run", reason=why)
        for measure, base, value, change, why in (
            ("speed", 400.0, speed, speed / 400 - 1, "one run each: why"),
            ("accuracy", 0.9, score, score - 0.9, "one seed each: why"),
        )
    ))  # fmt: skip


def test_one_run_each_is_a_fact_and_no_rank():
    slower = one_run("slower", 320.0, 0.8)
    assert [(found.is_good, found.text) for found in run_statements([slower])] == [
        (None, "cannot tell: base 400, slower 320 samples/s (one run each)."),
        (None, "cannot tell: base 0.9000, slower 0.8000 (one seed each)."),
    ]
    several = run_statements([slower, one_run("faster", 640.0, 0.95)])
    assert not any(name in found.text for found in several for name in ("slower", "faster", "losest"))
    # Only what has an interval may be the closest.
    (speed, _) = run_statements([one_run("faster", 640.0, 0.95), option("known", OPEN, SAME)])
    assert ("known" in speed.text, "faster" in speed.text, speed.is_good) == (True, False, None)


@pytest.mark.parametrize("quality", [SAME, BETTER, WORSE])
@pytest.mark.parametrize("speed", [SAME, SLOWER])
def test_what_is_equal_is_not_best(speed, quality):
    statements = [fastest([option("a", speed, quality)]), *best_in_quality([option("a", speed, quality)])]
    are_equal = [speed == SAME and quality != WORSE, quality == SAME]
    assert [statement.text.startswith("none; equal to base in") for statement in statements] == are_equal
    assert all(statement.is_good for statement in statements)


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
    assert statements["Cost"].is_good is None


THREE_RATES = replace(RATE, values={"high": "0.001", "low": "1e-05", "mid": "1e-04"})
DECAY = Axis("train.weight_decay", "decay", {"none": "0.0", "some": "0.1"}, keys=("train.weight_decay",))


@pytest.mark.parametrize(
    ("axes", "unknown", "lost", "subjects"),
    [
        ((STRATEGY, RATE, SEEDS), "ddp_low_seed-2", None, ["strategy"]),
        ((STRATEGY, THREE_RATES, SEEDS), None, "_mid_", ["strategy"]),
        ((RATE, DECAY, SEEDS), "low_some_seed-2", None, []),
        ((RATE, SEEDS), "low_seed-2", None, []),
        ((RATE, SEEDS), None, "low_", []),
        ((STRATEGY, SEEDS), "ddp_seed-2", None, ["against ddp"]),
    ],
)
def test_an_axis_that_cannot_change_the_speed_has_no_sentence_on_it(
    tmp_path: Path, axes: tuple[Axis, ...], unknown: str | None, lost: str | None, subjects: list[str]
):
    """Also where the rate of a run is unknown, or where a value has no run."""

    def tell(values: Mapping[str, str]) -> Made:
        kind, is_unknown = values.get("strategy", "single"), "_".join(values.values()) == unknown
        return Made(kind=kind, step_ms=50.0 if kind == "zero3" else 100.0,
                    summary={"throughput.samples_per_s": None} if is_unknown else {})  # fmt: skip

    names = ["_".join(names) for names in itertools.product(*(axis.values for axis in axes))]
    states = {name: ("failed", "x") for name in names if lost is not None and lost in name}
    report = make_sweep(make_matrix(tmp_path / "m", axes, tell, states=states), None)
    assert [*compared_with(report)] == subjects
    of_speed = [found for found in matrix_statements(report) if found.label.startswith("Fastest")]
    assert len(of_speed) == len(subjects)


def test_runs_that_cannot_differ_in_speed_have_no_sentence_on_it():
    alike = verdict_on("a", compared(*UNKNOWN).without_change(*PLACEBO), compared(*BETTER, measure="accuracy"))
    assert [found.label for found in run_statements([alike])] == ["Best in Accuracy"]
    assert len(run_statements([alike, option("b", OPEN, SAME)])) == 2


def test_each_statement_links_to_a_section_of_the_page(doubled: SweepReport):
    document = matrix_document(doubled)
    page = document_html(document)
    boxes = [box for box in document.parts if isinstance(box, StatementBox)]
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


def test_main_effects_need_at_least_one_more_run(tmp_path: Path):
    report = report_of(tmp_path / "m", (STRATEGY, RATE, SEEDS), {"ddp": 100.0, "zero3": 97.0}, in_turn=False)
    (effect,) = (
        one.comparison
        for one in report.effects[0].effects
        if one.comparison.measure == "speed" and one.axis == "strategy"
    )
    # Six runs of each value, three in each combination, for which the plan is.
    assert (effect.num_runs, min(side.num_runs for side in effect.estimate.sides)) == ((6, 6), 3)
    low, high = effect.runs_to_tell.low - 3, effect.runs_to_tell.high - 3
    assert low >= 1
    assert f"({low}–{high}) more runs" in comparison_words(effect)


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


@pytest.mark.parametrize("lost", [("zero3", "low"), ("ddp", "high"), None])
def test_a_combination_without_runs_leaves_its_values_open(tmp_path: Path, lost: tuple[str, str] | None):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(kind=values["strategy"], step_ms=100.0 if values["strategy"] == "ddp" else 50.0)

    states = {} if lost is None else {f"{'_'.join(lost)}_seed-{at}": ("failed", "x") for at in (1, 2, 3)}
    report = make_sweep(make_matrix(tmp_path / "m", (STRATEGY, RATE, SEEDS), tell, states=states), None)
    (zero3,) = compared_with(report)["strategy"]
    assert (zero3.speed.change, is_better(zero3.speed)) == (pytest.approx(1.0), True if lost is None else None)
    assert zero3.speed.code == (None if lost is None else "one_run")


@pytest.mark.parametrize("lost", [None, "ddp", "zero3"])
def test_another_baseline_than_the_first_configuration_is_a_problem(tmp_path: Path, lost: str | None):
    def tell(values: Mapping[str, str]) -> Made:
        return Made(kind=values["strategy"])

    states = {f"{lost}_seed-{at}": ("failed", "x") for at in (1, 2, 3)}
    statements = by_label(
        matrix_statements(make_sweep(make_matrix(tmp_path / "m", (STRATEGY, SEEDS), tell, states=states), None))
    )
    assert ("Baseline" in statements) is (lost == "ddp")


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_the_best_in_quality_needs_all_runs_of_the_others(tmp_path: Path, num_seeds: int):
    def tell(values: Mapping[str, str]) -> Made:
        score = {"high": 0.9, "low": 0.6, "mid": 0.8}[values["rate"]] + 0.001 * int(values["seed"][-1])
        return Made(summary={"scores.validation.accuracy": score})

    states = {f"mid_seed-{at}": ("failed", "x") for at in range(1, num_seeds + 1)}
    report = make_sweep(make_matrix(tmp_path / "m", (THREE_RATES, SEEDS), tell, states=states), None)
    assert by_label(matrix_statements(report))["Best in quality"].is_good is None


CPU = {"kind": "cpu", "mean": 0.9, "machine_mean": 0.92, "energy_j": 7.2e6}
UNRECORDED = {
    "Order of runs": {"summary": {"finished": None}},
    "Drift of the machine": {"run": {"created": None}},
    "Other programs": {"summary": {"utilisation": {"energy_j": 7.2e6}}},
    "Cost": {"summary": {"utilisation": {**CPU, "energy_j": None}}},
    "Same experiment": {"run": {"versions": {}}},
    "Best in quality": {"summary": {"scores": {"validation": {"accuracy": None}}}},
}
"""For each sentence a record that lacks what it needs."""


@pytest.mark.parametrize("runs", [("ddp_seed-3",), ("zero3_seed-1", "zero3_seed-2", "zero3_seed-3"), None])
@pytest.mark.parametrize("label", UNRECORDED)
def test_what_is_not_recorded_for_all_runs_is_not_shown(tmp_path: Path, label: str, runs: tuple[str, ...] | None):
    def tell(values: Mapping[str, str], *, is_whole: bool) -> Made:
        kind, seed = values["strategy"], int(values["seed"][-1])
        place = 2 * seed + (kind == "zero3")
        run = {"created": f"2026-11-21T{place:02}:00:00+00:00"}
        summary = {"finished": f"2026-11-21T{place:02}:20:00+00:00", "utilisation": CPU, "time.total_s": 1200.0}
        lacking = is_whole or (runs is not None and f"{kind}_seed-{seed}" not in runs)
        more = {} if lacking else UNRECORDED[label]
        return Made(kind=kind, step_ms=80 * (1.01 if seed == 2 else 1.0), run=run | more.get("run", {}),
                    summary=summary | more.get("summary", {}))  # fmt: skip

    def statements(folder: Path, *, is_whole: bool) -> dict[str, Statement]:
        report = make_sweep(
            make_matrix(folder, (STRATEGY, SEEDS), lambda values: tell(values, is_whole=is_whole)), None
        )
        return by_label((*matrix_statements(report), *trust_statements(report)))

    assert statements(tmp_path / "whole", is_whole=True)[label].is_good is True
    found = statements(tmp_path / "part", is_whole=False)
    # That there is nothing to select holds, and the sentence has the number of runs.
    of_runs = f"({6 - len(runs or ())} of 6 runs)"
    is_told = label == "Best in quality" and runs is not None
    assert (found[label].is_good, is_told) == (True if is_told else None, of_runs in found[label].text)
    ticks = [statement.text for statement in found.values() if statement.is_good]
    assert not [text for text in ticks if re.search(r"\b0 of \d|n/a", text)]


def test_a_configuration_without_a_run_has_no_seeds(tmp_path: Path):
    states = {f"zero3_seed-{at}": ("failed", "x") for at in (1, 2, 3)}
    report = make_sweep(make_matrix(tmp_path / "m", (STRATEGY, SEEDS), lambda values: Made(), states=states), None)
    found = by_label(trust_statements(report))["Seeds"]
    assert (found.is_good, found.text[:12]) == (False, "0 to 3 seeds")
