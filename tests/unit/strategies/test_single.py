import torch
from exact import RowModel, no_clock, row_batch
from torch import nn

from paratune.precision import POLICIES
from paratune.strategies.single import SingleStrategy


def prepared(model: nn.Module, precision: str = "fp32", learning_rate: float = 0.1) -> SingleStrategy:
    strategy = SingleStrategy(device=torch.device("cpu"), precision=POLICIES[precision], rank=0, world_size=1)
    strategy.prepare(model, [], lambda named: torch.optim.SGD([value for _, value in named], lr=learning_rate))
    return strategy


def test_dropout_is_on_from_the_first_step_also_when_the_model_was_loaded_in_eval_mode():
    inner = RowModel(dropout=0.5).eval()
    model = nn.Sequential(inner)  # as a wrapper does, it says of itself that it trains
    model.loss_sum = inner.loss_sum
    assert model.training
    strategy = prepared(model)
    losses = set()
    for seed in range(4):
        torch.manual_seed(seed)
        losses.add(float(strategy.forward_backward([row_batch(range(8), 8)], no_clock)))
    assert len(losses) == 4


def test_dropout_is_off_in_predict_and_on_again_in_the_next_step():
    strategy = prepared(RowModel(dropout=0.5))
    batch = row_batch(range(8), 8)
    assert torch.equal(strategy.predict(batch), strategy.predict(batch))
    torch.manual_seed(0)
    first = strategy.forward_backward([batch], no_clock)
    torch.manual_seed(1)
    assert strategy.forward_backward([batch], no_clock) != first


def test_one_process_has_all_the_data():
    strategy = prepared(RowModel())
    assert (strategy.layout.data_rank, strategy.layout.data_world_size) == (0, 1)
    assert (strategy.layout.rank, strategy.layout.world_size) == (0, 1)


def test_predict_leaves_no_gradients_and_close_releases_the_model():
    strategy = prepared(RowModel())
    assert not strategy.predict(row_batch(range(4), 4)).requires_grad
    strategy.close()
    assert not hasattr(strategy, "_model")
