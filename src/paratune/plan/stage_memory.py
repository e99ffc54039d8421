"""What a rank of a pipeline takes besides its states: micro-batches in flight, each with what its stages keep."""

import numpy as np

from paratune.base.units import MIB
from paratune.config.strategy_sections import PipelineOptions
from paratune.config.traits import Traits
from paratune.plan.engines import COMMUNICATION, GRADIENTS, View
from paratune.plan.timeline import Delta
from paratune.stages.cut import BlockSpan

BUCKET_BYTES = 25 * MIB
"""Of the messages in which gradients travel between replicas, as `strategies.pipeline.strategy` has them."""


def in_flight(strategy: PipelineOptions, traits: Traits, place: int, num_micro_batches: int) -> list[int]:
    """Return of how many micro-batches a rank keeps activations at most, stage by stage of its own.

    GPipe: all of them. 1F1B: as many as there are stages from this one to the last. Interleaved with v stages
    on a rank: (v - 1) p + 2 (p - place - 1) + 1 passes, which go through its stages by p micro-batches in turn.

    Args:
        strategy: Its schedule and p, its stages on as many ranks.
        traits: With v, the stages on each rank.
        place: Of the rank within its pipeline, from 0.
        num_micro_batches: Of a step.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021, section 2.2;
        PyTorch 2.13, torch/distributed/pipelining/schedules.py, `Schedule1F1B`, `ScheduleInterleaved1F1B`.
    """
    p, v = strategy.stages, traits.stages_per_rank
    if strategy.schedule == "gpipe":
        return [num_micro_batches] * v
    if strategy.schedule == "1f1b":
        return [min(p - place, num_micro_batches)]
    num_passes = min((v - 1) * p + 2 * (p - 1 - place) + 1, v * num_micro_batches)
    found = [0] * v
    for each in range(num_passes):
        found[each // p % v] += 1
    return found


def stage_terms(view: View, place: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return bytes by term, without weights and moments, while passes run and while the update does.

    Args:
        view: Of the rank.
        place: Of the rank within its pipeline, from 0.
    """
    strategy, profile, setup = view.setup.strategy, view.profile, view.setup
    assert isinstance(strategy, PipelineOptions)
    assert profile.division is not None
    num_micro_batches = setup.grad_accum_steps
    spans = profile.division.of_rank(place, strategy, setup.traits)
    flying = in_flight(strategy, setup.traits, place, num_micro_batches)
    saved = [_saved(view, span) for span in spans]
    held = sum(count * size for count, size in zip(flying, saved, strict=True))
    # The first backward pass makes the gradients; those after it find them there, if as many are still in flight.
    first = held + max(_running(view, span, keeps=True) - size for span, size in zip(spans, saved, strict=True))
    if sum(flying) == num_micro_batches * len(spans):
        held -= min(saved)
    later = held + max(_running(view, span, keeps=False) - size for span, size in zip(spans, saved, strict=True))
    gradients = view.states.gradients if later + view.states.gradients > first else 0
    # Each stage has a buffer for what it receives of every micro-batch, and for the gradient of what it sends; and what
    # it has sent, and is being sent, lives until it has arrived.
    num_sending = sum(span.end < profile.num_blocks for span in spans)
    num_buffers = (sum(span.begin > 0 for span in spans) + num_sending) * num_micro_batches + 2 * num_sending
    received = num_buffers * profile.hidden_bytes
    passes = {"activations": later if gradients else first, COMMUNICATION: received, GRADIENTS: gradients}
    sent = min(BUCKET_BYTES, view.states.gradients) if setup.data_world_size > 1 else 0
    return passes, {COMMUNICATION: received + sent, GRADIENTS: view.states.gradients}


def _saved(view: View, span: BlockSpan) -> int:
    """Return the activations of a stage for one micro-batch, what it hands on included."""
    profile = view.profile
    inside = sum(profile.saved_by_block[span.begin : span.end])
    after = profile.saved_bytes - profile.saved_before - sum(profile.saved_by_block)
    first = profile.saved_before if span.begin == 0 else 0
    return inside + first + (after if span.end == profile.num_blocks else profile.hidden_bytes)


def _running(view: View, span: BlockSpan, *, keeps: bool) -> int:
    """Return the most that one micro-batch takes in a stage, in its forward or backward pass.

    The course of the whole model's passes within the stage's blocks, less what the blocks before have kept.

    Args:
        view: Of the rank.
        span: The stage.
        keeps: Whether gradients stay that are made; else they are added to others.
    """
    profile, timeline = view.profile, view.profile.timeline
    until = timeline.positions("gradient")
    if keeps:
        blocks = {number: each.block for number, each in enumerate(profile.parameters)}
        inside = range(span.begin, span.end)
        until = {number: view.end if blocks[number] in inside else at for number, at in until.items()}
    level = _with(timeline.level(view.rounding, without=timeline.gradients), tuple(view.gradients(until)))
    before = 0 if span.begin == 0 else profile.saved_before + sum(profile.saved_by_block[: span.begin])
    is_last = span.end == profile.num_blocks
    forward_ends, begins = timeline.positions("forward_end"), timeline.positions("backward")
    first = 0 if span.begin == 0 else view.starts[span.begin]
    last = timeline.num_forward if is_last else forward_ends[span.end - 1]
    forward = level[first : last + 1]
    begin = timeline.num_forward if is_last else begins[span.end - 1]
    end = view.end if span.begin == 0 else view.ends[span.begin]
    backward = level[begin : end + 1]
    return int(max(forward.max(), backward.max())) - before


def _with(level: np.ndarray, deltas: tuple[Delta, ...]) -> np.ndarray:
    steps = np.zeros_like(level)
    for delta in deltas:
        steps[delta.position] += delta.num_bytes
    return np.asarray(level + np.cumsum(steps))
