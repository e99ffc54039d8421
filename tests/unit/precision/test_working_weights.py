"""Training with working copies against autocast itself, which casts in each pass: the same bits of everything."""

from collections.abc import Callable

import pytest
import torch
from architectures import CONFIGS, PAIRS, model_of, rows
from exact import RowModel, no_clock, row_batch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.models.activation_checkpointing import checkpoint_blocks
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel, find_blocks, freeze_encoder
from paratune.precision import POLICIES, working_weights
from paratune.precision.working_linear import LoweredOutput, SharedProduct, WorkingLinear
from paratune.precision.working_weights import WorkingWeights
from paratune.processes.place import Place
from paratune.strategies import ddp, single
from paratune.strategies.process_group import close_process_group, open_process_group

CPU = torch.device("cpu")
LENGTHS = [5, 1, 20, 12]
Change = Callable[[TaskModel], None]


def nothing(model: TaskModel) -> None:
    """Leave the model as it is."""


def checkpointed(model: TaskModel) -> None:
    checkpoint_blocks(find_blocks(model), 1)


def trained(
    model: nn.Module, batch: Batch, *, kind: str = "single", precision: str = "bf16", num_steps: int = 2
) -> list[Tensor]:
    """Return losses, gradients, norms, outputs and weights of a few steps of two micro-batches."""
    options = {"device": CPU, "precision": POLICIES[precision], "rank": 0, "world_size": 1}
    strategy = single.SingleStrategy(**options) if kind == "single" else ddp.DDPStrategy(**options)
    factory = OptimizerFactory(Train(learning_rate=0.01), 10)
    strategy.prepare(model, find_blocks(model), factory)
    seen = []
    for step in range(num_steps):
        torch.manual_seed(step)
        factory.set_learning_rate(step + 1)
        seen.append(strategy.forward_backward([batch, batch], no_clock))
        seen += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        seen.append(strategy.optimizer_step(1.0))
        seen.append(strategy.predict(batch))
    return [*seen, *(parameter.detach().clone() for parameter in model.parameters())]


