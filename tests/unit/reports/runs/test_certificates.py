"""Certificates beside runs: which run each is of, and what of it every format shows."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from make_run import edit_json, make_certificate, make_run
from page_text import page_text
from rich.console import Console

from paratune import reports
from paratune.reports import Report
from paratune.reports.statements import trust_statements
from paratune.reports.terminal import terminal_runs

CANNOT: dict[str, Any] = {
    "strategy": "pipeline:8", "kind": "pipeline", "status": "cannot run", "reason": "it has <b>8</b> stages",
    "same_samples": None, "same_order": None, "same_weights": None,
    "gradient_difference": None, "loss_difference": None,
}  # fmt: skip


def shown(made: Report) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(terminal_runs(made))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_one_beside_the_run_is_in_every_format(tmp_path: Path):
    run = make_run(tmp_path / "a", kind="ddp", world_size=2)
    make_certificate(tmp_path / "a.certificate", run, {}, CANNOT, verdict="incomplete")
    made = reports.make([run], tmp_path / "out")
    text = shown(made)
    assert "Certificate (a): ddp (2 ranks) trained the same as one process; pipeline:8 cannot run: it has <b>8" in text
    assert "4 steps of 32 samples in fp64; allowed: gradients 1e-09, losses 1e-09." in text
    page = (tmp_path / "out" / "index.html").read_text()
    # Two ranks, and nothing in the precision of the training, in all lines: a note has the ranks.
    assert "ddp same same same 1.2e-13 0.0e+00 holds" in page_text(page)
    assert "pipeline:8 - - - - - cannot run" in page_text(page)
    for cell in ("1.2e-13", "cannot run", "it has &lt;b&gt;8&lt;/b&gt; stages"):
        assert cell in page
    (kept,) = json.loads((tmp_path / "out" / "report.json").read_text())["certificates"]
    assert (kept["verdict"], kept["runs"]) == ("incomplete", ["a"])
    assert [each["status"] for each in kept["strategies"]] == ["holds", "cannot run"]


def test_without_certificates_there_are_no_rows(tmp_path: Path):
    made = reports.make([make_run(tmp_path / "a")], tmp_path / "out")
    assert made.certificates == ()
    assert "ertificate" not in shown(made)
    assert "ertificate" not in (tmp_path / "out" / "index.html").read_text()


def test_a_certificate_is_of_all_runs_that_train_the_same(tmp_path: Path):
    runs = [
        make_run(tmp_path / "one"),
        make_run(tmp_path / "two", kind="ddp", world_size=2),
        make_run(tmp_path / "seed", kind="ddp", world_size=2, seed=7),
    ]
    made = reports.make([*runs, make_certificate(tmp_path / "x.certificate", runs[0])], None)
    # Another seed begins with other weights, of which the certificate says nothing.
    assert made.certificates[0].runs == ("one", "two")


def test_a_certificate_with_a_difference_is_not_one_of_equality(tmp_path: Path):
    run = make_run(tmp_path / "a", kind="ddp", world_size=2)
    make_certificate(
        run,  # in the run folder itself
        run,
        {"status": "differs", "reason": "losses differ", "loss_difference": None},
        verdict="differs",
    )
    made = reports.make([run], tmp_path / "out")
    assert "Certificate (a): ddp differs: losses differ." in shown(made)
    assert "inf - differs" in page_text((tmp_path / "out" / "index.html").read_text())


def test_one_of_another_training_is_left_out_with_a_note(tmp_path: Path):
    run = make_run(tmp_path / "a")
    folder = make_certificate(tmp_path / "a.certificate", run)
    for changes in (
        {"config_fingerprint": "0" * 64},
        {"global_batch_size": 16},
        {"data": {"train": {"fingerprint": 1}}},
    ):
        make_certificate(folder, run, **changes)
        made = reports.make([run], None)
        assert made.certificates == ()
        assert any("is of other data, weights or settings than these runs" in note for note in made.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategies": [{"strategy": "x"}]},
        {"strategies": 3},
        {"strategies": [{"gradient_difference": "<script>", "loss_difference": []}]},
        {"tolerance": {}},
        {"schema_version": 99},
        {"reference": None},
    ],
)
def test_a_damaged_certificate_is_named_and_left_out(tmp_path: Path, changes: dict[str, Any]):
    run = make_run(tmp_path / "a")
    edit_json(make_certificate(tmp_path / "a.certificate", run) / "certificate.json", **changes)
    made = reports.make([run], tmp_path / "out")
    assert made.certificates == ()
    assert any("certificate.json" in note and "left out" in note for note in made.notes)


@pytest.mark.parametrize(
    "finding",
    [
        *({"status": status} for status in ("well", None, 5)),
        *({"gradient_difference": "x"}, {"world_size": "x"}, {"strategy": 5}, {"reason": 5}),
        *({"trained": trained} for trained in (5, {}, {"status": "holds"})),
    ],
)
def test_one_with_a_damaged_finding_certifies_nothing(tmp_path: Path, finding: dict[str, Any]):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", kind="ddp", world_size=2)]
    make_certificate(tmp_path / "a.certificate", runs[0], {}, finding)
    made = reports.make(runs, tmp_path / "out")
    assert made.certificates == ()
    assert any("certificate.json" in note and "left out" in note for note in made.notes)
    assert certified(made) == ["none", None]


@pytest.mark.parametrize(
    ("kind", "status", "told"),
    [("ddp", "holds", ["ddp", True]), ("ddp", "differs", ["ddp", False]), ("zero3", "holds", ["cannot tell", None])],
)
def test_only_the_strategies_of_a_certificate_are_certified(kind: str, status: str, told: list[Any], tmp_path: Path):
    runs = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", kind="ddp", world_size=2, run_changes={"strategy.kind": kind}),
    ]
    make_certificate(tmp_path / "a.certificate", runs[0], {"status": status, "reason": None})
    assert certified(reports.make(runs, None)) == told


def certified(made: Report) -> list[Any]:
    (one,) = (one for one in trust_statements(made.systems, made.certificates) if one.label == "Certificate")
    return [one.text.partition(":")[0].partition(" trained")[0], one.is_good]


def test_a_torn_one_is_named(tmp_path: Path):
    run = make_run(tmp_path / "a")
    (make_certificate(tmp_path / "a.certificate", run) / "certificate.json").write_text("{")
    assert any("certificate.json" in note for note in reports.make([run], None).notes)


def test_one_that_is_given_and_lies_beside_a_run_is_shown_once(tmp_path: Path):
    run = make_run(tmp_path / "a")
    folder = make_certificate(tmp_path / "a.certificate", run)
    assert len(reports.make([run, folder], None).certificates) == 1
