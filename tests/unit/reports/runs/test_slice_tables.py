"""Tables of scores by slice: which lines and columns, and what stands in their files."""

import csv
import json

from make_run import edit_json, make_run

from paratune import reports
from paratune.reports.systems.tables import length_table, raters_table, slice_tables


def entry(value, num_rows, accuracy, interval, detail=None):
    scores = {"accuracy": {"value": accuracy, "interval": interval}, "f1_macro": {"value": None, "interval": None}}
    return {"value": value, "detail": detail, "num_rows": num_rows, "scores": scores}


def tables(folders):
    return list(slice_tables([(run.name, (run,)) for run in reports.make(folders, None).runs]))


def runs(tmp_path):
    first = [entry("art", 20, 0.75, [0.53, 0.89]), entry("food", 4, 0.5, None)]
    second = [entry("art", 20, 0.5, [0.3, 0.7]), entry("sport", 12, None, None)]
    folders = [make_run(tmp_path / name) for name in "abc"]
    for folder, entries in zip(folders, (first, second), strict=False):
        edit_json(folder / "summary.json", slices={"test": {"topic": entries}})
    return folders


def test_configurations_are_beside_each_other_by_slice(tmp_path):
    (table,) = tables(runs(tmp_path))
    assert table.header == ("topic", "Rows", "a", "b", "c")
    assert [list(line) for line in table.rows] == [
        ["art", "20", "0.7500 [0.5300, 0.8900]", "0.5000 [0.3000, 0.7000]", "n/a"],
        ["food", "4", "0.5000 [n/a]", "n/a", "n/a"],
        ["sport", "12", "n/a", "n/a", "n/a"],
    ]
    assert [at for at, _ in table.groups] == [0]  # nothing is known of F1
    assert (table.lines[0][2].value, table.lines[0][2].interval) == (0.75, (0.53, 0.89))
    assert table.lines[1][2].interval is None


def test_tokens_of_a_quartile_are_shown_where_runs_agree(tmp_path):
    folders = [make_run(tmp_path / name) for name in "ab"]
    for folder, most in zip(folders, (9, 8), strict=True):
        entries = [entry("Q1", 5, 0.5, None, "1 to 4 tokens"), entry("Q2", 5, 0.5, None, f"5 to {most} tokens")]
        edit_json(folder / "summary.json", slices={"test": {"length": entries}})
    (table,) = tables(folders)
    assert [line[0] for line in table.rows] == ["Q1: 1 to 4 tokens", "Q2"]


def test_the_page_has_them_only_where_a_run_has_slices(tmp_path):
    out = tmp_path / "report"
    reports.make(runs(tmp_path), out, wanted=["latex"])
    assert 'id="slices"' in (out / "index.html").read_text()
    assert (out / "tables" / "slices-1.tex").is_file()
    found = json.loads((out / "report.json").read_text())["runs"]
    assert found[0]["slices"]["test"]["topic"][0]["num_rows"] == 20
    assert found[2]["slices"] == {}
    assert not tables([make_run(tmp_path / "d")])


def test_many_slices_are_all_in_the_csv(tmp_path):
    folder = make_run(tmp_path / "a")
    entries = [entry(f"prompt {at}", 12, at / 100, [0.0, 1.0] if at else None) for at in range(60)]
    edit_json(folder / "summary.json", slices={"test": {"Question": entries}})
    (table,) = tables([folder])
    assert [line[0].text for line in table.lines] == [f"prompt {at}" for at in [*range(59, 49, -1), *range(9, -1, -1)]]
    reports.make([folder], tmp_path / "out")
    with (tmp_path / "out" / "slices.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["value"] for line in lines] == [f"prompt {at}" for at in range(60)]
    whole = {"run": "a", "split": "test", "column": "Question", "value": "prompt 7", "num_rows": "12"}
    whole |= {"accuracy": "0.07", "accuracy_low": "0.0", "accuracy_high": "1.0"}
    assert {**lines[7], **whole} == lines[7]
    assert (lines[0]["accuracy"], lines[0]["accuracy_low"], lines[7]["f1_macro"]) == ("0.0", "", "")


def test_errors_by_length_are_a_table_of_the_test_set(tmp_path):
    folder = make_run(tmp_path / "a", task="regression")
    quintile = {"shortest": 90, "longest": 1250, "num_rows": 12, "rmse": 0.75, "bias": -0.25}
    found = {
        split: {"pearson": value, "quintiles": [quintile]} for split, value in (("validation", 0.5), ("test", -0.125))
    }
    edit_json(folder / "summary.json", length_bias=found)
    (run,) = reports.make([folder], None).runs
    (table,) = length_table(run, "")
    assert table.rows == (("90", "1,250", "12", "0.7500", "-0.2500"),)
    assert [column.name for column in table.columns] == list(quintile)
    assert table.notes[0].count("-0.125") == 1
    assert not [*length_table(reports.make([make_run(tmp_path / "b")], None).runs[0], "")]


def test_raters_are_a_table_of_the_test_set_beside_the_model(tmp_path):
    folder = make_run(tmp_path / "a", task="regression")
    scores = {"num_rows": 1250, "qwk": 0.75, "pearson": 0.5, "rmse": 0.625, "bias": -0.25}
    lines = [{"who": "two raters", **scores, "bias": None}, {"who": "ana and the others", **scores}]
    edit_json(folder / "summary.json", raters={"validation": lines[:1], "test": lines})
    (run,) = reports.make([folder], None).runs
    (table,) = raters_table(run, "")
    figures = ("1,250", "0.7500", "0.5000", "0.6250")
    assert table.rows == (("two raters", *figures, "n/a"), ("ana and the others", *figures, "-0.2500"))
    assert not [*raters_table(reports.make([make_run(tmp_path / "b")], None).runs[0], "")]
