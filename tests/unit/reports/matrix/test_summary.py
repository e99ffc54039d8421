"""The conclusions on top of a matrix, and whether they can be trusted; expected values are written out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from make_matrix import STRATEGY, Made, make_matrix

from paratune.records.sweep import Axis
from paratune.reports.document import Statement
from paratune.reports.matrix import make_sweep
from paratune.reports.matrix.document import matrix_document
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.matrix.summary import ComparedOption, compared_options, fastest_option, summary_statements
from paratune.reports.matrix.trust import trust_statements
from paratune.reports.page.document import document_html
from paratune.verdicts import MeasureComparison

SEEDS = Axis("run.seed", "seed", {f"seed-{at}": str(at) for at in (1, 2, 3)}, is_seed=True, keys=("run.seed",))
RATE = Axis("train.learning_rate", "rate", {"high": "0.001", "low": "1e-05"}, keys=("train.learning_rate",))
SPEED = MeasureComparison("speed", True, 10.0, 12.0, (3, 3), change=0.2, low=0.15, high=0.25, margin=0.02)
SCORE = MeasureComparison("accuracy", False, 0.8, 0.8, (3, 3), change=0.0, low=-0.01, high=0.01, margin=0.005)


def option(label: str, change: float, quality: str, *, better: bool = True, speed: str = "different") -> ComparedOption:
    rate = replace(SPEED, change=change, low=change - 0.05, high=change + 0.05, outcome=speed, is_better=change > 0)
    return ComparedOption(label, "base", rate, (replace(SCORE, outcome=quality, is_better=better),), "classification")


def test_the_fastest_is_the_one_with_most_speed_among_those_shown_to_be_as_good():
    options = [
        option("worse", 0.9, "different", better=False),
        option("open", 0.8, "cannot tell"),
        option("equal", 0.2, "equal"),
        option("better", 0.3, "different"),
        option("slow", -0.3, "equal"),
    ]
    best = fastest_option(options)
    assert best is not None
    assert best.label == "better"
    assert [choice.is_open for choice in options] == [False, True, True, True, False]
    assert fastest_option([option("open", 0.8, "cannot tell"), option("slow", -0.3, "equal")]) is None


def report_of(
    folder: Path, axes: tuple[Axis, ...], step_ms: Mapping[str, float], *, in_turn: bool = True
) -> SweepReport:
    """Return a report of runs with these steps, 1% longer with the second seed, which is no drift."""

    def tell(values: Mapping[str, str]) -> Made:
        kind, seed = values["strategy"], int(values["seed"][-1])
        place = 2 * seed + (kind == "zero3") if in_turn else seed + 3 * (kind == "zero3")
        accuracy = 0.8 + 0.01 * seed + (0.05 if values.get("rate") == "high" else 0.0)
        times = {"created": f"2026-11-21T10:{place:02}:00+00:00"}
        summary = {
            "finished": f"2026-11-21T10:{place:02}:50+00:00",
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
    (strategy,) = compared_options(doubled)["strategy"]
    assert strategy.speed.change == pytest.approx(1.0)  # 100 ms against 50 ms
    statements = by_label(summary_statements(doubled))
    speed = statements["Fastest at equal quality"]
    # All scores differ by nothing between strategies in every seed: equal.
    assert (speed.is_good, speed.evidence) == (True, "verdicts")
    # Logarithms of the rates of a cell: 0, 0.00995, 0; variance 3.3e-5. The effect over 4 cells of 3 runs has the
    # standard error 0.0033, with 8 degrees of freedom: t 2.306, so 2 times exp(-0.0077) to exp(0.0077).
    assert "strategy zero3 against strategy ddp: 2.00× as fast (1.98–2.02×)" in speed.text
    # 0.05 and 0.001 to 0.003 by seed: 0.052 on average, s.d. 0.001, t(2) at 97.5% = 4.303: 0.0520 ± 0.0025.
    quality = statements["Best in quality"]
    assert quality.is_good is True
    assert "0.0520 [0.0495, 0.0545] higher than rate 1e-05" in quality.text
    # 12 runs of half an hour on one device.
    assert statements["Cost"].text.startswith("12 runs took 6.0 device-hours, energy is recorded for 0 of 12 runs")


def test_each_statement_links_to_a_section_of_the_page(doubled: SweepReport):
    document = matrix_document(doubled)
    page = document_html(document)
    boxes = [box for section in document.sections for box in section.boxes]
    assert [box.title for box in boxes] == ["", "Can this be trusted?", "Reproduce"]
    for statement in (statement for box in boxes for statement in box.statements if statement.evidence):
        assert f'<a href="#{statement.evidence}">' in page
        assert f'id="{statement.evidence}"' in page


def test_runs_in_turn_without_a_drift_can_be_trusted(doubled: SweepReport):
    statements = by_label(trust_statements(doubled))
    assert {label: statement.is_good for label, statement in statements.items()} == {
        "Order of runs": True,
        "Drift of the machine": True,
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
    statements = by_label(summary_statements(report))
    assert statements["Fastest at equal quality"].is_good is None
    assert by_label(trust_statements(report))["Seeds"].is_good is False
