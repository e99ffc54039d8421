import csv
import json

import pytest
from make_matrix import STRATEGY, Made, make_matrix
from make_run import make_certificate, make_run
from page_text import page_text

from paratune.commands.report import report
from paratune.reports import make
from paratune.reports.figures.canvas import Drawing
from paratune.reports.matrix import make_sweep
from paratune.reports.run import run_document
from paratune.reports.systems.building import findings
from paratune.reports.systems.tables import main_table
from paratune.reports.tables.table import make_table


def seeds_of(folder, kind, step_ms):
    return [
        make_run(
            folder / f"{kind}_seed{seed}", kind=kind, world_size=1 + (kind == "ddp"), seed=seed, step_ms=step_ms + seed,
            run_changes={"config.run.seed": seed},
        )
        for seed in (1, 2, 3)
    ]  # fmt: skip


def test_configurations_of_reported_runs_have_verdicts(tmp_path):
    runs = [*seeds_of(tmp_path, "ddp", 80.0), *seeds_of(tmp_path, "single", 40.0)]
    report = make(runs, tmp_path / "out")
    ((verdict),) = report.verdicts
    assert (verdict.label, verdict.baseline, len(verdict.runs)) == ("single", "ddp", 3)
    assert 'id="verdicts"' in (tmp_path / "out" / "index.html").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdicts"][0]["label"] == "single"
    (drawing, *_) = (
        part for part in run_document(report).parts if isinstance(part, Drawing)
    )  # the forest plot that pages of matrices have
    assert drawing.key == "effects"
    assert "Effects of the configurations" in (tmp_path / "out" / "index.html").read_text()
    (other,) = make(runs, None, baseline=runs[3]).verdicts
    assert (other.label, other.baseline) == ("ddp", "single")


def test_runs_of_one_configuration_have_no_verdict(tmp_path):
    assert make(seeds_of(tmp_path, "ddp", 80.0), None).verdicts == ()


def test_reports_of_runs_have_conclusions_and_whether_to_trust_them(tmp_path, capsys):
    runs = [*seeds_of(tmp_path, "ddp", 80.0), *seeds_of(tmp_path, "single", 40.0)]
    certificate = make_certificate(tmp_path / "given", runs[0])  # on the command line, not beside the run
    for folders, held in ((runs, None), ([*runs, certificate], True)):
        assert report(*folders, out=tmp_path / "out", json=True) == 0
        conclusions, trust = json.loads(capsys.readouterr().out)["summary"]
        labels = [statement["label"] for statement in conclusions["statements"]]
        assert labels == ["Fastest at equal quality", "Best in test Accuracy"]
        found = {statement["label"]: statement["is_good"] for statement in trust["statements"]}
        assert found == {
            "Order of runs": False, "Drift of the machine": None, "Other programs": None, "Seeds": True,
            "Same experiment": True, "Certificate": held,
        }  # fmt: skip
        page = page_text((tmp_path / "out" / "index.html").read_text())
        texts = [statement["text"] for statement in trust["statements"]]
        assert [page.count(text) for text in texts] == [1] * len(texts)
        assert report(*folders) == 0
        assert "! Order of runs: " in capsys.readouterr().out


def test_a_report_of_one_run_compares_nothing(tmp_path):
    assert make([make_run(tmp_path / "a")], None).as_dict()["summary"] == []


@pytest.mark.parametrize("is_matrix", [True, False])
def test_a_margin_decides_what_counts_as_equal(tmp_path, is_matrix, capsys):
    if is_matrix:
        times = {"ddp": 80.0, "zero3": 82.0}
        paths = [make_matrix(tmp_path / "m", [STRATEGY], lambda values: Made(times[values["strategy"]], kind="ddp"))]
    else:
        paths = [*seeds_of(tmp_path, "ddp", 80.0), *seeds_of(tmp_path, "single", 82.0)]
    shares = []
    for margins in ([], ["speed=30%"]):
        assert report(*paths, json=True, margin=margins) == 0
        (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
        shares.append(verdict["speed"]["margin"])
    assert shares[1] > shares[0]


def test_csv_of_a_matrix_has_time_speed_and_memory_of_each_run(tmp_path):
    folder = make_matrix(tmp_path / "m", [STRATEGY], lambda values: Made(step_ms=80.0, kind=values["strategy"]))
    make_sweep(folder, tmp_path / "out")
    first, _ = csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines())
    summary = json.loads((folder / "runs" / first["run"] / "summary.json").read_text())
    assert float(first["train_s"]) == summary["time"]["train_s"]
    assert float(first["samples_per_s"]) == pytest.approx(400.0)  # 32 samples in 80 ms
    assert float(first["peak_memory_largest_bytes"]) == summary["memory"]["largest_bytes"]


def test_a_chosen_line_needs_the_next_column_to_be_identified():
    rows = [("* ddp", "1e-5", "0.8"), ("ddp", "2e-5", "0.7")]
    assert make_table("a", "A", ("way", "rate", "score"), rows, 2).num_names == 2


def test_a_probe_is_not_compared_with_a_whole_run(tmp_path):
    changes = {"config.measure": {"probe": True}}
    runs = [make_run(tmp_path / "whole"), make_run(tmp_path / "probe", kind="ddp", step_ms=40.0, run_changes=changes)]
    found = make(runs, None, baseline=runs[0])
    assert findings(found.systems) == {}
    assert [column.label for column in main_table(found.systems).columns][-1] != "Change"
    assert "probes" in found.verdict_notes[0]
    (alone,) = make(seeds_of(tmp_path / "b", "ddp", 80.0), None, baseline=tmp_path / "b" / "ddp_seed1").verdict_notes
    assert "configuration" in alone
