from dataclasses import replace

import pytest

from paratune.verdicts import Differs, MeasureComparison, Verdict
from paratune.verdicts.estimate import Estimate, Side
from paratune.verdicts.finding import RunRange
from paratune.verdicts.words import comparison_words, quality_words, signed_interval_words

ON_ROWS = "test F1 1.3 points better on these rows (0.4–2.2)"


def speed(change, low, high, outcome, **values):
    return MeasureComparison("speed", True, 100.0, 127.0, (3, 3), change, low, high, outcome, margin=0.02, **values)


def score(change, low, high, outcome, metric="f1", margin=0.005, scope="seeds and samples", **values):
    return MeasureComparison(
        metric, False, 0.9, 0.9 + (change or 0), (3, 3), change, low, high, outcome, margin=margin, split="test",
        estimate=Estimate(change, (), 0.0, 408, scope, 408), **values,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (speed(0.27, 0.24, 0.30, "different"), "27% faster (24–30%)"),
        (speed(-0.21, -0.233, -0.187, "different"), "21% slower (19–23%)"),
        (speed(0.012, 0.0104, 0.0136, "equal"), "same speed within 2%"),
        (speed(1.41, 1.35, 1.47, "different"), "2.41× as fast (2.35–2.47×)"),
        (speed(0.2, 0.2, 0.2, "different"), "20.0% faster (no variation)"),
        (
            speed(0.03, -0.02, 0.08, "cannot tell", runs_to_tell=RunRange(13, 23, None)),
            "speed: cannot tell (+3% [−2, +8]): about 20 (at least 10) more runs needed to tell a change of this size",
        ),
        (
            speed(
                0.03, -0.02, 0.08, "cannot tell",
                runs_to_tell=RunRange(7, 10, 15), runs_to_equal=RunRange(40, None, None),
            ),
            "speed: cannot tell (+3% [−2, +8]): about 7 (4–12) more runs needed to tell a change of this size, at "
            "least 37 to show equality",
        ),
        (
            speed(0.03, -0.02, 0.08, "cannot tell", runs_to_equal=RunRange(4, 4, 4)),
            "speed: cannot tell (+3% [−2, +8]): 1 more run needed to show equality",
        ),
        (
            speed(0.03, -0.02, 0.08, "cannot tell", runs_to_tell=RunRange(7, 10, None)),
            "speed: cannot tell (+3% [−2, +8]): about 7 (at least 4) more runs needed to tell a change of this size",
        ),
        (
            speed(0.0, 0.0, 0.0, "cannot tell"),
            "speed: cannot tell (0.0% [0.0, 0.0]): more than 200 runs needed, or a wider margin",
        ),
        (
            speed(0.03, -0.02, 0.08, "cannot tell"),
            "speed: cannot tell (+3% [−2, +8]): more than 200 runs needed, or a wider margin",
        ),
        (
            speed(0.08, 0.02, 0.14, "cannot tell", runs_to_tell=RunRange(7, 7, 7), code="many_comparisons"),
            "speed: cannot tell with so many comparisons (+8% [+2, +14]): 4 more runs needed to tell a change of this "
            "size",
        ),
        (
            speed(0.08, 0.02, 0.14, "cannot tell", runs_to_tell=RunRange(7, 7, 7), code="repeated_looks"),
            "speed: cannot tell at the first look (+8% [+2, +14]): 4 more runs needed to tell a change of this size",
        ),
        (
            speed(0.27, None, None, "n/a", reason="one run each: how far another run would be from it is not known"),
            "speed +27.0% in these runs, interval n/a (one run each)",
        ),
        (speed(None, None, None, "n/a", reason="unknown for b"), "speed n/a (unknown for b)"),
    ],
)  # fmt: skip
def test_speed(found, words):
    assert comparison_words(found) == words


def test_the_number_of_runs_is_a_guess_where_two_give_the_variance():
    def found(*num_runs, freedom):
        estimate = Estimate(0.03, (Side(1.0, 2, freedom),), 0.0, 0, "runs")
        one = speed(0.03, -0.02, 0.08, "cannot tell", runs_to_tell=RunRange(3, None, None), estimate=estimate)
        return comparison_words(replace(one, num_runs=num_runs))

    assert not found(3, 3, freedom=1.7).endswith("(a guess from 3 runs)")
    assert found(2, 5, freedom=1.7).endswith("(a guess from 2 runs)")
    assert not found(2, 2, freedom=18).endswith("(a guess from 2 runs)")


