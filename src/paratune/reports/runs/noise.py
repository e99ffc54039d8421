"""The noise scale of groups of runs, for verdicts."""

from collections.abc import Mapping, Sequence

from paratune.reports.runs.read import RunRecord
from paratune.reports.runs.sameness import experiment_key
from paratune.verdicts.rates import pooled_noise


def noise_scales(members: Mapping[str, Sequence[RunRecord]]) -> dict[str, float | None]:
    """Return the noise scale of each group, in samples; one without gets that of the first that trained the same.

    Args:
        members: The runs of each group, by its label.
    """
    own = {label: pooled_noise(runs) for label, runs in members.items()}
    trained = {label: {experiment_key(run) for run in runs} - {None} for label, runs in members.items()}
    return {
        label: next(
            (
                scale
                for other, scale in ((label, own[label]), *own.items())
                if scale is not None and (other == label or not trained[label].isdisjoint(trained[other]))
            ),
            None,
        )
        for label in members
    }
