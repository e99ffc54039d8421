"""The predictions of each kind of strategy: a module for each kind, and the table of all kinds."""

from paratune.planning.kinds.deepspeed import DEEPSPEED
from paratune.planning.kinds.fsdp import FSDP
from paratune.planning.kinds.pipeline import PIPELINE
from paratune.planning.kinds.replicated import DDP, SINGLE, ZERO1
from paratune.planning.profile import Profile
from paratune.planning.states import PredictionSetup, States
from paratune.planning.work import PlanFunctions, Transfer

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
"""The strategies of this package, by `strategy.kind`."""


def states_of_rank(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Return the states of one rank, from 0. The micro-batch of the profile has any size."""
    return KINDS[setup.strategy.kind].states(profile, setup, rank)


def step_transfers(profile: Profile, setup: PredictionSetup, rank: int = 0) -> list[Transfer]:
    """Return the collectives of a rank in one optimizer step; the ranks of a pipeline differ.

    The profile of a pipeline must have the division into stages.
    """
    transfers = KINDS[setup.strategy.kind].transfers(profile, setup, rank)
    return [transfer for transfer in transfers if transfer.num_ranks > 1 and transfer.num_bytes > 0]
