"""Probes: runs of a few steps that are only timed."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from paratune.config.check import check
from paratune.config.differences import flatten
from paratune.config.load import LoadedConfig
from paratune.config.section import Positive, Section
from paratune.config.sections import Config
from paratune.sweeps.matrix_file import MatrixFile

PROBE = "probe"


class ProbeLength(Section):
    """Length of a probe."""

    steps: Positive = 20
    """Optimizer steps, warm-up included."""
    warmup_steps: Annotated[int, Field(ge=0)] = 5
    """The first of them, which are left out of medians and rates."""

    @model_validator(mode="after")
    def _times_steps(self) -> "ProbeLength":
        if self.warmup_steps >= self.steps:
            order = f"warmup_steps: {self.warmup_steps} must be less than steps: {self.steps}"
            raise ValueError(f"{order}; later steps are timed")
        return self


def read_probe(file: MatrixFile, content: Any, at: str) -> ProbeLength | None:
    """Return the length of a probe from a mapping, or true for the defaults; None for a full run (false or null)."""
    if content is None or content is False:
        return None
    return file.section(ProbeLength, {} if content is True else content, at) or ProbeLength()


def as_probe(loaded: LoadedConfig, probe: ProbeLength, *, reads_all: bool = False) -> LoadedConfig:
    """Return a configuration that takes the first steps of a run, without evaluation and checkpoints.

    A longer warm-up of the learning rate is cut to the length of the probe: the rate rises in all steps and stays below
    the peak, as in the run.

    Args:
        reads_all: Whether the sets that a probe does not need are read too, so that their tokens are cached.
    """
    values = deepcopy(loaded.values)
    train, evaluate, data = values["train"], values["evaluate"], values["data"]
    warmup = None if train["warmup_steps"] is None else min(train["warmup_steps"], probe.steps)
    # The steps of a checkpoint of the Trainer would count as steps of the probe.
    train |= {"epochs": None, "max_steps": probe.steps, "warmup_steps": warmup, "continue_trainer": False}
    evaluate |= {"every": "never", "steps": None, "best": None, "patience": None, "min_delta": 0.0}
    values["checkpoint"] |= {"every": "never", "steps": None}
    values["measure"] |= {"probe": True, "warmup_steps": probe.warmup_steps}
    if not reads_all:
        data |= {"validation": None, "test": None, "extra": {}, "predict": {}}
        cut: Mapping[str, Any] = data["split"] or {}
        data["max_rows"] |= {name: None for name in ("validation", "test") if cut.get(name) is None}
    config = Config.model_validate(values)
    if not reads_all and check(config):  # an option of the sets that are left out now, such as the revision of one
        return as_probe(loaded, probe, reads_all=True)
    plain = config.model_dump(mode="json", by_alias=True)
    before, after = flatten(loaded.values), flatten(plain)
    origin = {key: origin for key, origin in loaded.origin.items() if key in after}
    origin |= {key: PROBE for key, value in after.items() if before.get(key) != value}
    return replace(loaded, config=config, values=plain, origin=origin)
