"""The search for the largest micro-batch: on numbers, and on a model whose memory is played."""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact import RowModel, row_batch
from hypothesis import given
from hypothesis import strategies as st
from looping import CPU, single
from tiny import tiny_model
from tiny_data import tiny_collator

from paratune import hardware
from paratune.config.batch_size import divisors
from paratune.config.sections import Train
from paratune.config.traits import TRAITS
from paratune.engine.fitting import (
    FittingSize,
    ProbedSize,
    Prober,
    RanOutInCollective,
    explain,
    find_micro_batch_size,
    search,
)
from paratune.engine.optim import OptimizerFactory
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES
from paratune.strategies.protocol import Layout
from paratune.strategies.single import SingleStrategy


@given(share=st.integers(1, 600), largest=st.integers(0, 700))
def test_the_search_finds_the_largest_size_with_few_trials(share: int, largest: int):
    tried: list[int] = []
    sizes = divisors(share)
    result = search(sizes, lambda size: tried.append(size) or size <= largest)
    assert result == max((size for size in sizes if size <= largest), default=None)
    assert len(tried) == len(set(tried))
    # No size is tried that is more than twice a size that fits, unless there is none in between.
    for before, after in itertools.pairwise(tried):
        if after > before and before <= largest:
            assert not [size for size in sizes if 2 * before <= size < after]


@dataclass
class Meter:
    """Memory of a constant and so much a row, as if a rank had `available_bytes`."""

    available_bytes: int
    fixed: int = 1000
    per_row: int = 100
    rows: int = 0
    passes: int = 0
    usable_share: float = 1.0

    def begin(self) -> None:
        self.rows = 0

    def now(self) -> int:
        return self.fixed

    def peak(self) -> int:
        return self.fixed + self.per_row * self.rows

    def available(self) -> int:
        return self.available_bytes


class Metered(RowModel):
    """Notes the rows of each pass; memory runs out above `most`."""

    def __init__(self, meter: Meter, most: int) -> None:
        super().__init__(dropout=0.5)
        self.meter, self.most, self.passes = meter, most, []

    def forward(self, batch: Any) -> torch.Tensor:
        rows = len(batch.input_ids)
        self.passes.append(rows)
        self.meter.rows = max(self.meter.rows, rows)
        self.meter.passes += 1
        if rows > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(batch)


class Together:
    """Two ranks whose passes are shared; the other one needs `other` bytes more, and has as much memory."""

    traits = TRAITS["zero3"]
    layout = Layout(rank=0, world_size=2, data_rank=0, data_world_size=2)

    def __init__(self, other: int = 0) -> None:
        self._single, self._other = single(), other
        self.asked: list[list[float]] = []

    def prepare(self, *arguments: Any) -> None:
        self._single.prepare(*arguments)

    def forward_backward(self, *arguments: Any) -> torch.Tensor:
        return self._single.forward_backward(*arguments)

    def optimizer_step(self, max_grad_norm: float | None) -> torch.Tensor:
        return self._single.optimizer_step(max_grad_norm)

    def reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        assert op == "concat"
        (fits, needs, available) = value[0].tolist()
        theirs = needs + self._other if needs >= 0 else needs
        self.asked.append([fits, needs])
        return torch.tensor(
            [[fits, needs, available], [float(bool(fits) and theirs <= available), theirs, available]]
        ).double()


def find(strategy: Any, meter: Meter, *, most: int = 10**6, share: int = 32) -> tuple[FittingSize | None, Metered]:
    model = Metered(meter, most)
    strategy.prepare(model, [], OptimizerFactory(Train(learning_rate=0.1), 4))
    prober = Prober(
        strategy=strategy,
        traits=strategy.traits,
        model=model,
        precision=POLICIES["fp32"],
        device=CPU,
        longest=lambda size: row_batch(range(size), 32),
        share=share,
        meter=meter,
    )
    return find_micro_batch_size(prober, divisors(share)), model


