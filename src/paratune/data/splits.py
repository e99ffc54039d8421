"""Cuts validation and test parts from the training rows: by share or fold, stratified by class, or by whole groups.

Imports no torch.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paratune.config.sections import SplitOptions
from paratune.data.order import IntArray, random_keys
from paratune.errors import DataError, did_you_mean

_STREAM = 2**32
"""Random stream of cuts for `random_keys`; epochs use the streams below it."""


def split_rows(
    num_rows: int, split: SplitOptions, labels: npt.NDArray[np.generic] | None, groups: Sequence[str] | None
) -> dict[str, IntArray]:
    """Return the rows of each part, ascending; every row is in exactly one part.

    The cut depends only on `split`, the number of rows and, for stratified or grouped cuts, the labels or groups.
    Sizes are exact: the largest remainders get the last rows, per class when stratified. Groups stay whole: in random
    order, each goes to the part where it brings the sizes (stratified: the class counts) closest to the shares.

    With `split.folds`, the validation part is one fold of scikit-learn's `KFold`, `StratifiedKFold`, `GroupKFold` or
    `StratifiedGroupKFold`, shuffled with the seed. `labels`, (num_rows,) class ids, are needed to stratify, and
    `groups` for `group_by`. With `split.validation` the fold is the test part, and the rest is cut by this share. The
    rows of the group `split.held_out` are the test part, too; the rest is cut without groups.

    Raises:
        DataError: A part would be empty, or the shares leave nothing to train on.
    """
    if split.held_out is not None or (split.folds is not None and split.validation is not None):
        if split.held_out is None:
            test = split_rows(num_rows, split.model_copy(update={"validation": None}), labels, groups)["validation"]
        else:
            assert groups is not None
            test = np.flatnonzero(np.asarray(groups, dtype=object) == str(split.held_out))
        rest, without = np.setdiff1d(np.arange(num_rows), test), {"held_out": None, "folds": None, "fold": None}
        if not len(test) or not len(rest):
            message = f"data.split.held_out: {split.held_out} is the value of {len(test)} of {num_rows} rows of column "
            message += f"{split.group_by}{did_you_mean(str(split.held_out), set(groups or ()))}; name one of several"
            raise DataError(message, code="data.split_empty", key="data.split.held_out", value=split.held_out)
        own_labels = None if labels is None else labels[rest]
        own_groups = [groups[row] for row in rest] if groups and split.held_out is None else None
        parts = split_rows(len(rest), split.model_copy(update=without), own_labels, own_groups)
        return {**{name: rest[rows] for name, rows in parts.items()}, "test": test}
    shares = {} if split.folds is not None else _shares(split)
    classes = np.zeros(num_rows, dtype=np.int64)
    if split.stratify:
        if labels is None or not np.issubdtype(labels.dtype, np.integer):
            message = "data.split.stratify needs class labels; remove it for a numeric target"
            raise DataError(message, code="data.split_conflict", key="data.split.stratify")
        classes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    if split.folds is not None:
        return _fold(split, classes, groups)
    part_of = (
        _deal_rows(classes, shares, split.seed) if groups is None else _deal_groups(classes, groups, shares, split.seed)
    )
    parts = {name: np.flatnonzero(part_of == number).astype(np.int64) for number, name in enumerate(shares)}
    units = f"{num_rows} rows" + ("" if groups is None else f" in {len(set(groups))} groups")
    if empty := [name for name, rows in parts.items() if len(rows) == 0]:
        of_part = f"the {empty[0]} part of {units} would be empty (its share is {shares[empty[0]]:g})"
        message = f"data.split: {of_part}; give it a larger share, or more data"
        raise DataError(message, code="data.split_empty", key="data.split", name=empty[0])
    return parts


def _fold(split: SplitOptions, classes: IntArray, groups: Sequence[str] | None) -> dict[str, IntArray]:
    from sklearn import model_selection as cuts  # loads SciPy, which other cuts do not need

    assert split.folds is not None
    assert split.fold is not None
    makers = (cuts.KFold, cuts.GroupKFold, cuts.StratifiedKFold, cuts.StratifiedGroupKFold)
    maker = makers[2 * bool(split.stratify) + (groups is not None)]
    folds = maker(split.folds, shuffle=True, random_state=split.seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a class with fewer rows than folds; a part without a class is logged
            parts = list(folds.split(np.zeros((len(classes), 1)), classes, groups))
    except ValueError as error:
        units = f"{len(classes)} rows" if groups is None else f"{len(set(groups))} groups"
        if split.stratify:
            units = f"rows of which no class has more than {np.bincount(classes).max()}"
        message = f"data.split.folds: {units} cannot be divided into {split.folds} folds; use fewer folds"
        raise DataError(message, code="data.split_empty", key="data.split.folds", value=split.folds) from error
    train, validation = parts[split.fold]
    return {"train": train.astype(np.int64), "validation": validation.astype(np.int64)}


def _shares(split: SplitOptions) -> dict[str, float]:
    held_out = {name: share for name in ("validation", "test") if (share := getattr(split, name)) is not None}
    train = 1.0 - sum(held_out.values())
    if train <= 1e-9:
        message = f"data.split: the shares of validation and test sum to {1 - train:g}; no row is left for training"
        raise DataError(message, code="data.split_empty", key="data.split")
    return {"train": train, **held_out}


def _deal_rows(classes: IntArray, shares: dict[str, float], seed: int) -> IntArray:
    keys = random_keys(len(classes), seed, _STREAM)
    part_of = np.empty(len(classes), dtype=np.int64)
    for number in range(int(classes.max(initial=0)) + 1):
        members = np.flatnonzero(classes == number)
        members = members[np.argsort(keys[members], kind="stable")]
        sizes = largest_remainder(len(members), list(shares.values()))
        part_of[members] = np.repeat(np.arange(len(shares)), sizes)
    return part_of


def largest_remainder(total: int, shares: Sequence[float]) -> list[int]:
    """Return integers that sum to `total` and each differ from `total * share` by less than one.

    Hamilton's method; equal remainders go to the earlier share.
    """
    quotas = [round(total * share, 9) for share in shares]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda number: (sizes[number] - quotas[number], number))
    for number in by_remainder[: total - sum(sizes)]:
        sizes[number] += 1
    return sizes


def _deal_groups(classes: IntArray, groups: Sequence[str], shares: dict[str, float], seed: int) -> IntArray:
    """Return the part of each row. Groups are numbered in order of first occurrence, then shuffled by random keys."""
    numbers: dict[str, int] = {}
    group_of = np.asarray([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)
    num_groups, num_classes = len(numbers), int(classes.max(initial=0)) + 1
    members = np.zeros((num_groups, num_classes))
    np.add.at(members, (group_of, classes), 1)
    class_sizes = members.sum(axis=0)
    # Shares of each class, not counts: a rare class has the same weight as a frequent one.
    aim = np.asarray(list(shares.values()))[:, None] * np.ones(num_classes)
    members /= class_sizes
    held_shares = np.zeros((len(shares), num_classes))
    part_of_group = np.empty(num_groups, dtype=np.int64)
    order = np.argsort(random_keys(num_groups, seed, _STREAM), kind="stable")
    for num_assigned, group in enumerate(order):
        # Change of the squared distance to the aim, |h + m - aim|^2 - |h - aim|^2, for each part.
        cost = (members[group] * (2 * (held_shares - aim) + members[group])).sum(axis=1)
        empty = ~held_shares.any(axis=1)
        if num_groups - num_assigned <= int(empty.sum()):
            cost = np.where(empty, cost, np.inf)
        part = int(np.argmin(cost))
        part_of_group[group] = part
        held_shares[part] += members[group]
    return part_of_group[group_of]
