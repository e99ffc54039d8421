"""Profiles of micro-batches of one job: few are traced, the others follow from those."""

from dataclasses import replace
from typing import Any

from paratune.errors import ParatuneError
from paratune.plan.affine import NotAffineError, between
from paratune.plan.approximate import approximate
from paratune.plan.division import Division
from paratune.plan.job import PlannedJob
from paratune.plan.profile import Profile, Shape, profile
from paratune.plan.setup import PredictionSetup

ANCHORS = (2, 6)
"""Rows of the two traces from which those of more rows follow; a single one may take other ways through the model. The
further apart, the less the labelled tokens of a masked LM are off, whose number is rounded."""


class Profiles:
    """Knows what was traced; one for each job."""

    def __init__(self, job: PlannedJob, *, is_cuda: bool) -> None:
        self._job = job
        self._is_cuda = is_cuda
        self._known: dict[object, Profile] = {}
        self._divisions: dict[object, Division | None] = {}

    def of(self, shape: Shape, setup: PredictionSetup) -> Profile:
        """Return the profile of a micro-batch under a setup."""
        is_cut = setup.traits.cuts_blocks
        key = (shape, setup.precision, setup.activation_checkpointing, setup.attention, is_cut, _keeps_copies(setup))
        if key not in self._known:
            found = self._followed(shape, setup) or self._traced(shape, setup)
            self._known[key] = self._divided(found, setup) if is_cut else found
        return self._known[key]

    def _divided(self, found: Profile, setup: PredictionSetup) -> Profile:
        """Return the profile with the model's division, which takes as long to find as a trace, and is found once."""
        key = setup.precision, setup.attention
        division = self._divisions.setdefault(key, found.division)
        return replace(found, division=division)

    def _followed(self, shape: Shape, setup: PredictionSetup) -> Profile | None:
        """Return what follows from the traces of other numbers of rows; None where nothing does."""
        rows, longest = len(shape.lengths), max(shape.lengths)
        if rows in ANCHORS or rows < ANCHORS[0] or shape.lengths[:-1] != (longest,) * (rows - 1):
            return None
        low, high = (replace(shape, lengths=(longest,) * (each - 1) + shape.lengths[-1:]) for each in ANCHORS)
        try:
            return between(self.of(low, setup), self.of(high, setup), at=ANCHORS, rows=rows)
        except NotAffineError:
            return None

    def _lacks_division(self, setup: PredictionSetup) -> bool:
        is_cut = setup.traits.cuts_blocks
        return is_cut and (setup.precision, setup.attention) not in self._divisions

    def _traced(self, shape: Shape, setup: PredictionSetup) -> Profile:
        job = self._job
        options: dict[str, Any] = {
            "activation_checkpointing": setup.activation_checkpointing,
            "frozen_encoder": job.config.train.freeze_encoder,
            "with_division": self._lacks_division(setup),
        }
        model = job.hf_config, job.task, shape, setup.precision
        try:
            return profile(
                *model,
                on_cuda=self._is_cuda,
                entry=job.entry,
                attention=setup.attention,
                with_working_weights=_keeps_copies(setup),
                **options,
            )
        except ParatuneError:
            raise
        except Exception as error:  # whatever code of a model makes of tensors without numbers
            return approximate(*model, why=_said(error), **options)


def _keeps_copies(setup: PredictionSetup) -> bool:
    """Say whether the strategy holds copies of its weights in the dtype of autocast."""
    return setup.traits.keeps_working_weights and setup.precision.autocast_dtype is not None


def _said(error: Exception) -> str:
    """Return the first line of an error, with its kind."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
