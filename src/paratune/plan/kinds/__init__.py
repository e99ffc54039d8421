"""The arithmetic of plans by kind of strategy: one module a kind, one table of them all."""

from paratune.plan.kinds.by_traits import BY_TRAITS
from paratune.plan.kinds.deepspeed import DEEPSPEED
from paratune.plan.kinds.fsdp import FSDP
from paratune.plan.kinds.pipeline import PIPELINE
from paratune.plan.kinds.plan_functions import PlanFunctions
from paratune.plan.kinds.replicated import DDP, SINGLE, ZERO1
from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import States, ranks_that_differ
from paratune.plan.traffic import Transfer
from paratune.plan.work import StepSeconds, Work

KINDS: dict[str, PlanFunctions] = {
    "single": SINGLE,
    "ddp": DDP,
    "zero1": ZERO1,
    "zero2": FSDP,
    "zero3": FSDP,
    "hsdp": FSDP,
    "pipeline": PIPELINE,
    "deepspeed": DEEPSPEED,
}
"""By `strategy.kind`, of the strategies in this package."""


def kind_of(setup: PredictionSetup) -> PlanFunctions:
    """Return what plans know of the strategy of a setup; of one from outside this package, what its traits imply."""
    return KINDS.get(setup.strategy.kind, BY_TRAITS)


def states(profile: Profile, setup: PredictionSetup) -> States:
    """Return the states of the fullest rank; without buffers of the model (`profile.num_buffer_bytes`).

    Raises:
        ConfigError: A pipeline has fewer blocks than stages.
    """
    ranks = (states_of_rank(profile, setup, rank) for rank in ranks_that_differ(setup))
    return max(ranks, key=lambda each: (each.device, each.host))


def states_of_rank(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Return the states of one rank.

    Args:
        profile: Of a micro-batch of any size.
        setup: The way of running it.
        rank: From 0; see `ranks_that_differ`.
    """
    return kind_of(setup).states(profile, setup, rank)


def step_transfers(profile: Profile, setup: PredictionSetup, rank: int = 0) -> list[Transfer]:
    """Return the collectives of one rank in one optimizer step.

    Args:
        profile: Of one micro-batch of the setup; of a pipeline with its division.
        setup: The way of running the job.
        rank: From 0; the ranks of a pipeline differ.
    """
    transfers = kind_of(setup).transfers(profile, setup, rank)
    return [each for each in transfers if each.num_ranks > 1 and each.num_bytes > 0]


def spread(work: Work) -> StepSeconds:
    """Return what the strategy of the setup makes of the step.

    Raises:
        UnknownFigure: The machine has no figure for a link that is needed.
    """
    return kind_of(work.setup).seconds(work)
