"""What run.json says of the sessions and machines of a run, and what is noted when it is gone on with."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from looping import single

from paratune import hardware, records
from paratune.config.batch_size import ResolvedBatch
from paratune.config.load import load_config
from paratune.engine.loop import Progress
from paratune.hardware.environment import RECORD_VARIABLE
from paratune.models.batch_layout import BatchLayout
from paratune.records import EventLog, read_events, read_json
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.single import SingleStrategy
from paratune.train import record
from paratune.train.record import (
    add_session,
    gather_nodes,
    model_facts,
    num_requeued,
    num_restarts,
    run_record,
    session_record,
)
from paratune.train.resume import note_resume

FILE = """
task: {kind: classification, labels: [a, b]}
data:
  train: t.csv
  columns: {text: t, label: l}
model: {name: m}
train: {epochs: 1}
batch: {global: 4}
"""


class Gathered:
    """A strategy whose other ranks have sent their part already."""

    layout = replace(single().layout, world_size=3)

    def __init__(self, *others: bytes) -> None:
        self._sent = (
            [torch.tensor([len(text)]) for text in others],
            [torch.tensor(list(text), dtype=torch.uint8) for text in others],
        )

    def reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        assert op == "concat"
        lengths, texts = self._sent
        return torch.cat([value, *(texts if value.dtype == torch.uint8 else lengths)])


def node(name: str) -> bytes:
    return json.dumps({"hostname": name, "cpu_model": "Prozessor ä"}, ensure_ascii=False).encode()


def test_each_machine_is_described_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(hardware, "describe_node", lambda run, data: {"hostname": "a", "folders": f"{run} {data}"})
    data, own = tmp_path / "cache", {"hostname": "a", "folders": f"{tmp_path} {tmp_path / 'cache'}"}
    # Rank 1 is a second process of a; rank 2 is the first of b; rank 3 a process of b that was not told its number.
    nodes = gather_nodes(Gathered(b"", node("b"), node("b")), tmp_path, data, local_rank=0)
    assert nodes == [own, {"hostname": "b", "cpu_model": "Prozessor ä"}]
    assert gather_nodes(single(), tmp_path, data, local_rank=0) == [own]


def test_a_process_that_is_not_the_first_of_its_machine_does_not_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(hardware, "describe_node", lambda *_: pytest.fail("looked"))
    assert gather_nodes(Gathered(node("b")), tmp_path, tmp_path, local_rank=1) == [json.loads(node("b"))]


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
        splits={},
    )


def test_a_session_is_added_and_the_top_stays_that_of_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
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

    found = read_json(tmp_path / records.RUN_FILE)
    assert (found["world_size"], found["strategy"]["kind"], found["plan"]) == (1, "single", {"num_steps": 9})
    assert found["created"] == found["sessions"][0]["began"]
    assert "step" not in found
    assert (found["kind"], found["environment"]["NCCL_DEBUG"]) == ("full", "WARN")
    assert found["sessions"][1]["environment_unset"] == ["GLOO_SOCKET_IFNAME"]
    told = [
        (one["step"], one["world_size"], one["strategy"]["kind"], one["batch"]["micro_batch_size"], one["hardware"])
        for one in found["sessions"]
    ]
    assert told == [(0, 1, "single", 4, [{"hostname": "a"}]), (5, 2, "ddp", 2, [{"hostname": "b"}])]
    assert found["sessions"][1]["config"]["strategy"]["kind"] == "ddp"
    assert found["sessions"][1]["config_origin"]["strategy.kind"] == "--set"
    same = {
        "command",
        "directory",
        "config",
        "config_origin",
        "versions",
        "code",
        "hardware",
        "world_size",
        "device",
        "strategy",
    }
    assert found["directory"] == str(Path.cwd())
    assert {key: found[key] for key in same} == {key: found["sessions"][0][key] for key in same}


def test_going_on_is_noted_with_what_was_passed_over_and_what_the_checkpoint_cost(tmp_path: Path):
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
        told = [
            {
                "torchrun": each and {"run_id": each[0], "num_restarts": each[1], "max_restarts": 3},
                "job": each and each[2] is not None and {"id": "1", "num_requeued": each[2]},
            }
            for each in starts
        ]
        records.write_json(tmp_path / records.RUN_FILE, {"sessions": told})
        return num_restarts(tmp_path)

    assert sessions(None, None) is None
    assert sessions(("a", 0, None)) == 0
    # Twice of the first, of which one left no session; then once under another name.
    assert sessions(None, ("a", 0, None), ("a", 2, None), ("b", 0, None), ("b", 1, None)) == 3
    # The same --rdzv-id in a job that Slurm queued again, where torchrun counts from 0.
    assert sessions(("a", 1, 0), ("a", 0, 1), ("a", 2, 1)) == 3
