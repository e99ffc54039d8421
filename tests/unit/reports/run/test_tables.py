"""The tables of a report of runs that hold more than the rows of the comparison."""

import math
from dataclasses import replace

from make_run import make_run

from paratune import reports
from paratune.records.finished import Curve
from paratune.records.typed import Best
from paratune.reports.run import evaluations_table


def texts(table):
    return [[entry.text for entry in line] for line in table.lines]


def test_evaluations_have_losses_and_scores_with_the_kept_one_marked(tmp_path):
    run = replace(
        reports.make([make_run(tmp_path / "run", num_steps=20)], None).runs[0],
        train=Curve((1, 2, 3), (0.1, 0.2, 0.3), (4.0, 2.0, math.nan)),
        validation=Curve((2, 3), (0.2, 0.3), (1.5, math.nan)),
        validation_scores={2: {"accuracy": 0.5, "f1": 0.25, "f1_macro": 0.4, "recall": 0.1}, 3: {"f1": None}},
    )
    # (4 + 2) / 2, and nothing known of step 3.
    losses = [["2", "0.20", "3.0000", "1.5000"], ["3", "0.30", "n/a", "n/a"]]
    (table,) = evaluations_table(replace(run, validation_scores={}), "")
    assert texts(table) == losses
    best = {"step": 2, "metric": "f1", "value": 0.25}
    run = replace(run, summary=run.summary.model_copy(update={"kept_step": 2, "best": Best(**best)}))
    (table,) = evaluations_table(run, "")
    assert [column.label for column in table.columns[4:]] == ["F1 ↑", "Accuracy ↑", "F1, macro ↑"]
    assert texts(table) == [
        [*losses[0], "0.2500", "0.5000", "0.4000"],
        [*losses[1], "n/a", "n/a", "n/a"],
    ]
    assert table.marked == (0,)
    assert not [*evaluations_table(replace(run, validation=Curve((), (), ())), "")]
