"""The division of a model into pipeline stages: cost and weights of each block, computed on the meta device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paratune.config.feasibility.rules import stage_reasons
from paratune.config.problems import refuse
from paratune.config.sections import ModelOptions
from paratune.config.strategy_sections import PipelineOptions
from paratune.config.task_sections import Task
from paratune.config.traits import Traits
from paratune.models.task_model import find_blocks
from paratune.planning.build import build_model
from paratune.planning.meta import on_meta
from paratune.planning.shims import Kernels
from paratune.precision import Precision
from paratune.stages.balance import balance_blocks, spans_of_sizes
from paratune.stages.cut import BlockSpan, CutModel


@dataclass(frozen=True)
class Division:
    """Costs and weights of blocks, which determine the stages and the parameters of each stage."""

    costs: tuple[int, ...]
    """Floating-point operations of a forward pass, block by block; embeddings with the first, head with the last."""
    used: tuple[frozenset[str], ...]
    """For each block, as a separate stage: names of the parameters on which its output depends."""
    needed: tuple[frozenset[str], ...]
    """For each block: names of the parameters without which it cannot run."""

    def spans(self, strategy: PipelineOptions, traits: Traits) -> list[BlockSpan]:
        """Return the blocks of each stage; for `balance: measured` the counted operations replace measured times.

        Raises:
            ConfigError: The model has fewer blocks than stages.
        """
        num_stages = strategy.stages * traits.stages_per_rank
        refuse(stage_reasons(strategy.stages, traits.stages_per_rank, strategy.balance, len(self.costs)))
        if isinstance(strategy.balance, list):
            return spans_of_sizes(strategy.balance)
        return balance_blocks([float(cost) for cost in self.costs], num_stages) or []

    def stages_of_rank(self, place: int, strategy: PipelineOptions, traits: Traits) -> list[BlockSpan]:
        """Return the stages of a rank: every `stages`-th stage, beginning with number `place`."""
        return self.spans(strategy, traits)[place :: strategy.stages]

    def uses(self, spans: Sequence[BlockSpan]) -> frozenset[str]:
        """Return the names of the parameters that stages train."""
        return frozenset().union(*(self.used[block] for span in spans for block in range(span.begin, span.end)))

    def holds(self, spans: Sequence[BlockSpan]) -> frozenset[str]:
        """Return the names of all parameters whose memory stages need."""
        return self.uses(spans) | frozenset().union(*(self.needed[span.begin] for span in spans))


def divide(
    hf_config: Any,
    task: Task,
    precision: Precision,
    attention: str | None = None,
    model_options: ModelOptions | None = None,
) -> Division:
    """Return costs and weights of the blocks of a model, which runs block by block on the meta device.

    Whether the stages together give the output of the whole model is not checked: this needs values.

    Raises:
        Exception: The model cannot run on the meta device.
    """

    def run() -> Division:
        model = build_model(hf_config, task, precision, attention, model_options)
        with Kernels(on_cuda=False):
            costs, used, needed = CutModel(model, find_blocks(model)).analyse_blocks()
        return Division(tuple(costs), tuple(map(frozenset, used)), tuple(map(frozenset, needed)))

    return on_meta(run)
