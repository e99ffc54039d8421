"""Every sample once, in its order, whatever came first."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from looping import CPU, single
from tiny import tiny_model
from tiny_data import tiny_collator
from torch import Tensor
from waits import watched_for_waits

from paratune.batch import Batch
from paratune.data.loader import eval_batches
from paratune.engine import evaluate as module
from paratune.engine.evaluate import Evaluation, Interrupted, evaluate
from paratune.models.task_model import TaskModel
from paratune.strategies.protocol import Layout
from paratune.strategies.single import SingleStrategy


def never() -> bool:
    return False


def prepared(num_labels: int, kind: str) -> tuple[TaskModel, SingleStrategy]:
    model = TaskModel(tiny_model(num_labels=num_labels), kind)
    strategy = single()
    strategy.prepare(model, [], lambda named: torch.optim.SGD([value for _, value in named], lr=0.1))
    return model, strategy


@pytest.mark.parametrize("batch_size", [1, 4, 23, 100])
@pytest.mark.parametrize(("num_classes", "kind"), [(3, "classification"), (0, "regression")])
def test_outputs_and_loss_equal_those_of_single_samples(batch_size: int, num_classes: int, kind: str):
    collator = tiny_collator(23, num_classes=num_classes)
    model, strategy = prepared(max(1, num_classes), kind)
    done: list[int] = []
    result = evaluate(
        strategy,
        model,
        eval_batches(collator, batch_size=batch_size),
        device=CPU,
        should_stop=never,
        on_batch=done.append,
    )
    alone = [strategy.predict(collator(np.asarray([row]), 1)) for row in range(23)]
    np.testing.assert_allclose(result.outputs, torch.cat(alone).numpy(), rtol=1e-5, atol=1e-6)
    assert result.outputs.dtype == np.float32
    losses = [float(model.loss_sum(out, collator(np.asarray([row]), 1))) for row, out in enumerate(alone)]
    assert result.loss == pytest.approx(sum(losses) / 23, rel=1e-5)
    assert done == list(range(1, len(done) + 1))


@pytest.mark.parametrize(
    ("flush_batches", "flush_bytes", "num_waits"),
    [(100, 2**20, 2), (1, 2**20, 2 * 8), (100, 100, 2 * 3)],
    ids=["at the end", "each batch", "bytes"],
)
def test_outputs_of_many_batches_are_copied_to_the_host_together(
    monkeypatch: pytest.MonkeyPatch, flush_batches: int, flush_bytes: int, num_waits: int
):
    collator = tiny_collator(23, num_classes=3)
    model, strategy = prepared(3, "classification")
    # 8 batches, of 36 bytes of outputs: three of them are over 100.
    batches = [collator(np.arange(start, min(start + 3, 23)), 23) for start in range(0, 23, 3)]
    # As it was computed before: each batch by itself.
    parts = [strategy.predict(batch) for batch in batches]
    losses = [
        model.loss_sum(part, batch).double() / batch.loss_denominator
        for part, batch in zip(parts, batches, strict=True)
    ]
    monkeypatch.setattr(module, "FLUSH_BATCHES", flush_batches)
    monkeypatch.setattr(module, "FLUSH_BYTES", flush_bytes)
    monkeypatch.setattr(module, "_gather", lambda *arguments: arguments)
    with watched_for_waits() as seen:
        _, _, outputs, loss = evaluate(strategy, model, batches, device=torch.device("cpu", 0), should_stop=never)
    assert torch.equal(outputs, torch.cat(parts))
    assert torch.equal(loss, sum(losses[1:], start=losses[0]))
    assert [call for call in seen.found if "cpu" in call] == ["to('cpu')", "cpu()"] * (num_waits // 2)


def test_a_split_without_labels_has_outputs_and_no_loss():
    collator = tiny_collator(5)
    bare = type(collator)(collator.store, None, 0)
    model, strategy = prepared(2, "classification")
    result = evaluate(strategy, model, eval_batches(bare, batch_size=2), device=CPU, should_stop=never)
    assert result.loss is None
    assert result.outputs.shape == (5, 2)


def test_a_signal_stops_an_evaluation_between_batches():
    collator = tiny_collator(9)
    model, strategy = prepared(2, "classification")
    asked = iter([False, False, True])
    done: list[int] = []
    with pytest.raises(Interrupted):
        evaluate(
            strategy,
            model,
            eval_batches(collator, batch_size=2),
            device=CPU,
            should_stop=lambda: next(asked),
            on_batch=done.append,
        )
    assert done == [1, 2]


class Rank:
    """One of two ranks, each in a thread; the output of a row is its number and the negative of it."""

    def __init__(self, rank: int, data_world_size: int, meeting: threading.Barrier, sent: dict[int, Tensor]) -> None:
        self.layout = Layout(rank, 2, rank % data_world_size, data_world_size)
        self._meeting, self._sent = meeting, sent

    def predict(self, batch: Batch) -> Tensor:
        return torch.stack([batch.index.float(), -batch.index.float()], 1)

    def loss_sum(self, outputs: Tensor, batch: Batch, kept: Tensor | None = None) -> Tensor:
        return (batch.index * batch.row_weight).sum()

    def row_outputs(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs

    def reduce(self, value: Tensor, op: str) -> Tensor:
        self._sent[self.layout.rank] = value
        self._meeting.wait(10)
        both = [self._sent[0], self._sent[1]]
        self._meeting.wait(10)
        return both[0] + both[1] if op == "sum" else torch.cat(both)


@pytest.mark.parametrize("data_world_size", [2, 1], ids=["data parallel", "two ranks of one replica"])
def test_the_shares_of_all_ranks_are_combined_by_row(data_world_size: int):
    collator = tiny_collator(5)
    meeting, sent = threading.Barrier(2), {}

    def run(rank: int) -> Evaluation:
        strategy = Rank(rank, data_world_size, meeting, sent)
        batches = eval_batches(
            collator, batch_size=2, data_rank=strategy.layout.data_rank, data_world_size=data_world_size
        )
        return evaluate(strategy, strategy, batches, device=CPU, should_stop=never)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(2)))
    for result in results:
        assert result.outputs.tolist() == [[row, -row] for row in range(5)]
        # The loss of row r is r here; ranks of one replica see the same rows, which count once.
        assert result.loss == pytest.approx((0 + 1 + 2 + 3 + 4) / 5)
