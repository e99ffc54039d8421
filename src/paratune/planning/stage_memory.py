"""The memory of a rank of a pipeline besides its states: the activations of micro-batches in flight."""

from paratune.base.units import MIB
from paratune.config.strategy_sections import PipelineOptions
from paratune.config.traits import Traits
from paratune.planning.engines import COMMUNICATION, GRADIENTS, EngineInputs
from paratune.stages.cut import BlockSpan

BUCKET_BYTES = 25 * MIB
"""Size of the messages in which replicas sum gradients; the same constant as in `strategies.pipeline.strategy`."""


def in_flight(strategy: PipelineOptions, traits: Traits, place: int, num_micro_batches: int) -> list[int]:
    """Return the largest number of micro-batches whose activations a rank keeps, for each of its stages.

    GPipe: all micro-batches. 1F1B: the number of stages from this one to the last. Interleaved with v stages on a rank:
    (v - 1) p + 2 (p - place - 1) + 1 passes, which take its stages in turn, p micro-batches each.

    p is the number of ranks of the pipeline, v the stages on each rank, and `place` the position of the rank, from 0.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021, section 2.2;
        PyTorch 2.13, torch/distributed/pipelining/schedules.py, `Schedule1F1B`, `ScheduleInterleaved1F1B`.
    """
    p, v = strategy.stages, traits.stages_per_rank
    if strategy.schedule == "gpipe":
        return [num_micro_batches] * v
    if strategy.schedule == "1f1b":
        return [min(p - place, num_micro_batches)]
    num_passes = min((v - 1) * p + 2 * (p - 1 - place) + 1, v * num_micro_batches)
    in_flight_by_stage = [0] * v
    for pass_number in range(num_passes):
        in_flight_by_stage[pass_number // p % v] += 1
    return in_flight_by_stage


def stage_terms(view: EngineInputs, place: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return bytes by term, without weights and moments, during the passes and during the update.

    `place` is the position of the rank in its pipeline, from 0.
    """
    strategy, profile, setup = view.setup.strategy, view.profile, view.setup
    assert isinstance(strategy, PipelineOptions)
    assert profile.division is not None
    num_micro_batches = setup.grad_accum_steps
    spans = profile.division.stages_of_rank(place, strategy, setup.traits)
    num_in_flight = in_flight(strategy, setup.traits, place, num_micro_batches)
    saved = [_saved(view, span) for span in spans]
    kept = sum(count * size for count, size in zip(num_in_flight, saved, strict=True))
    # The first backward pass allocates the gradients; in later ones they exist, with as many micro-batches in flight.
    first = kept + max(_peak_of_stage(view, span, keeps=True) - size for span, size in zip(spans, saved, strict=True))
    if sum(num_in_flight) == num_micro_batches * len(spans):
        kept -= min(saved)
    later = kept + max(_peak_of_stage(view, span, keeps=False) - size for span, size in zip(spans, saved, strict=True))
    gradients = view.states.gradients if later + view.states.gradients > first else 0
    # Each stage has a receive buffer for every micro-batch, one for the gradient of each output, and keeps its sent
    # tensors until they have arrived.
    num_sending = sum(span.end < profile.num_blocks for span in spans)
    num_buffers = (sum(span.begin > 0 for span in spans) + num_sending) * num_micro_batches + 2 * num_sending
    received = num_buffers * profile.hidden_bytes
    passes = {"activations": later if gradients else first, COMMUNICATION: received, GRADIENTS: gradients}
    sent = min(BUCKET_BYTES, view.states.gradients) if setup.data_world_size > 1 else 0
    return passes, {COMMUNICATION: received + sent, GRADIENTS: view.states.gradients}


def _saved(view: EngineInputs, span: BlockSpan) -> int:
    """Return the activations of a stage for one micro-batch, its output included."""
    profile = view.profile
    inside = sum(profile.saved_by_block[span.begin : span.end])
    after = profile.saved_bytes - profile.saved_before - sum(profile.saved_by_block)
    first = profile.saved_before if span.begin == 0 else 0
    return inside + first + (after if span.end == profile.num_blocks else profile.hidden_bytes)


def _peak_of_stage(view: EngineInputs, span: BlockSpan, *, keeps: bool) -> int:
    """Return the peak memory of one micro-batch in a stage, in its forward or backward pass.

    This is the peak of the whole model's passes within the blocks of the stage, minus the activations of earlier
    blocks.

    New gradients are kept if `keeps`; else they are added to existing ones and freed.
    """
    profile, timeline = view.profile, view.profile.timeline
    until = timeline.positions("gradient")
    if keeps:
        blocks = {number: parameter.block for number, parameter in enumerate(profile.parameters)}
        inside = range(span.begin, span.end)
        until = {number: view.end if blocks[number] in inside else at for number, at in until.items()}
    level = timeline.level(view.rounding, without=timeline.gradients)
    for delta in view.gradients(until):
        level[delta.position :] += delta.num_bytes
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