@pytest.fixture
def autocast_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def switch(is_alone: bool) -> None:
        made = (lambda *_: None) if is_alone else working_weights.make_working_weights
        for module in (single, ddp):
            monkeypatch.setattr(module, "make_working_weights", made)

    return switch


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute each layer by a product of its own."""
    monkeypatch.setattr(working_weights, "_partners", lambda runs: {})


def prepared(name: str, kind: str, change: Change = nothing) -> tuple[TaskModel, Batch]:
    model = model_of(CONFIGS[name](), kind)
    enable_packed_batches(model)
    change(model)
    batch = rows(LENGTHS, kind, pad=model.hf.config.pad_token_id or 0)
    return model, pack(batch) if model.entry is not None else batch


def same(got: list[Tensor], want: list[Tensor]) -> bool:
    return len(got) == len(want) and all(torch.equal(*pair) for pair in zip(got, want, strict=True))


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_architecture_trains_like_under_autocast(name: str, kind: str, autocast_alone: Callable[[bool], None]):
    def run(is_alone: bool) -> list[Tensor]:
        autocast_alone(is_alone)
        return trained(*prepared(name, kind))

    assert same(run(False), run(True))


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize(
    ("change", "name", "kind"),
    [
        (checkpointed, "bert", "classification"),
        (freeze_encoder, "bert", "classification"),
        (nothing, "bert", "mlm"),
        (nothing, "albert", "classification"),
    ],
)
def test_single_and_ddp_train_like_under_autocast_with_all_model_options(
    strategy: str, change: Change, name: str, kind: str, autocast_alone: Callable[[bool], None]
):
    def run(is_alone: bool) -> list[Tensor]:
        autocast_alone(is_alone)
        return trained(*prepared(name, kind, change), kind=strategy)

    open_process_group(Place(0, 0, 1), CPU)
    try:
        assert same(run(False), run(True))
    finally:
        close_process_group()


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("make", "precision"),
    [
        (lambda: (RowModel(tied=True, dropout=0.1), row_batch(range(6), 6)), "bf16"),
        (lambda: prepared("bert", "classification"), "fp16"),
    ],
    ids=["layers that share a weight", "fp16"],
)
def test_tied_layers_and_fp16_train_like_under_autocast(
    make: Callable[[], tuple[nn.Module, Batch]], precision: str, autocast_alone: Callable[[bool], None]
):
    def run(is_alone: bool) -> list[Tensor]:
        autocast_alone(is_alone)
        return trained(*make(), precision=precision)

    assert same(run(False), run(True))


@pytest.mark.parametrize("name", ["bert", "roberta", "eurobert", "esm"])
def test_a_shared_product_is_as_accurate_as_separate_products(name: str, monkeypatch: pytest.MonkeyPatch):
    def gradients(precision: str, is_apart: bool = False) -> list[Tensor]:
        with monkeypatch.context() as patch:
            if is_apart:
                patch.setattr(working_weights, "_partners", lambda runs: {})
            model, batch = prepared(name, "classification", TaskModel.eval)
            strategy = single.SingleStrategy(device=CPU, precision=POLICIES[precision], rank=0, world_size=1)
            strategy.prepare(model, find_blocks(model), _sgd)
            for _ in range(2):  # layers that share their input are found in the first one
                strategy._optimizer.zero_grad()
                torch.manual_seed(0)
                strategy.forward_backward([batch], no_clock)
            return [p.grad for p in model.parameters() if p.grad is not None]

    exact, apart, shared = gradients("fp32"), gradients("bf16", is_apart=True), gradients("bf16")
    assert not same(shared, apart)

    def distance(found: list[Tensor]) -> float:
        return float(sum((x - y).double().square().sum() for x, y in zip(found, exact, strict=True)).sqrt())

    # Both round each product to 8 bits; the shared one adds three gradients of its input before it rounds.
    assert distance(shared) < 1.15 * distance(apart)


def _sgd(named):  # type: ignore[no-untyped-def]
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.0)


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_step_copies_once_and_casts_gradients_once_per_block():
    model, batch = prepared("bert", "classification")
    model.entry = None  # padded: the last layer is like the others
    batch = rows(LENGTHS, "classification")
    strategy = single.SingleStrategy(device=CPU, precision=POLICIES["bf16"], rank=0, world_size=1)
    strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(), 10))
    strategy.forward_backward([batch], no_clock)
    strategy.optimizer_step(1.0)
    with torch.autograd.set_multithreading_enabled(False), Operators() as seen:
        strategy.forward_backward([batch, batch], no_clock)
    # One makes the copies; then of each micro-batch 2 blocks, the pooler and the classifier.
    assert seen.names.count("_foreach_copy_") == 1 + 2 * 4
    # Of each of 2 micro-batches and 2 blocks: query, key and value are one, and three more; pooler and classifier.
    assert seen.names.count("addmm") == 2 * (2 * 4 + 2)


def test_gradients_of_the_outputs_of_norms_are_added_without_a_cast(monkeypatch: pytest.MonkeyPatch):
    def casts(*, gives: bool) -> tuple[int, list[Tensor]]:
        with monkeypatch.context() as patch:
            if not gives:
                patch.setattr(LoweredOutput, "give", lambda self, output: output)
            model, _ = prepared("bert", "classification")
            batch = rows(LENGTHS, "classification")
            strategy = single.SingleStrategy(device=CPU, precision=POLICIES["bf16"], rank=0, world_size=1)
            strategy.prepare(model, find_blocks(model), _sgd)
            torch.manual_seed(0)
            strategy.forward_backward([batch], no_clock)
            with torch.autograd.set_multithreading_enabled(False), Operators() as seen:
                strategy.forward_backward([batch], no_clock)
        return seen.names.count("_to_copy"), [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]

    (with_it, gradients), (without, expected) = casts(gives=True), casts(gives=False)
    # To query, key and value of 2 blocks: from the embeddings' dropout, and the first block's last norm; to the
    # feed-forward parts of both: from the norm before them.
    assert without - with_it == 4
    assert same(gradients, expected)


def test_a_resumed_run_computes_like_an_undisturbed_one():
    """Layers that share a product are found before the first pass, in which they share it already."""

    def begun() -> tuple[single.SingleStrategy, Batch]:
        model, batch = prepared("bert", "classification")
        strategy = single.SingleStrategy(device=CPU, precision=POLICIES["bf16"], rank=0, world_size=1)
        strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(learning_rate=0.01), 10))
        return strategy, batch

    def step(strategy: single.SingleStrategy, batch: Batch) -> list[Tensor]:
        torch.manual_seed(1)
        seen = [strategy.forward_backward([batch], no_clock), strategy.optimizer_step(1.0), strategy.predict(batch)]
        return [*seen, *(value.clone() for _, value in strategy.state().tensors() if value is not None)]

    first, batch = begun()
    step(first, batch)
    kept = {key: value.clone() for key, value in first.state().tensors() if value is not None}
    other, _ = begun()
    other.state().load(kept.__getitem__, kept)
    assert same(step(other, batch), step(first, batch))


def test_the_model_keeps_its_float32_parameters_outside_of_use():
    model, batch = prepared("bert", "mlm")
    names = [name for name, _ in model.named_parameters()]
    strategy = single.SingleStrategy(device=CPU, precision=POLICIES["bf16"], rank=0, world_size=1)
    strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(), 10))
    strategy.forward_backward([batch], no_clock)
    assert [name for name, _ in model.named_parameters()] == names
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {value.dtype for key, value in strategy.state().tensors() if key.startswith("model/")} == {torch.float32}
    assert len(list(model.state_dict())) == len(list(model_of(CONFIGS["bert"](), "mlm").state_dict()))
    before = model(batch)
    with torch.no_grad():
        model.hf.bert.encoder.layer[0].output.dense.weight.zero_()
    assert before.dtype == torch.float32
    assert not torch.equal(model(batch), before), "without a strategy the parameters count"


@pytest.mark.parametrize("changed_by", ["a step", "a state", "hand"])
def test_predictions_use_the_current_weights(changed_by: str):
    model, batch = RowModel(), row_batch(range(6), 6)
    strategy = single.SingleStrategy(device=CPU, precision=POLICIES["bf16"], rank=0, world_size=1)
    factory = OptimizerFactory(Train(learning_rate=0.1), 10)
    strategy.prepare(model, [], factory)
    strategy.predict(batch)
    if changed_by == "a step":
        factory.set_learning_rate(1)
        strategy.forward_backward([batch], no_clock)
        strategy.optimizer_step(None)
    elif changed_by == "a state":
        strategy.state().load(lambda key: torch.full((3, 8), 0.3), ["model/head.weight"])
    else:
        with torch.no_grad():
            model.head.weight += 1
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(batch)
    assert torch.equal(strategy.predict(batch), expected)


class Spare(RowModel):
    """With a block one of whose layers is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"used": nn.Linear(8, 8), "spare": nn.Linear(8, 8)})
        self.block.forward = lambda x: self.block["used"](x)
        self.hidden = nn.Sequential(self.hidden, self.block)


