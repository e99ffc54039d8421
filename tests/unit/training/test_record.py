"""The sessions and machines in run.json, and the records of a resumed run."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paratune import hardware, records
from paratune.config.batch_size import ResolvedBatch
from paratune.config.load import load_config
from paratune.engine.loop import Progress
from paratune.hardware.environment import RECORD_VARIABLE
from paratune.models.packed import BatchLayout
from paratune.records import EventLog, read_events, read_json
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.single import SingleStrategy
from paratune.training import record
from paratune.training.record import (
    add_session,
    gather_nodes,
    model_facts,
    num_requeued,
    num_restarts,
    run_record,
    session_facts,
    session_record,
)
from paratune.training.resume import note_resume

FILE = """
task: {kind: classification, labels: [a, b]}
data:
  train: t.csv
  columns: {text: t, label: l}
model: {name: m}
train: {epochs: 1}
batch: {global: 4}
"""


def with_ranks(monkeypatch: pytest.MonkeyPatch, *other_texts: str) -> None:
    """Let `gather_texts` return the texts of other ranks after that of this one."""
    monkeypatch.setattr(record, "gather_texts", lambda _, text: [text, *other_texts])


def node(name: str) -> str:
    return json.dumps({"hostname": name, "cpu_model": "Prozessor ä"})


def test_each_machine_is_described_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(hardware, "describe_node", lambda run, data: {"hostname": "a", "folders": f"{run} {data}"})
    data, own = tmp_path / "cache", {"hostname": "a", "folders": f"{tmp_path} {tmp_path / 'cache'}"}
    # Rank 1 is a second process of a; rank 2 is the first of b; rank 3 a process of b without a local rank.
    with_ranks(monkeypatch, "", node("b"), node("b"))
    nodes = gather_nodes(tmp_path, data, local_rank=0)
    assert nodes == [own, {"hostname": "b", "cpu_model": "Prozessor ä"}]
    with_ranks(monkeypatch)
    assert gather_nodes(tmp_path, data, local_rank=0) == [own]


def test_only_the_first_process_of_a_machine_describes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(hardware, "describe_node", lambda *_: pytest.fail("looked"))
    with_ranks(monkeypatch, node("b"))
    assert gather_nodes(tmp_path, tmp_path, local_rank=1) == [json.loads(node("b"))]


def test_the_size_of_a_model_counts_buffers_and_tied_weights_once():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    model.hf = None
    # Weights of 9 + 3 + 3 + 3 + 3 numbers and buffers of 3 + 3, each of 8 bytes; one counter of 8 bytes.
    assert model_facts(model, "m")["size_bytes"] == 8 * (21 + 6) + 8


def prepared(folder: Path, *, settings: list[str], world_size: int, strategy: Any) -> Any:
    (folder / "c.yaml").write_text(FILE)
    loaded = load_config(folder / "c.yaml", settings)
    return SimpleNamespace(
        loaded=loaded,
        config=loaded.config,
        place=SimpleNamespace(world_size=world_size),
        device=torch.device("cpu"),
        traits=strategy.traits,
        recipe=SimpleNamespace(task=loaded.config.task),
        splits={},
        teachers=[],
    )


def test_a_session_is_added_and_the_top_level_does_not_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(record, "split_records", lambda splits: {})
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv(RECORD_VARIABLE, "-GLOO_SOCKET_IFNAME")
    alone = prepared(tmp_path, settings=[], world_size=1, strategy=SingleStrategy)
    sizes = ResolvedBatch(global_batch_size=4, micro_batch_size=4, grad_accum_steps=1)
    first = session_record(alone, batch=sizes, batch_layout=BatchLayout("packed"), nodes=[{"hostname": "a"}], step=0)
    records.write_json(
        tmp_path / records.RUN_FILE, run_record(alone, tmp_path, session=first, model={}, plan={"num_steps": 9})
    )
    two = prepared(tmp_path, settings=["strategy=ddp"], world_size=2, strategy=DDPStrategy)
    sizes = replace(sizes, micro_batch_size=2)
    add_session(
        tmp_path,
        session_record(two, batch=sizes, batch_layout=BatchLayout("packed"), nodes=[{"hostname": "b"}], step=5),
    )

    recorded = read_json(tmp_path / records.RUN_FILE)
    assert (recorded["world_size"], recorded["strategy"]["kind"], recorded["plan"]) == (1, "single", {"num_steps": 9})
    assert recorded["created"] == recorded["sessions"][0]["began"]
    assert "step" not in recorded
    assert (recorded["kind"], recorded["environment"]["NCCL_DEBUG"]) == ("full", "WARN")
    assert recorded["sessions"][1]["environment_unset"] == ["GLOO_SOCKET_IFNAME"]
    facts = [
        (
            session["step"],
            session["world_size"],
            session["strategy"]["kind"],
            session["batch"]["micro_batch_size"],
            session["hardware"],
        )
        for session in recorded["sessions"]
    ]
    assert facts == [(0, 1, "single", 4, [{"hostname": "a"}]), (5, 2, "ddp", 2, [{"hostname": "b"}])]
    assert recorded["sessions"][1]["config"]["strategy"]["kind"] == "ddp"
    assert recorded["sessions"][1]["config_origin"]["strategy.kind"] == "--set"
    same = {
        "command",
        "directory",
        "config",
        "config_file",
        "config_origin",
        "versions",
        "code",
        "hardware",
        "world_size",
        "device",
        "strategy",
    }
    assert recorded["directory"] == str(Path.cwd())
    assert {key: recorded[key] for key in same} == {key: recorded["sessions"][0][key] for key in same}


def test_a_session_has_the_batch_script_of_its_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "#!/bin/bash of job $3"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    alone = prepared(tmp_path, settings=[], world_size=1, strategy=SingleStrategy)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert session_facts(alone, nodes=[], step=0)["job"] is None
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    job = session_facts(alone, nodes=[], step=0)["job"]
    assert (job["id"], job["batch_script"]) == ("77", "#!/bin/bash of job 77")


def test_a_resume_records_ignored_checkpoints_and_the_time_of_the_checkpoint(tmp_path: Path):
    for step in (4, 8, 12, 16):
        (tmp_path / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    for rank in range(2):
        log = EventLog(tmp_path, rank)
        for step in (4, 8, 12, 16):
            log.add("checkpoint", step=step, time_s=step / 8)
        log.close()
    progress = Progress(step=8, seconds={"checkpoint": 0.5, "total": 60.0})
    note_resume(tmp_path, progress, world_size=1)
    # The half second is what earlier checkpoints cost; that of step 8 took another.
    assert (progress.seconds["checkpoint"], progress.seconds["total"]) == (1.5, 61.0)
    for rank in range(2):
        *_, event = read_events(tmp_path, rank)
        assert (event["event"], event["step"], event["world_size"]) == ("resume", 8, 1)
        assert (event["checkpoint"], event["passed_over"]) == ("step_000008", ["step_000012", "step_000016"])


def test_requeues_are_counted_by_job(tmp_path: Path):
    def sessions(*jobs: dict[str, Any] | None) -> int | None:
        records.write_json(tmp_path / records.RUN_FILE, {"sessions": [{"job": job} for job in jobs]})
        return num_requeued(tmp_path)

    assert sessions(None, None) is None
    # Twice of the first job, of which one left no session, and once of the second.
    first = [{"id": "1", "num_requeued": 0}, {"id": "1", "num_requeued": 2}]
    assert sessions(None, *first, {"id": "2", "num_requeued": 0}, {"id": "2", "num_requeued": 1}) == 3


def test_restarts_are_counted_by_rendezvous_and_start_of_the_job(tmp_path: Path):
    def sessions(*starts: tuple[str, int, int | None] | None) -> int | None:
        facts = [
            {
                "torchrun": start and {"run_id": start[0], "num_restarts": start[1], "max_restarts": 3},
                "job": start and start[2] is not None and {"id": "1", "num_requeued": start[2]},
            }
            for start in starts
        ]
        records.write_json(tmp_path / records.RUN_FILE, {"sessions": facts})
        return num_restarts(tmp_path)

    assert sessions(None, None) is None
    assert sessions(("a", 0, None)) == 0
    # Twice of the first, of which one left no session; then once under another name.
    assert sessions(None, ("a", 0, None), ("a", 2, None), ("b", 0, None), ("b", 1, None)) == 3
    # The same --rdzv-id in a job that Slurm queued again, where torchrun counts from 0.
    assert sessions(("a", 1, 0), ("a", 0, 1), ("a", 2, 1)) == 3
