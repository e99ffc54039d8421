"""Strategy, precision, ranks and micro-batches of a job: the input of all predictions."""

from dataclasses import dataclass
from typing import Literal

from paratune.config.sections import OptimizerName
from paratune.config.strategy_sections import Strategy
from paratune.config.traits import Traits
from paratune.precision import Precision


@dataclass(frozen=True)
class PredictionSetup:
    """The inputs that differ between the predictions of a plan; model, task and data are the same."""

    strategy: Strategy
    """With its options."""
    traits: Traits
    """Of that strategy with those options."""
    precision: Precision
    num_ranks: int
    ranks_per_node: int
    """Of `num_ranks`; equal on all nodes."""
    micro_batch_size: int
    """Rows of one micro-batch of a rank."""
    grad_accum_steps: int
    """Micro-batches of a rank in one optimizer step."""
    activation_checkpointing: int | None = None
    """As `train.activation_checkpointing`."""
    layout: Literal["packed", "padded"] = "packed"
    """Computed tokens: T tokens of joined rows, or B x S of padded rows."""
    optimizer: OptimizerName = "adamw"
    """As `train.optimizer`; an own optimizer counts as AdamW, with its own bytes of states."""
    own_state_bytes: int | None = None
    """Bytes of the states of an own optimizer for each trained number."""
    attention: str | None = None
    """transformers' name of it, such as eager or sdpa; the model's own choice where None."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a number of the weights that are updated, and of each moment."""
        return self.precision.param_dtype.itemsize

    @property
    def keeps_16_bits(self) -> bool:
        """Whether passes read copies of the weights in 16 bits, in which activations and gradients are then too."""
        return self.precision.pass_dtype is not None

    @property
    def reduces_in_wider_dtype(self) -> bool:
        """Whether gradients are summed over ranks in more bits than they come in, as FSDP2 does those of 16 bits."""
        return self.keeps_16_bits and self.traits.reduces_in_fp32

    @property
    def num_reductions(self) -> int:
        """How often a step reduces each gradient: after each micro-batch, or once."""
        return self.grad_accum_steps if self.traits.reduces_each_micro_step else 1

    @property
    def num_nodes(self) -> int:
        return -(-self.num_ranks // self.ranks_per_node)

    @property
    def data_world_size(self) -> int:
        """Ranks that see different samples."""
        return self.num_ranks // self.traits.ranks_per_replica

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step."""
        return self.micro_batch_size * self.grad_accum_steps * self.data_world_size
