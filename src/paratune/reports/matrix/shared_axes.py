"""Gives matrices with different axes the same axes: the shared ones, and one axis for the values of all others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from paratune.records.sweep import Axis
from paratune.reports.matrix.outcomes import Outcome, SweepReport

NONE = "as given"
"""The value on an axis that a matrix does not have."""
_LABEL = "settings"


def identity(axis: Axis) -> tuple[str, str, bool]:
    """Return the fields by which an axis is the same in two matrices."""
    return axis.key, axis.label, axis.is_seed


def with_shared_axes(reports: Sequence[SweepReport]) -> list[SweepReport]:
    """Return the matrices with the axes that all share, and the seeds; other values become one axis.

    The runs of a matrix' own baseline come first: joined, each is compared with the first of its matrix.
    """
    records = [report.record for report in reports]
    identities = [{identity(axis) for axis in record.axes} for record in records]
    axes_but_seeds = [axis for axis in records[0].axes if not axis.is_seed]
    shared = [axis for axis in axes_but_seeds if all(identity(axis) in entry for entry in identities)]
    labels = {axis.label for axis in shared}
    seeds = next((axis for record in records for axis in record.axes if axis.is_seed), None)
    own_axes = [[axis for axis in record.axes if axis.label not in labels and not axis.is_seed] for record in records]
    taken = labels | {axis.label for axes in own_axes for axis in axes}
    label = _LABEL if _LABEL not in taken else f"all {_LABEL}"
    keys = tuple(dict.fromkeys(key for axes in own_axes for axis in axes for key in axis.keys))
    names = [
        _settings(axes, outcome) for axes, report in zip(own_axes, reports, strict=True) for outcome in report.outcomes
    ]
    settings = Axis(label, label, {name: name for name in names}, keys=keys)
    # Values that are now on one axis are all shown: nothing is chosen among them.
    in_all = labels.intersection(*(record.select_per for record in records))
    per = tuple(name for name in records[0].select_per if name in in_all)
    is_per_setting = any(name not in labels for record in records for name in record.select_per)
    changed_reports = []
    for report, axes in zip(reports, own_axes, strict=True):
        record = report.record
        new_axes = [next(axis for axis in record.axes if axis.label == entry.label) for entry in shared]
        seed = next((axis for axis in record.axes if axis.is_seed), None)
        if seeds is not None:
            new_axes.append(seed or replace(seeds, values={NONE: NONE}))
        no_seed = {seeds.label: NONE} if seeds is not None and seed is None else {}
        baseline = record.baseline.items()
        outcomes = [
            _moved(outcome, new_axes, {label: _settings(axes, outcome), **no_seed})
            for outcome in sorted(report.outcomes, key=lambda outcome: not baseline <= outcome.cell.values.items())
        ]
        change = partial(_published_values, axes, report, label)
        published = None if record.published is None else record.published.with_values(change)
        changed = replace(
            record,
            axes=(*new_axes, settings),
            select_per=(*per, label) if is_per_setting else per,
            baseline={},
            cells=tuple(outcome.cell for outcome in outcomes),
            published=published,
        )
        changed_reports.append(replace(report, record=changed, outcomes=tuple(outcomes)))
    return changed_reports


def _settings(axes: Sequence[Axis], outcome: Outcome) -> str:
    """Return the values of a run on some axes as one text: "precision fp16, offload none"."""
    shown = [f"{axis.label} {axis.values[outcome.cell.values[axis.label]]}" for axis in axes]
    return ", ".join(shown) or NONE


def _moved(outcome: Outcome, axes: Sequence[Axis], new_values: Mapping[str, str]) -> Outcome:
    """Return a run with its values on some axes, and new values."""
    labels = {axis.label for axis in axes}
    values = {label: name for label, name in outcome.cell.values.items() if label in labels}
    return replace(outcome, cell=replace(outcome.cell, values={**values, **new_values}))


def _published_values(
    axes: Sequence[Axis], report: SweepReport, label: str, values: Mapping[str, str]
) -> Mapping[str, str] | None:
    """Return published values on the new axes; None when they do not identify one value of the combined axis."""
    labels = {axis.label for axis in axes}
    settings = {
        _settings(axes, outcome) for outcome in report.outcomes if values.items() <= outcome.cell.values.items()
    }
    if len(settings) != 1:
        return None
    return {**{name: value for name, value in values.items() if name not in labels}, label: settings.pop()}
