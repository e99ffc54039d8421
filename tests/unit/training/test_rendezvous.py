"""The values that processes compare before they train; threads replace the processes."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patience import PATIENCE_S
from raised import check_code
from torch import Tensor

from paratune.errors import LaunchError
from paratune.processes.place import Place
from paratune.strategies.protocol import gather_texts
from paratune.training import rendezvous


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Calls a function with each rank's argument, all at once; returns what came back or was raised."""

    def call(function: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
        barrier, ranks = threading.Barrier(len(arguments), timeout=PATIENCE_S), threading.local()
        slots: list[Any] = [None] * len(arguments)
        outcomes: list[Any] = [None] * len(arguments)

        def concat(value: Tensor, op: str) -> Tensor:
            assert op == "concat"
            slots[ranks.own] = value
            barrier.wait()
            joined = torch.cat(slots)
            barrier.wait()
            return joined

        def run(rank: int) -> None:
            ranks.own = rank
            try:
                outcomes[rank] = function(arguments[rank])
            except Exception as error:
                outcomes[rank] = error

        monkeypatch.setattr(rendezvous, "reduce_over_ranks", concat)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(arguments))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

    return call


def test_ranks_that_agree_start(everywhere: Callable[..., list[Any]]):
    assert everywhere(rendezvous.check_same, [{"a": 1, "b": [2.5]}, {"b": [2.5], "a": 1}]) == [None, None]


def test_all_ranks_report_the_keys_that_differ(everywhere: Callable[..., list[Any]]):
    common = {"run.seed": 42, "model.name": "m"}
    outcomes = everywhere(
        rendezvous.check_same,
        [
            {**common, "train.learning_rate": 1e-3, "torch": "2.13.0"},
            {**common, "train.learning_rate": 3e-3, "torch": "2.13.0"},
            {**common, "train.learning_rate": 1e-3, "torch": "2.12.0", "strategy.shard_size": 2},
        ],
    )
    assert {type(outcome) for outcome in outcomes} == {LaunchError}
    (text,) = {str(outcome) for outcome in outcomes}
    assert all(outcome.code == "launch.ranks_differ" for outcome in outcomes)
    assert text.splitlines()[1:4] == [
        "  torch: 2.13.0 on rank 0, 1; 2.12.0 on rank 2",
        "  train.learning_rate: 0.001 on rank 0, 2; 0.003 on rank 1",
        "  strategy.shard_size: null on rank 0, 1; 2 on rank 2",
    ]


def test_texts_of_any_length_are_gathered_in_rank_order(everywhere: Callable[..., list[Any]]):
    texts = ["first", "", "\u00e9"]
    assert everywhere(lambda text: gather_texts(rendezvous.reduce_over_ranks, text), texts) == [texts] * 3


def test_code_is_compared_by_content_and_name(tmp_path: Path):
    for name, text in {"a.py": "x = 1", "b.py": "x = 2", "again.py": "x = 1"}.items():
        (tmp_path / name).write_text(text)
    hashes = {rendezvous.file_hash([tmp_path / name]) for name in ("a.py", "b.py", "again.py")}
    assert len(hashes) == 3
    assert rendezvous.file_hash([tmp_path / "a.py"]) in hashes


@pytest.mark.parametrize(
    ("text", "is_loss"),
    [
        # Messages of gloo and NCCL (torch 2.13 and 2.11).
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:9", True),
        ("NCCL error: remote process exited or there was a network error", True),
        ("CUDA error: device-side assert triggered", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_the_loss_of_a_rank_is_recognised(text: str, is_loss: bool):
    assert rendezvous.is_peer_lost(RuntimeError(text)) == is_loss


def test_the_first_sentence_of_a_collectives_error_is_shown(monkeypatch: pytest.MonkeyPatch):
    for name in ("open_process_group", "check_same", "facts", "close_process_group"):
        monkeypatch.setattr(rendezvous, name, lambda *_: None)
    stop: Any = SimpleNamespace(ends_at_once=lambda doing: nullcontext())
    prepared: Any = SimpleNamespace(
        traits=SimpleNamespace(max_world_size=None), place=Place(0, 0, 2), device=torch.device("cpu")
    )
    # As gloo writes it in PyTorch 2.13.
    text = (
        "[/x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:58064: Connection reset by peer. This is typically "
        "caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker. GLHF!"
    )
    with pytest.raises(LaunchError) as caught, rendezvous.process_group(prepared, stop):
        raise RuntimeError(text)
    check_code(caught.value, "launch.rank_lost", rank=0, world_size=2)
    assert str(caught.value).endswith(
        "([/x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:58064: Connection reset by peer)"
    )
