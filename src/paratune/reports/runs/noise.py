"""The noise scale of groups of runs, for verdicts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from paratune.records.efficiency import NoiseKind
from paratune.reports.runs.read import RunRecord
from paratune.reports.runs.sameness import experiment_key
from paratune.verdicts import Group
from paratune.verdicts.rates import pooled_noise


def with_noise(groups: Iterable[Group], members: Mapping[str, Sequence[RunRecord]], kind: NoiseKind) -> list[Group]:
    """Return groups with their noise scale; one without gets that of the first that trained the same.

    Args:
        groups: The groups of a comparison.
        members: The runs of each group, by its label.
        kind: That of `noise_kind` of all runs of the comparison.
    """
    scales = _noise_scales(members, kind)
    return [replace(group, noise_scale=scales[group.label], noise_kind=kind) for group in groups]


def _noise_scales(members: Mapping[str, Sequence[RunRecord]], kind: NoiseKind) -> dict[str, float | None]:
    own = {label: pooled_noise(runs, kind) for label, runs in members.items()}
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