def saved_bytes(act: Callable[[], Any], weights: Collection[torch.Size]) -> tuple[int, int]:
    """Return the bytes that autograd saves in a call, and those of bf16 tensors with the shape of a weight."""
    held: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        act()
    copies = [x for x in held.values() if x.dtype == torch.bfloat16 and (x.shape in weights or x.mT.shape in weights)]
    return sum(x.untyped_storage().nbytes() for x in held.values()), sum(x.nbytes for x in copies)


def test_a_trial_holds_the_16_bit_copies_of_the_weights_that_a_step_holds():
    strategy, model = single("bf16"), TaskModel(tiny_model(num_labels=3, dropout=0.0), "classification")
    strategy.prepare(model, [], OptimizerFactory(Train(learning_rate=0.1), 4))
    batch = tiny_collator(5, num_classes=3)(np.arange(5), 5.0)
    prober = Prober(strategy, strategy.traits, model, POLICIES["bf16"], CPU, lambda size: batch, 5, Meter(10**9))
    prober.begin(most_micro_batches=1)
    linear = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    shapes = {weight.shape for weight in linear}
    in_trial = saved_bytes(lambda: prober._run_alone(5), shapes)
    in_step = saved_bytes(lambda: strategy.forward_backward([batch], lambda phase: nullcontext()), shapes)
    assert in_trial == in_step
    assert in_step[1] == 2 * sum(weight.numel() for weight in linear)


def test_an_out_of_memory_error_is_caught_and_given_as_reason():
    fitting, model = find(single(), Meter(10**9), most=12)
    assert fitting is not None
    assert (fitting.size, fitting.reason) == (8, "8 fits (1.76 KiB of 954 MiB), 16 does not: it ran out of memory")
    # One step of one sample for the optimizer states; then each size once; then twice in a step those that fitted: the
    # second time there are gradients.
    assert model.passes == [1, 1, 2, 4, 8, 16, 1, 1, 2, 2, 4, 4, 8, 8]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_optimizer_states_exist_before_trials_even_if_fp16_overflows_first():
    strategy = SingleStrategy(device=CPU, precision=replace(POLICIES["fp32"], scales_loss=True), rank=0, world_size=1)
    assert strategy.loss_scale == 65536
    norms = iter([math.inf, math.nan])  # of the first two steps; the third is what it is
    take = strategy.optimizer_step
    strategy.optimizer_step = lambda max_norm: torch.tensor(norm) if (norm := next(norms, None)) else take(max_norm)
    _, model = find(strategy, Meter(10**9), most=12)
    assert model.passes == [1, 1, 1, 1, 2, 4, 8, 16, 1, 1, 2, 2, 4, 4, 8, 8]


class Accumulated(Meter):
    """Memory of gradients beside that of rows from the second micro-batch of a step on."""

    gradients = 900

    def peak(self) -> int:
        return super().peak() + self.gradients * (self.passes > 1)

    def begin(self) -> None:
        super().begin()
        self.passes = 0


@pytest.mark.parametrize("available", [1800, 1900])
@pytest.mark.parametrize("strategy", [single, Together])
def test_the_whole_share_can_fit_although_parts_of_it_do_not(strategy: Any, available: int):
    # 8 rows at once need 1000 + 8 x 100 = 1800 bytes; 1 row with accumulated gradients 2000.
    fitting, _ = find(strategy(), Accumulated(available), share=8)
    assert fitting is not None
    assert (fitting.size, fitting.reason) == (
        8,
        f"8 fits (1.76 KiB of {available / 1024:.3g} KiB) and is all of a rank's share",
    )


def test_neither_the_share_nor_larger_parts_fit():
    assert find(Together(), Accumulated(1799), share=8)[0] is None


