"""Profiles of the micro-batches of one job: few are traced, the others are extrapolated from these."""

from dataclasses import replace
from typing import Any

from paratune.errors import ParatuneError
from paratune.planning.affine import NotAffineError, extrapolate_profile
from paratune.planning.approximate import approximate
from paratune.planning.division import Division
from paratune.planning.job import PlannedJob
from paratune.planning.profile import Profile, Shape, profile
from paratune.planning.setup import PredictionSetup

TRACED_ROWS = (2, 6)
"""Rows of the two traces from which the profiles of more rows are extrapolated. Not 1, because a model may run other
operations for a single row. The larger the distance, the smaller the error from rounding the labelled tokens of a
masked LM."""


class Profiles:
    """Traces and keeps the profiles of one job."""

    def __init__(self, job: PlannedJob, *, is_cuda: bool) -> None:
        self._job = job
        self._is_cuda = is_cuda
        self._profiles: dict[object, Profile] = {}
        self._divisions: dict[object, Division | None] = {}

    def of(self, shape: Shape, setup: PredictionSetup) -> Profile:
        """Return the profile of a micro-batch under a setup."""
        is_cut = setup.traits.cuts_blocks
        key = (shape, setup.precision, setup.activation_checkpointing, setup.attention, is_cut, _keeps_copies(setup))
        if key not in self._profiles:
            profile = self._extrapolated(shape, setup) or self._trace(shape, setup)
            self._profiles[key] = self._with_division(profile, setup) if is_cut else profile
        return self._profiles[key]

    def _with_division(self, profile: Profile, setup: PredictionSetup) -> Profile:
        """Return the profile with the division of the model, which is computed once and takes as long as a trace."""
        key = setup.precision, setup.attention
        division = self._divisions.setdefault(key, profile.division)
        return replace(profile, division=division)

    def _extrapolated(self, shape: Shape, setup: PredictionSetup) -> Profile | None:
        """Return the profile extrapolated from two other numbers of rows, or None if that is impossible."""
        rows, longest = len(shape.lengths), max(shape.lengths)
        if rows in TRACED_ROWS or rows < TRACED_ROWS[0] or shape.lengths[:-1] != (longest,) * (rows - 1):
            return None
        low, high = (
            replace(shape, lengths=(longest,) * (num_rows - 1) + shape.lengths[-1:]) for num_rows in TRACED_ROWS
        )
        try:
            return extrapolate_profile(self.of(low, setup), self.of(high, setup), at=TRACED_ROWS, rows=rows)
        except NotAffineError:
            return None

    def _lacks_division(self, setup: PredictionSetup) -> bool:
        is_cut = setup.traits.cuts_blocks
        return is_cut and (setup.precision, setup.attention) not in self._divisions

    def _trace(self, shape: Shape, setup: PredictionSetup) -> Profile:
        job = self._job
        options: dict[str, Any] = {
            "activation_checkpointing": setup.activation_checkpointing,
            "train": job.config.train,
            "model_options": job.config.model,
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
        except Exception as error:  # the model's code may raise anything for tensors without values
            return approximate(*model, why=_first_line(error), **options)


def _keeps_copies(setup: PredictionSetup) -> bool:
    """Return whether the strategy keeps copies of its weights in the dtype of autocast."""
    return setup.traits.keeps_working_weights and setup.precision.autocast_dtype is not None


def _first_line(error: Exception) -> str:
    """Return class and first line of an error."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
