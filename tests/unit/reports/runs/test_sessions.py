"""Runs that were gone on with in another way: the report shows what they ran with, from session to session."""

import json
import re

import pytest
from make_run import PHASE_TEXTS, make_run

from paratune import reports
from paratune.reports.page.document import document_html
from paratune.reports.run import build_report, run_document
from paratune.reports.runs.machine import software_facts
from paratune.reports.runs.read import read_runs
from paratune.reports.runs.sameness import all_differences
from paratune.reports.systems.tables import hardware_facts


def sessions(folder, *changes):
    """Give the run at `folder` sessions: those of its run.json, each with some values changed."""
    path = folder / "run.json"
    record = json.loads(path.read_text())
    keys = ("command", "config", "config_origin", "versions", "code", "hardware", "world_size", "strategy", "batch")
    first = {key: record[key] for key in keys} | {"began": record["created"], "step": 0, "device": "cpu"}
    record["sessions"] = [json.loads(json.dumps(first)) | change for change in ({}, *changes)]
    path.write_text(json.dumps(record))
    return folder


def ddp(record_of, step=100, **more):
    config = json.loads((record_of / "run.json").read_text())["config"]
    return {
        "step": step,
        "world_size": 2,
        "device": "cuda",
        "strategy": {"kind": "ddp", "traits": {"kind": "ddp", "phases": PHASE_TEXTS["ddp"]}, "options": {}},
        "batch": {"global_batch_size": 32, "micro_batch_size": 8, "grad_accum_steps": 2},
        "config": config | {"strategy": {"kind": "ddp", "bucket_cap_mb": 25}, "precision": "bf16"},
        "command": ["paratune", "train", "a.yaml", "--resume"],
        **more,
    }


@pytest.fixture
def moved(tmp_path):
    folder = make_run(tmp_path / "a")
    return sessions(folder, ddp(folder))


def texts(made):
    return {row.measure.key: [cell.text for cell in row.cells] for row in made.rows}


def test_changed_settings_are_shown_in_the_order_of_sessions(tmp_path, moved):
    made = build_report(read_runs([moved, make_run(tmp_path / "b")]))
    shown = texts(made)
    assert {
        "strategy": ["single → ddp", "single"],
        "world_size": ["1 → 2", "1"],
        "device": ["cpu → cuda", "cpu"],
        "precision": ["fp32 → bf16", "fp32"],
        "micro_batch_size": ["32 → 8", "32"],
        "grad_accum_steps": ["1 → 2", "1"],
    }.items() <= shown.items()
    values = [run["values"]["world_size"] for run in made.as_dict()["runs"]]
    assert values == ["1 → 2", 1], "a number that was not true of the whole run is none"
    (note,) = (note for note in made.notes if "resumed with" in note)
    assert note == (
        "a: resumed with other settings (after step 100): strategy single → ddp, world size 1 → 2, device cpu → cuda, "
        "precision fp32 → bf16, micro-batch 32 → 8. Times, rates and phases are those of all its sessions together, "
        "memory is that of the last."
    )
    told = made.as_dict()["runs"][0]["sessions"]
    assert [(one["step"], one["strategy"], one["world_size"]) for one in told] == [(0, "single", 1), (100, "ddp", 2)]


def test_settings_that_changed_differ_from_those_that_did_not(tmp_path, moved):
    runs = read_runs([moved, make_run(tmp_path / "b")]).runs
    assert {one.key: dict(one.values) for one in all_differences(runs)} == {
        "precision": {"a": "fp32 → bf16", "b": "fp32"},
        "strategy.bucket_cap_mb": {"a": "no such setting → 25"},
        "strategy.kind": {"a": "single → ddp", "b": "single"},
    }


def test_every_command_is_shown(moved):
    made = reports.make([moved], None)
    text = document_html(run_document(made))
    commands = re.findall(r"^paratune train a.yaml(?! --set).*?$", text, re.MULTILINE)
    assert [command.partition("<")[0] for command in commands] == [
        "paratune train a.yaml",
        "paratune train a.yaml --resume",
    ]


def test_a_run_that_moved_names_both_machines(tmp_path):
    other = {"hardware": [{"hostname": "node-b", "gpus": []}], "versions": {"torch": "2.14.0"}, "step": 50}
    run = read_runs([sessions(make_run(tmp_path / "a"), other)]).runs[0]
    assert hardware_facts(run.sessions)["Hosts"] == "node-a; node-b"
    assert software_facts(run)["torch"] == "2.13.0 → 2.14.0"


def test_a_session_that_saved_nothing_is_not_shown(tmp_path):
    folder = make_run(tmp_path / "a")
    # Begun on two processes at step 100, killed, and gone on with on one from there.
    run = read_runs([sessions(folder, ddp(folder), {"step": 100})]).runs[0]
    assert [one.run.world_size for one in run.sessions] == [1, 1]
    assert texts(build_report(read_runs([folder])))["strategy"] == ["single"]


@pytest.mark.parametrize("damaged", [None, [], [{"step": "0"}, {"step": 3}]])
def test_a_record_without_sessions_is_one_session(tmp_path, damaged):
    run = read_runs([make_run(tmp_path / "a", run_changes={"sessions": damaged})]).runs[0]
    assert run.sessions == (run,)


def test_a_run_that_changed_on_the_way_is_no_seed_of_one_that_did_not(tmp_path):
    folder = make_run(tmp_path / "a", seed=1)
    found = read_runs([sessions(folder, {"step": 100, "world_size": 2}), make_run(tmp_path / "b", seed=2)])
    assert [len(member.runs) for member in build_report(found).systems.measured] == [1, 1]


def test_micro_batches_after_an_out_of_memory_error_are_shown(tmp_path):
    folder = make_run(tmp_path / "a")
    path = folder / "run.json"
    record = json.loads(path.read_text())
    batch = record["batch"] | {"changes": [{"step": 7, "micro_batch_size": 16, "grad_accum_steps": 2}]}
    path.write_text(json.dumps(record | {"batch": batch}))
    assert texts(build_report(read_runs([folder])))["micro_batch_size"] == ["32 → 16"]