def test_parts_of_the_share_are_tried_with_accumulated_gradients():
    # 8 rows at once need 1800 bytes, 16 would need 2600; accumulating, 4 rows would need 2300, 2 need 2100.
    fitting, _ = find(single(), Accumulated(2200), share=32)
    assert fitting is not None
    assert fitting.size == 2


def test_on_a_host_no_size_beyond_the_memory_is_tried():
    # 1000 + 100 a row: 8 rows need 1800 bytes, 16 would need 2600.
    fitting, model = find(single(), Meter(2500))
    assert fitting is not None
    assert fitting.reason == "8 fits (1.76 KiB of 2.44 KiB), 16 does not: it would need 2.54 KiB of 2.44 KiB"
    assert max(model.passes) == 8


def test_a_prediction_leaves_memory_for_fragmentation():
    # 8 rows need 1800 bytes: 90% of 2000.
    fitting, _ = find(single(), Meter(2000, usable_share=0.9))
    assert fitting is not None
    assert fitting.reason == "8 fits (1.76 KiB of 1.95 KiB), 16 does not: it would need 2.54 KiB of 1.76 KiB"
    fitting, _ = find(single(), Meter(2000, usable_share=0.89))
    assert fitting is not None
    assert fitting.size == 4


def test_without_a_memory_limit_the_whole_share_fits():
    fitting, model = find(single(), Meter(10**9))
    assert fitting is not None
    assert fitting.reason == "32 fits (4.1 KiB of 954 MiB) and is all of a rank's share"
    assert model.passes[-1] == 32  # all of it: there is no second micro-batch


def test_no_size_fits():
    assert find(single(), Meter(900))[0] is not None  # the first size has nothing to predict it from, and is tried
    with pytest.raises(torch.OutOfMemoryError):
        find(single(), Meter(10**9), most=0)


def test_the_rank_with_the_least_memory_decides_for_all():
    # 1000 + 100 a row here, 600 more there, 2500 for each: 8 rows need 1800 and 2400, 16 would need 2600.
    fitting, _ = find(Together(other=600), Meter(2500))
    assert fitting is not None
    assert fitting.reason.startswith("8 fits (2.34 KiB of 2.44 KiB), 16 does not")
    # 800 more there: 8 rows need 2600, 4 need 2200.
    fitting, _ = find(Together(other=800), Meter(2500))
    assert fitting is not None
    assert fitting.size == 4


def test_a_rank_that_runs_out_in_a_collective_names_the_size_that_fitted():
    with pytest.raises(RanOutInCollective) as caught:
        find(Together(), Meter(10**9), most=12)
    assert (caught.value.size, caught.value.smaller) == (16, 8)


def test_a_pipeline_is_tried_with_all_its_micro_batches():
    strategy = Together()
    strategy.traits = replace(TRAITS["pipeline"], ranks_per_replica=2)
    _, model = find(strategy, Meter(10**9), share=4)
    assert model.passes == [1, 1, 1, 1, 1, 1, 2, 2, 4]


def test_the_reason_does_not_mention_sizes_that_were_not_tried():
    probes = [ProbedSize(2, True, 500, 1000)]
    assert explain(2, probes, 8) == "2 fits (500 B of 1000 B), larger ones were not tried"
    assert explain(2, probes, 2) == "2 fits (500 B of 1000 B) and is all of a rank's share"


def test_trials_do_not_change_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    find(single(), Meter(10**9), most=12)  # draws dropout masks
    assert torch.equal(torch.rand(1), expected)


def test_on_a_host_resident_memory_decides():
    if not hardware.reset_peak_memory():
        pytest.skip("this system does not let a peak begin anew")
    # In a process of its own: what earlier tests left to the allocator would be in the way.
    script = Path(__file__).parents[2] / "heavy_rows.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert printed["size"] == 8  # 16 rows would be 32 while they are made, and there is memory for 24
    assert "16 does not: it would need" in printed["reason"]
    assert printed["peak_bytes"] <= printed["available_bytes"]
