"""How much memory a rank needs at its fullest moment, term by term."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from paratune.base.units import MIB
from paratune.plan.engines import GRADIENTS, Course, View
from paratune.plan.kinds import kind_of, states_of_rank
from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.stage_memory import stage_terms
from paratune.plan.states import States, ranks_that_differ
from paratune.plan.timeline import Delta, fullest, rounded
from paratune.plan.trace import CUDA_ROUNDING

When = Literal["forward", "backward", "optimizer"]
CONTEXT_BYTES = 500 * MIB
"""Of CUDA's context with the kernels that a training loads, and of NCCL's first communicator: assumed, not measured."""
WORKSPACE_BYTES = 2 * 32 * MIB
"""Of cuBLAS: on Hopper and newer PyTorch reserves 4096 x 8 KiB, on others a quarter of it, for each thread that
multiplies: the one of the forward pass and that of the backward pass.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`.
"""
FRAGMENTED_SHARE = 0.05
"""Of activations and gathered weights, for what the allocator reserves and cannot use: assumed, not measured."""
LAMB_PART_NUMBERS = 2**22
"""As `engine.lamb` has it."""
_COMES_AND_GOES = ("activations", "cast_weights", "gathered_weights", "communication")


@dataclass(frozen=True)
class Memory:
    """Bytes at the fullest moment of the fullest rank."""

    terms: Mapping[str, int]
    """On the device: weights, gradients, optimizer, buffers (of the model), batch, activations, cast_weights (by
    autocast), gathered_weights, communication, update, and on CUDA context, workspaces, fragmentation."""
    host_terms: Mapping[str, int]
    """On the host, of states that are kept there."""
    at: When
    """In which part of a step the moment is."""

    @property
    def total(self) -> int:
        return sum(self.terms.values())

    @property
    def host_total(self) -> int:
        return sum(self.host_terms.values())


def peak(profile: Profile, setup: PredictionSetup, on_cuda: bool = True) -> Memory:
    """Return the memory of the rank that needs most.

    Args:
        profile: Of the micro-batch that needs most; with a division where the strategy is a pipeline.
        setup: The way of running it.
        on_cuda: Whether the device is one of CUDA, with what that takes for itself.

    Raises:
        ConfigError: A pipeline has fewer blocks than stages.
    """
    ranks: Iterable[int] = ranks_that_differ(setup)
    if not setup.traits.cuts_blocks:
        # They differ in their states alone.
        states = {rank: states_of_rank(profile, setup, rank) for rank in ranks}
        ranks = [max(states, key=lambda each: (states[each].device, states[each].host))]
    return max((peak_of_rank(profile, setup, rank, on_cuda) for rank in ranks), key=lambda each: each.total)


def peak_of_rank(profile: Profile, setup: PredictionSetup, rank: int, on_cuda: bool = True) -> Memory:
    """Return the memory of one rank; see `peak`."""
    view = View(profile, setup, states_of_rank(profile, setup, rank), CUDA_ROUNDING if on_cuda else 1)
    kind = kind_of(setup)
    if kind.course is None:
        passes, update = stage_terms(view, rank % setup.traits.ranks_per_replica)
        when: When = "backward"
    else:
        course = kind.course(view)
        passes, when = _in_passes(view, course)
        update = _at_update(view, course)
    update = {**update, "update": update_bytes(view)}
    if sum(update.values()) > sum(passes.values()):
        passes, when = update, "optimizer"
    terms = {**_all_along(view), **passes}
    if on_cuda:
        moving = sum(terms.get(name, 0) for name in _COMES_AND_GOES)
        terms |= {
            "context": CONTEXT_BYTES,
            "workspaces": WORKSPACE_BYTES,
            "fragmentation": round(FRAGMENTED_SHARE * moving),
        }
    return Memory({name: size for name, size in terms.items() if size}, _on_host(view.states), when)


def _all_along(view: View) -> dict[str, int]:
    profile = view.profile
    return {
        "weights": view.states.weights,
        "optimizer": view.states.optimizer,
        "buffers": profile.num_buffer_bytes,
        # All micro-batches of a step are on the device when it begins.
        "batch": profile.batch_bytes * view.setup.grad_accum_steps,
    }


def _on_host(states: States) -> dict[str, int]:
    found = {"weights": states.host_weights, "gradients": states.host_gradients, "optimizer": states.host_optimizer}
    return {name: size for name, size in found.items() if size}


def _in_passes(view: View, course: Course) -> tuple[dict[str, int], When]:
    timeline = view.profile.timeline
    apart = {*timeline.gradients, *timeline.casts}
    level = timeline.level(view.rounding, without=apart)
    deltas = [*course.deltas, *(_casts(view) if course.keeps_casts else ())]
    moment = fullest(level, deltas)
    terms = {"activations": int(level[moment.position]), **moment.deltas}
    for name, size in course.always.items():
        terms[name] = terms.get(name, 0) + size
    return terms, "forward" if moment.position <= timeline.num_forward else "backward"


def _casts(view: View) -> list[Delta]:
    """Return autocast's copies of weights, which autograd keeps until their backward pass."""
    timeline, found = view.profile.timeline, []
    for number in timeline.casts:
        made, freed = timeline.span(number)
        size = rounded(timeline.sizes[number], view.rounding)
        found += [Delta(made, "cast_weights", size), Delta(freed, "cast_weights", -size)]
    return found


def _at_update(view: View, course: Course) -> dict[str, int]:
    """Return what there is beside states when the update runs, without what it takes itself."""
    terms = {**course.at_step}
    for name, size in course.always.items():
        terms[name] = terms.get(name, 0) + size
    # Whole ones are gone where ranks have a part of them.
    return {**terms, GRADIENTS: view.states.gradients}


def update_bytes(view: View) -> int:
    """Return what the update takes besides: fused AdamW and clipping nothing, LAMB the denominators of a part.

    A part is one weight, or several of together at most LAMB_PART_NUMBERS. Of a sharded weight the whole is counted,
    but never more than the rank has of all.
    """
    if view.setup.optimizer != "lamb":
        return 0
    largest = max((each.numel for each in view.profile.parameters if each.is_trained), default=0)
    return min(view.states.gradients, view.profile.weight_bytes * max(LAMB_PART_NUMBERS, largest))