def test_goodput():
    found = MeasureComparison("goodput", True, 1.0, 1.3, (3, 3), 0.3, 0.25, 0.35, "different", margin=0.02)
    assert comparison_words(found) == "30% more goodput (25–35%)"


@pytest.mark.parametrize(
    ("findings", "task", "words"),
    [
        ([score(0.001, -0.003, 0.004, "equal")], "classification", "quality equal within 0.5 points test F1"),
        ([score(0.1, -0.3, 0.4, "equal", margin=0.5)], "qa", "quality equal within 0.5 points test F1"),
        ([score(0.1, -0.3, 0.4, "equal", margin=0.01)], "classification", "quality equal within 1 point test F1"),
        (
            [score(0.0, 0, 0, "equal"), score(0.0, 0, 0, "equal", "accuracy")],
            "classification",
            "quality equal within 0.5 points test F1 and test Accuracy",
        ),
        ([score(0.013, 0.004, 0.022, "different", is_better=True)], "mlm", "test F1 1.3 points better (0.4–2.2)"),
        ([score(-0.013, -0.022, -0.004, "different", is_better=False)], "mlm", "test F1 1.3 points worse (0.4–2.2)"),
        ([score(0.013, 0.004, 0.022, "different", is_better=True, scope="seeds")], "mlm", ON_ROWS),
        ([score(-0.13, -0.22, -0.04, "different", "rmse", is_better=True)], "mlm", "test RMSE 0.13 better (0.04–0.22)"),
        (
            [score(0.004, -0.006, 0.014, "cannot tell", runs_to_equal=RunRange(9, 15, 30))],
            "classification",
            "test F1: cannot tell (+0.4 points [−0.6, +1.4]): about 12 (6–27) more seeds needed to show equality",
        ),
        (
            [score(0.004, -0.026, 0.034, "cannot tell", num_samples_needed=13702)],
            "classification",
            "test F1: cannot tell (+0.4 points [−2.6, +3.4]): more seeds do not help, 408 rows are too few: at least "
            "13,702 needed, or a wider margin",
        ),
        (
            [score(0.004, -0.006, 0.014, "cannot tell", scope="samples", reason="one seed each: how far")],
            "classification",
            "test F1: cannot tell (+0.4 points [−0.6, +1.4]): one seed each, and other seeds may differ more",
        ),
        ([], "classification", "quality n/a (no score that all of these runs have)"),
    ],
)  # fmt: skip
def test_quality(findings, task, words):
    assert quality_words(tuple(findings), task) == words


def verdict(**values):
    found = {"differs": Differs(), "num_compared": 1, "speed": speed(0.27, 0.24, 0.30, "different")} | values
    return Verdict("ddp", "single", ("a",), ("b",), quality=(score(0, 0, 0, "equal"),), split="test",
                   task="classification", **found)  # fmt: skip


def test_the_sentence_of_the_readme():
    expected = "ddp against single: 27% faster (24–30%), quality equal within 0.5 points test F1."
    assert verdict().sentence == expected


@pytest.mark.parametrize(("scope", "is_good"), [("seeds and samples", True), ("seeds", None)])
def test_what_holds_for_these_rows_alone_has_no_tick(scope, is_good):
    found = replace(verdict(), quality=(score(0.013, 0.004, 0.022, "different", is_better=True, scope=scope),))
    assert found.parts[1][1] is is_good


def test_what_differs_is_said():
    assert verdict(differs=Differs(refused=("the seed of x", "the batch"))).sentence == (
        "ddp against single: no verdict: not the same experiment; they differ in the seed of x; the batch."
    )
    said = verdict(differs=Differs(allowed=("the global batch size (32 → 64)",), elsewhere=True)).sentence
    assert "they differ in the global batch size (32 → 64), which is what is compared" in said
    assert "they ran on different machines" in said
    assert "not recorded (the seed)" in verdict(differs=Differs(unknown=("the seed",))).sentence


def test_names_do_not_act_in_a_terminal():
    found = verdict()
    hostile = Verdict("\x1b[31m", found.baseline, (), (), found.speed, (), None, "", Differs(), 1)
    assert "\x1b" not in hostile.sentence


def test_intervals_of_tables_keep_their_signs():
    assert signed_interval_words(speed(-0.21, -0.233, -0.187, "different")) == "[−23, −19]"
    assert signed_interval_words(score(0.001, -0.003, 0.004, "equal"), "classification") == "[−0.3, +0.4]"
