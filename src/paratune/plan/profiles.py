"""Profiles of micro-batches of one job, each traced once."""

from paratune.config.strategy_sections import PipelineStrategy
from paratune.plan.job import Job
from paratune.plan.profile import Profile, Shape, profile
from paratune.plan.setup import Setup


class Profiles:
    """Knows what was traced; one for each job."""

    def __init__(self, job: Job, *, is_cuda: bool) -> None:
        self._job = job
        self._is_cuda = is_cuda
        self._known: dict[object, Profile] = {}

    def of(self, shape: Shape, setup: Setup) -> Profile:
        """Return the profile of a micro-batch under a setup."""
        is_cut = isinstance(setup.strategy, PipelineStrategy)
        key = (shape, setup.precision, setup.activation_checkpointing, setup.attention, is_cut)
        if key not in self._known:
            job = self._job
            self._known[key] = profile(
                job.hf_config,
                job.task,
                shape,
                setup.precision,
                on_cuda=self._is_cuda,
                entry=job.entry,
                activation_checkpointing=setup.activation_checkpointing,
                frozen_encoder=job.config.train.freeze_encoder,
                attention=setup.attention,
                with_division=is_cut,
            )
        return self._known[key]