def test_an_unused_layer_gets_no_gradient():
    model = Spare()
    strategy = single.SingleStrategy(device=CPU, precision=POLICIES["bf16"], rank=0, world_size=1)
    strategy.prepare(model, [model.block], OptimizerFactory(Train(), 10))
    for _ in range(2):
        strategy.forward_backward([row_batch(range(4), 4)], no_clock)
    assert model.block["used"].weight.grad is not None
    assert model.block["spare"].weight.grad is None
    assert model.block["used"].copies is None, "after the pass"


class Halves(nn.Module):
    """Two layers of one input, whose outputs are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        left *= 2
        right.tanh_()
        return left + torch.cat([right, right], -1)


def test_outputs_of_a_shared_product_may_be_changed_in_place(monkeypatch: pytest.MonkeyPatch):
    def run() -> list[Tensor]:
        torch.manual_seed(5)
        model = RowModel()
        model.blocks = nn.ModuleList([Halves()])
        model.hidden = model.blocks[0]
        return trained(model, row_batch(range(6), 6))

    shared = run()
    monkeypatch.setattr(working_weights, "_partners", lambda runs: {})
    for one, other in zip(shared, run(), strict=True):
        # bf16 has 8 bits; AdamW's steps of 0.01 may go the other way where a gradient is nearly 0.
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.03)


def test_a_shared_product_is_computed_again_after_a_change_of_its_input():
    left, right = WorkingLinear(2, 2, bias=False), WorkingLinear(2, 2, bias=False)
    product = SharedProduct([left, right])
    product.copies = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 2.0]]), None
    x = torch.tensor([[1.0, 3.0]])
    assert product.output(left, x).tolist() == [[1.0, 3.0]]
    x += 1
    assert product.output(right, x).tolist() == [[4.0, 8.0]]


def test_an_error_in_a_pass_leaves_the_parameters_in_place():
    model = RowModel()
    working = WorkingWeights(model, [], torch.bfloat16)

    def run() -> None:
        with working.use(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(row_batch(range(4), 4))
            assert model.hidden.copies is not None
            raise MemoryError

    with pytest.raises(MemoryError):
        run()
    assert isinstance(model.hidden, WorkingLinear)
    assert model.hidden.copies is None


class TwicePass(nn.Module):
    """A block that runs without gradients first, and then with them, as models do that recycle their outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.layers[0](x).float()
        return self.layers[0](x)


def test_a_block_that_first_runs_without_gradients_gets_gradients():
    model = TwicePass()
    working = WorkingWeights(model, [model.layers[0]], torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16), working.use():
        model(torch.randn(2, 4)).sum().backward()
    assert model.layers[0].weight.grad is not None


def test_without_autocast_the_parameters_are_used():
    layer = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    expected = layer(x).detach()
    working = WorkingWeights(nn.Sequential(layer), [], torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16), working.use():
        assert layer(x).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(layer(x), expected)


def test_computed_weights_are_cast_by_autocast():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Linear(4, 4))
    assert WorkingWeights(nn.Sequential(layer, old), [], torch.bfloat16).tensors == []


def test_a_failed_trial_pass_has_no_effect():
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in "qkv"})
    x = torch.randn(2, 4)

    def run(names: str) -> None:
        for name in names:
            model[name](x)

    working = WorkingWeights(model, [model], torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(KeyError):
            working.run_trial(lambda: run("qx"))
        working.run_trial(lambda: run("qkv"))
    assert [len(unit.layers) for group in working._groups for unit in group.units] == [3]
