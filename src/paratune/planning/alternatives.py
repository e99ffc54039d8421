"""Suggests changes of the configuration: a lower precision, activation checkpointing, another strategy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paratune.base.units import format_bytes, format_share
from paratune.config.load import LoadedConfig
from paratune.config.traits import Traits
from paratune.planning.advice import span_text
from paratune.planning.enumerate import ALL_STRATEGIES, PlanRequest, list_options
from paratune.planning.predict import JobPredictor, Prediction

_PRECISIONS = ("tf32", "bf16")
"""Precisions with the range of fp32, which need no loss scale."""
_CHECKPOINTING = {"train.activation_checkpointing": 1}
_MIN_SAVED_SHARE = 0.1
"""Smallest share of the step time, or of the memory, that a suggested precision must save."""


@dataclass(frozen=True)
class Alternatives:
    """Predicts options that the configuration does not contain."""

    predictor: JobPredictor
    loaded: LoadedConfig
    request: PlanRequest
    outside_traits: Callable[[str], Traits]

    def precisions(self, best: Prediction) -> Iterator[str]:
        """Yield a sentence about lower precisions of the recommended option, if the configuration has fp32."""
        if best.setup.precision.name != "fp32" or not self.predictor.machine.is_cuda or best.step is None:
            return
        texts = []
        for precision in _PRECISIONS:
            for other in self._predict(best.option.name, best.setup.num_ranks, best.setup.num_nodes, precision):
                if other.fits is False or other.step is None:
                    continue
                saved = 1 - other.step.value / best.step.value
                freed = 1 - other.memory.total / best.memory.total
                if max(saved, freed) >= _MIN_SAVED_SHARE:
                    texts.append(
                        f"precision: {precision} takes {span_text(other.step)} a step ({format_share(saved)} less) and "
                        f"{format_bytes(other.memory.total)}"
                    )
        if texts:
            yield f"{'; '.join(texts)}. It is another experiment: compare the scores over several seeds."

    def fitting_change(self, predictions: Sequence[Prediction]) -> Iterator[str]:
        """Yield a sentence about the first change with which the job fits, if no planned option fits."""
        if not predictions or any(prediction.fits is not False for prediction in predictions):
            return
        most = max(predictions, key=lambda prediction: prediction.setup.num_ranks).setup
        named = list(dict.fromkeys(prediction.option.name for prediction in predictions))
        tries: tuple[tuple[str, Sequence[str], Mapping[str, Any]], ...] = (
            ("train.activation_checkpointing: 1", named, _CHECKPOINTING),
            ("another strategy", ALL_STRATEGIES, {}),
            ("another strategy and train.activation_checkpointing: 1", ALL_STRATEGIES, _CHECKPOINTING),
        )
        for change, names, settings in tries:
            for name in names:
                if name in named and not settings:
                    continue
                for other in self._predict(name, most.num_ranks, most.num_nodes, most.precision.name, settings):
                    if other.fit == "yes":
                        yield (
                            f"With {change} it fits: {other.in_words} takes {format_bytes(other.memory.total)}"
                            + ("" if other.step is None else f" and {span_text(other.step)} a step")
                            + "."
                        )
                        return

    def _predict(
        self, name: str, num_ranks: int, num_nodes: int, precision: str, settings: Mapping[str, Any] | None = None
    ) -> list[Prediction]:
        request = replace(
            self.request,
            strategies=(name,),
            precisions=(precision,),
            num_ranks=(num_ranks,),
            nodes=(num_nodes,),
            are_named=True,
            settings=settings or {},
        )
        job, machine = self.predictor.job, self.predictor.machine
        options, _ = list_options(job, self.loaded, machine, request, self.outside_traits)
        return [self.predictor.predict(option) for option in options]
