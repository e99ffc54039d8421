"""Several ranks without several GPUs: the memory of one rank of eight, and two ranks on one device over gloo."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from paratune.batch.packing import round_up
from paratune.config import strategy_sections as sections
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits
from paratune.planning.memory import peak_of_rank
from paratune.planning.profile import Shape, profile
from paratune.planning.states import PredictionSetup
from paratune.strategies import strategy_class

from .setting import Check, Figures, Setting, hold, largest_difference
from .texts import CASES, draw_lengths, of_setting, packed_batch
from .training import Steps, free, precision_of

RANKS = 8
KINDS = ("ddp", "zero1", "zero2", "zero3")
"""Samples of two ranks."""
SECTIONS: dict[str, Any] = {
    "single": sections.SingleOptions,
    "zero2": sections.Zero2Options,
    "zero3": sections.Zero3Options,
}
TASK = ClassificationTask(kind="classification", labels=["0", "1"])


def checks(setting: Setting) -> Iterator[Check]:
    """Yield memory against the plan, then two ranks."""
    for kind in ("zero2", "zero3"):  # the part `plan` has the memory of one rank alone
        yield Check(f"{kind} x {RANKS}", partial(memory, setting, kind, RANKS), "Memory of a rank against the plan")
    started = cache(lambda: start_two(setting))
    for kind in KINDS:
        yield Check(f"{kind} x 2", partial(two_ranks, setting, kind, started), "Two ranks on one device over gloo")


def memory(setting: Setting, kind: str, num_ranks: int) -> Figures:
    """Run two steps as rank 0 of several, with collectives that do nothing; compare the peak with the plan's."""
    free()
    case = of_setting(CASES[0], setting)
    lengths = draw_lengths(case, case.batch_size)
    precision = precision_of(setting)
    if num_ranks > 1:
        _fake_group(num_ranks)
    try:
        own = {"device": setting.device, "precision": precision, "rank": 0, "world_size": num_ranks}
        steps = Steps(setting, make=lambda: strategy_class(kind)(**own))
        batch = packed_batch(lengths, steps.vocab_size).to(setting.device)
        for _ in range(2):
            steps(batch)
        measured = torch.cuda.max_memory_allocated() if setting.on_gpu else None
        entry = steps.entry
    finally:
        if num_ranks > 1:
            dist.destroy_process_group()
    traits = strategy_traits(kind, {})
    assert traits is not None
    setup = PredictionSetup(SECTIONS[kind](kind=kind), traits, precision, num_ranks, num_ranks, len(lengths), 1)
    shape = Shape(tuple(lengths), layout="packed")
    planned_profile = profile(
        steps.model.hf.config, TASK, shape, precision, on_cuda=setting.on_gpu, entry=entry, with_division=num_ranks > 1
    )
    plan = peak_of_rank(planned_profile, setup, 0, on_cuda=setting.on_gpu)
    # Not counted by PyTorch's allocator: the context, and unused blocks.
    planned = plan.total - plan.terms.get("context", 0) - plan.terms.get("fragmentation", 0)
    ratio = None if measured is None else measured / planned
    figures = {"measured_bytes": measured, "planned_bytes": planned, "ratio": ratio}
    return hold(ratio is None or 0.8 <= ratio <= 1.1, "measured over planned is not within 0.8 to 1.1", figures)


def _fake_group(num_ranks: int) -> None:
    """Start a process group whose collectives return without doing anything, as rank 0."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)


def two_ranks(setting: Setting, kind: str, started: Callable[[], Path]) -> Figures:
    """Compare losses and gradient norms of three steps with those of one process, without dropout."""
    path = started() / f"{kind}.json"
    if not path.exists():
        raise RuntimeError("the ranks exited or hung before this strategy")
    ours = json.loads(path.read_text(encoding="utf-8"))
    if "error" in ours:
        raise RuntimeError(ours["error"])
    expected = _steps(setting, "single", 0, 1)
    off = {
        name: largest_difference([torch.tensor(ours[name])], [torch.tensor(expected[name])])
        for name in ("losses", "norms")
    }
    allowed = 0.03 if setting.on_gpu else 1e-4
    figures = {**off, "allowed": allowed, "num_steps": len(ours["losses"])}
    return hold(max(off.values()) <= allowed, "losses or gradient norms differ from those of one process", figures)


def start_two(setting: Setting) -> Path:
    """Run the strategies one after the other in two processes, and return the folder of their results."""
    free()
    folder = setting.folder / "two"
    folder.mkdir(exist_ok=True)
    context = torch.multiprocessing.get_context("spawn")
    peers = [context.Process(target=_peer, args=(rank, setting, folder)) for rank in range(2)]
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join(max(1.0, setting.left_s() - 8))
        if peer.is_alive():
            peer.kill()
    return folder


def _peer(rank: int, setting: Setting, folder: Path) -> None:
    """Run one of two ranks; rank 0 writes losses and norms, or the error."""
    if setting.on_gpu:
        torch.cuda.set_device(setting.device)
    backend = "cpu:gloo,cuda:gloo" if setting.on_gpu else "gloo"
    dist.init_process_group(backend, store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    for kind in KINDS:
        try:
            result: dict[str, Any] = _steps(setting, kind, rank, 2)
        except Exception as error:  # an operation that gloo does not support on a GPU fails on both ranks
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
        if rank == 0:
            (folder / f"{kind}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


def _steps(setting: Setting, kind: str, rank: int, num_ranks: int) -> dict[str, list[float]]:
    """Run three steps of a batch whose rows are divided among the ranks."""
    own = {"device": setting.device, "precision": precision_of(setting), "rank": rank, "world_size": num_ranks}
    steps = Steps(
        setting,
        make=lambda: strategy_class(kind)(**own),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_hidden_layers=2,
    )
    lengths = draw_lengths(of_setting(CASES[0], setting), 8)
    values: dict[str, list[float]] = {"losses": [], "norms": []}
    for number in range(3):
        whole = packed_batch(lengths, steps.vocab_size, seed=number)
        batch = _part(whole, rank, num_ranks, lengths)
        batch = replace(batch, loss_denominator=float(len(lengths))).to(setting.device)
        loss = steps.strategy.forward_backward([batch], lambda _phase: nullcontext())
        values["losses"].append(float(steps.strategy.reduce(loss.double().cpu().reshape(1), "sum")))
        steps.optimizer.set_learning_rate(number)
        values["norms"].append(float(steps.strategy.optimizer_step(1.0)))
    return values


def _part(whole: Any, rank: int, num_ranks: int, lengths: list[int]) -> Any:
    """Return a rank's rows of a packed batch."""
    if num_ranks == 1:
        return whole
    share = len(lengths) // num_ranks
    rows = slice(rank * share, (rank + 1) * share)
    ends = whole.cu_seqlens
    tokens = slice(int(ends[rows.start]), int(ends[rows.stop]))
    starts = ends[rows.start : rows.stop + 1] - ends[rows.start]
    return round_up(
        replace(
            whole,
            input_ids=whole.input_ids[tokens],
            token_type_ids=whole.token_type_ids[tokens],
            position_ids=whole.position_ids[tokens],
            slots=whole.slots[tokens] - rows.start * whole.max_seqlen,
            cu_seqlens=starts,
            row_weight=whole.row_weight[rows],
            index=whole.index[rows],
            labels=whole.labels[rows],
            num_samples=share,
            num_tokens=sum(lengths[rows]),
            num_padded_tokens=sum(lengths[rows]),
        )
    )
