"""How a pipeline would cut the model: costs of blocks and the weights that each needs, found on the meta device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paratune.config.feasibility.rules import stage_reasons
from paratune.config.feasibility.words import refuse
from paratune.config.strategy_sections import PipelineOptions
from paratune.config.task_sections import Task
from paratune.config.traits import Traits
from paratune.models.task_model import find_blocks
from paratune.plan.build import build_model
from paratune.plan.meta import on_meta
from paratune.plan.shims import Kernels
from paratune.precision import Precision
from paratune.stages.balance import as_told, balanced
from paratune.stages.cut import BlockSpan, CutModel


@dataclass(frozen=True)
class Division:
    """What decides how a model is cut, and what each part then holds."""

    costs: tuple[int, ...]
    """Floating-point operations of a forward pass, block by block; embeddings with the first, head with the last."""
    used: tuple[frozenset[str], ...]
    """Of each block, as a stage by itself: names of the parameters on which what it gives depends."""
    needed: tuple[frozenset[str], ...]
    """Those that it has to have: it cannot run without them."""

    def spans(self, strategy: PipelineOptions, traits: Traits) -> list[BlockSpan]:
        """Return the blocks of each stage; what `balance: measured` would find is taken to be what is counted.

        Raises:
            ConfigError: There are not as many blocks.
        """
        num_stages = strategy.stages * traits.stages_per_rank
        refuse(stage_reasons(strategy.stages, traits.stages_per_rank, strategy.balance, len(self.costs)))
        if isinstance(strategy.balance, list):
            return as_told(strategy.balance)
        return balanced([float(cost) for cost in self.costs], num_stages) or []

    def of_rank(self, place: int, strategy: PipelineOptions, traits: Traits) -> list[BlockSpan]:
        """Return the stages of a rank of the pipeline, which has those of every `stages`-th place from its own on."""
        return self.spans(strategy, traits)[place :: strategy.stages]

    def uses(self, spans: Sequence[BlockSpan]) -> frozenset[str]:
        """Return the names of the parameters that stages train."""
        return frozenset().union(*(self.used[block] for span in spans for block in range(span.begin, span.end)))

    def holds(self, spans: Sequence[BlockSpan]) -> frozenset[str]:
        """Return the names of all parameters whose memory stages need."""
        return self.uses(spans) | frozenset().union(*(self.needed[span.begin] for span in spans))


def divide(hf_config: Any, task: Task, precision: Precision, attention: str | None = None) -> Division:
    """Find out what a pipeline would know of a model, by running it block by block on the meta device.

    That the parts give together what the whole model gives, which the strategy tries at its start, cannot be tried
    without numbers.

    Raises:
        Exception: Whatever a model raises that cannot run on the meta device.
    """

    def run() -> Division:
        model = build_model(hf_config, task, precision, attention)
        with Kernels(on_cuda=False):
            costs, used, needed = CutModel(model, find_blocks(model)).block_by_block()
        return Division(tuple(costs), tuple(map(frozenset, used)), tuple(map(frozenset, needed)))

    return on_meta(run)
