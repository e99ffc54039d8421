"""The process group where there is one process, or none; two of them are in tests/two_processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from exact import RowModel, no_clock, row_batch
from raised import raises_code
from tiny import tiny_model

from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES
from paratune.processes.launcher import Rendezvous
from paratune.processes.place import RENDEZVOUS_VARIABLE, Place
from paratune.strategies import process_group
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.process_group import close_process_group, open_process_group, reduce_over_ranks

CPU = torch.device("cpu")


@pytest.fixture
def alone() -> Iterator[None]:
    open_process_group(Place(0, 0, 1), CPU)
    yield
    close_process_group()


def test_without_a_process_group_values_do_not_change():
    value = torch.ones(3)
    assert reduce_over_ranks(value, "sum") is value
    close_process_group()


@pytest.mark.usefixtures("alone")
def test_a_process_group_of_one_needs_no_address_and_changes_no_value():
    assert dist.get_world_size() == 1
    for op in ("sum", "max", "min", "concat"):
        assert reduce_over_ranks(torch.tensor([1, 2]), op).tolist() == [1, 2]


@pytest.mark.usefixtures("alone")
def test_ddp_with_one_process_trains_like_the_plain_model():
    batches = [row_batch(range(3), 5), row_batch(range(3, 5), 5)]
    plain = RowModel().double()
    sum(plain.loss_sum(plain(batch), batch) / 5 for batch in batches).backward()
    model = RowModel().double()
    strategy = DDPStrategy(device=CPU, precision=POLICIES["fp64"], rank=0, world_size=1)
    strategy.prepare(model, [], lambda named: torch.optim.SGD([value for _, value in named], lr=0.1))
    strategy.forward_backward(batches, no_clock)
    for (name, parameter), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-12, atol=1e-12, msg=name)
    strategy.optimizer_step(1.0)
    assert strategy.predict(batches[0]).shape == (3, 3)
    strategy.close()


@pytest.mark.usefixtures("alone")
def test_gradients_are_reduced_once_per_step_with_the_last_micro_batch():
    model = RowModel()
    strategy = DDPStrategy(device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1)
    strategy.prepare(model, [], lambda named: torch.optim.SGD([value for _, value in named], lr=0.1))
    travels = []
    model.register_forward_hook(lambda *_: travels.append(strategy._ddp.require_backward_grad_sync))
    for _ in range(2):
        strategy.forward_backward([row_batch(range(2), 6)] * 3, no_clock)
        strategy.optimizer_step(None)
    assert travels == [False, False, True] * 2


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("changes", [False, True])
def test_only_buffers_that_may_change_are_broadcast_in_each_step(changes: bool):
    model = TaskModel(tiny_model(), "classification")
    assert len(list(model.buffers())) > 0
    if changes:
        model.register_buffer("running_mean", torch.zeros(3))
    strategy = DDPStrategy(device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1)
    strategy.prepare(model, [], lambda named: torch.optim.SGD([value for _, value in named], lr=0.1))
    assert bool(strategy._ddp.will_sync_module_buffers()) is changes


def test_processes_that_cannot_connect_are_an_error(monkeypatch: pytest.MonkeyPatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", RENDEZVOUS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    with raises_code("launch.rank_not_found", "rank 1", "2", "MASTER_ADDR"):
        open_process_group(Place(1, 1, 2), CPU)


def test_the_rendezvous_of_the_launcher_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = {}
    path = str(tmp_path / "a folder, 100% é")
    monkeypatch.setenv(RENDEZVOUS_VARIABLE, path)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.update(options, backend=backend))
    open_process_group(Place(1, 1, 2), CPU)
    assert (asked["backend"], asked["store"].path) == ("gloo", path)
    assert asked["store"].timeout == process_group.TIMEOUT
    assert (asked["rank"], asked["world_size"], asked["timeout"]) == (1, 2, process_group.TIMEOUT)
    open_process_group(Place(1, 1, 2), torch.device("cuda"))
    assert (asked["backend"], asked["store"].path) == ("cpu:gloo,cuda:nccl", path)


def test_the_store_listens_only_on_the_address_in_the_environment(monkeypatch: pytest.MonkeyPatch):
    asked, opened = {}, []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.update(options))
    monkeypatch.setattr(process_group, "open_store", lambda meeting, rank, _: opened.append((meeting, rank)) or "store")
    for name in (RENDEZVOUS_VARIABLE, "SLURM_STEP_ID", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "2")
    open_process_group(Place(1, 1, 2), CPU)
    assert opened == [(Rendezvous("node1", 29500, "variables", is_one_machine=False), 1)]
    assert asked["store"] == "store"
    assert "init_method" not in asked


@pytest.mark.parametrize(("device", "bound"), [("cuda:1", torch.device("cuda", 1)), ("cpu", None)])
def test_nccl_connects_when_the_group_is_opened(
    monkeypatch: pytest.MonkeyPatch, device: str, bound: torch.device | None
):
    found = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **arguments: found.update(arguments))
    open_process_group(Place(0, 0, 1), torch.device(device))
    assert found.get("device_id") == bound
