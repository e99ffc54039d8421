"""The order of runs in time, and the effect of a drift of the machine on the comparison of their speeds.

A machine that becomes slower while runs are made changes the speed of the later ones. The runs of each configuration
show how much: their rates are regressed on covariates (the place in time, or the session; the load by other programs).
The change of a configuration is then adjusted as in an analysis of covariance. Its variance contains that of the slope,
which is large when all runs of one side came before all runs of the other. A drift may have any shape, so in this case
the regression is on powers of the place, too.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from paratune.records.finished import RunRecord
from paratune.verdicts import special

Floats = npt.NDArray[np.float64]
ADJUST_BELOW = 0.1  # p-value of "no drift" below which changes are adjusted, also where runs are interleaved
WARN_BELOW = 0.05
LEAST_GAP_S = 3600.0  # least gap between two sessions: from the end of a run to the start of the next one
LEAST_LOAD = 0.02  # standard deviation of the load by other programs (share of all cores) from which it is a covariate
MOST_SHARE = 0.25  # of the degrees of freedom: the most covariates that are used
MOST_POWERS, LEAST_FREEDOM = 3, 2
"""Powers of the place in time where the order is confounded, as far as they leave these degrees of freedom. A drift in
the form of a u needs the second, one that rises and falls the third: benchmarks/verdicts_202611.md, section Speed."""
LEAST_OVERLAP = 0.05  # of the shorter of two runs: times have whole seconds, and a run may begin while another ends


@dataclass(frozen=True)
class RunTime:
    """The time of a run, and the load by other programs."""

    began: float  # Unix seconds
    ended: float
    load: float | None  # share of all cores that other programs kept busy; None where it is unknown
    hosts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OrderEffect:
    """The part of the speed that the order of runs explains; changes are ratios less 1."""

    covariates: tuple[str, ...]  # `order`, `session` or `load`
    total: float  # change of the speed from the first run (or session) to the one that differs most; 0 for `load` alone
    total_low: float
    total_high: float
    bias: float  # part of the unadjusted change that the covariates explain
    p_value: float  # of "there is no such effect": a drift where it is below `WARN_BELOW`
    is_adjusted: bool
    is_confounded: bool  # whether all runs of one side ended before the first run of the other began
    load_difference: float | None = None  # mean load by other programs, less that during the baseline's runs


def run_time(run: RunRecord) -> RunTime | None:
    """Return when a run was made; None where its record does not have the times."""
    try:
        times = (run.get(source) for source in ("run.created", "summary.finished"))
        began, ended = (datetime.fromisoformat(str(time)).timestamp() for time in times)
    except ValueError:
        return None
    hosts = frozenset(str(name) for node in run.run.hardware if (name := node.get("hostname")))
    return RunTime(began, ended, load_by_others(run), hosts) if ended >= began else None


def load_by_others(run: RunRecord) -> float | None:
    """Return the share of the machine's cores that others kept busy; it is recorded for runs on CPUs."""
    used = run.summary.utilisation
    if used.kind != "cpu" or used.machine_mean is None or used.mean is None:
        return None
    return min(1.0, max(0.0, float(used.machine_mean) - float(used.mean)))


@dataclass(frozen=True, eq=False)
class OrderModel:
    """The regression of logarithms of rates on covariates, within configurations."""

    names: tuple[str, ...]  # of the covariates
    columns: Sequence[Floats]  # of each configuration, (runs, covariates)
    means: Sequence[Floats]  # of `columns` over the runs, (covariates,)
    slopes: Floats  # (covariates,)
    covariance: Floats  # of the slopes, (covariates, covariates)
    mean_square: float  # of the residuals
    freedom: float  # degrees of freedom of `mean_square`
    leverages: tuple[float, ...]  # of each configuration: its part of the degrees of freedom that the slopes take
    is_confounded: bool  # whether all runs of a configuration came before or after all runs of the first one
    has_to_adjust: bool  # whether changes are adjusted: where there is a drift, or where the order would hide one
    effects: tuple[OrderEffect, ...]  # on the comparison of the first configuration with each


def order_model(logs: Sequence[Sequence[float]], times: Sequence[Sequence[RunTime]]) -> OrderModel | None:
    """Return the regression; None where too few runs are there for one.

    `logs` has the logarithms of the rates, at least 2, of each configuration, the baseline first.
    """
    num_free = sum(len(side) - 1 for side in logs)
    loads = [time.load for side in times for time in side]
    ends = np.cumsum([len(side) for side in times])[:-1]  # in tables of all runs, those of one configuration
    candidates = [_in_time(times, ends, num_free)]
    if None not in loads and np.std(known := np.asarray(loads, dtype=np.float64)) >= LEAST_LOAD:
        candidates.append(("load", known[:, None]))
    candidates = [candidate for candidate in candidates if candidate[1].size]
    while candidates:
        names = tuple(name for name, column in candidates for _ in range(column.shape[1]))
        table = np.concatenate([column for _, column in candidates], axis=1)
        columns = np.split(table, ends)
        means = [part.mean(axis=0) for part in columns]
        parts = [part - mean for part, mean in zip(columns, means, strict=True)]
        within = np.concatenate(parts)
        fits = set(names) == {"order"} or len(names) == 1 or len(names) <= MOST_SHARE * num_free
        if fits and num_free > len(names) and np.linalg.matrix_rank(within) == len(names):
            break
        candidates.pop()
    else:
        return None
    values = np.concatenate([np.asarray(side) - np.mean(side) for side in logs])
    products = within.T @ within
    inverse = np.linalg.inv(products)
    slopes: Floats = inverse @ (within.T @ values)
    freedom = len(values) - len(logs) - len(names)
    square = float(((values - within @ slopes) ** 2).sum()) / freedom
    covariance = np.asarray(square * inverse, dtype=np.float64)
    explained = float(slopes @ products @ slopes) / len(names)
    p_value = float(special.fdtrc(len(names), freedom, explained / square)) if square else float(explained == 0)
    leverages = tuple(float(np.trace(inverse @ (part.T @ part))) for part in parts)
    confounded = [is_confounded(times[0], other) for other in times]
    has_to_adjust = p_value < ADJUST_BELOW or any(confounded[1:])
    # The largest change since the first run (or session).
    in_time = table * np.asarray([name != "load" for name in names])
    since_first = in_time - in_time[np.argmin([time.began for side in times for time in side])]
    most = since_first[np.argmax(np.abs(since_first @ slopes))]
    total, error = float(most @ slopes), math.sqrt(max(0.0, float(most @ covariance @ most)))
    half = float(special.stdtrit(freedom, 0.975)) * error
    effects = []
    for mean, side, is_apart in zip(means, times, confounded, strict=True):
        of_base, own = ([time.load for time in some if time.load is not None] for some in (times[0], side))
        effects.append(OrderEffect(
            covariates=tuple(dict.fromkeys(names)), total=math.expm1(total),
            total_low=math.expm1(max(-50.0, total - half)), total_high=math.expm1(min(50.0, total + half)),
            bias=math.expm1(float((mean - means[0]) @ slopes)), p_value=p_value,
            is_adjusted=has_to_adjust, is_confounded=is_apart,
            load_difference=float(np.mean(own) - np.mean(of_base)) if of_base and own else None,
        ))  # fmt: skip
    return OrderModel(
        names, columns, means, slopes, covariance, square, freedom, leverages, any(confounded[1:]), has_to_adjust,
        tuple(effects),
    )  # fmt: skip


def _in_time(times: Sequence[Sequence[RunTime]], ends: npt.NDArray[np.int64], num_free: int) -> tuple[str, Floats]:
    """Return indicators of sessions where a configuration has runs in several, else places in time; without a column
    where all runs began at the same time."""
    began, ended = (np.asarray([[time.began, time.ended] for side in times for time in side])).T
    ordered, order = np.sort(began), np.argsort(began, kind="stable")
    # A session ends where no run is made for an hour, or for three times the longest run.
    gaps = ordered[1:] - np.maximum.accumulate(ended[order])[:-1]
    sessions = np.zeros(len(began), dtype=np.int64)
    sessions[order[1:]] = np.cumsum(gaps > max(LEAST_GAP_S, 3 * (ended - began).max()))
    count = int(sessions.max()) + 1
    if count > 1:
        indicators = (sessions[:, None] == np.arange(1, count)[None]).astype(np.float64)
        within = [part - part.mean(axis=0) for part in np.split(indicators, ends)]
        if np.linalg.matrix_rank(np.concatenate(within)) == count - 1:
            return "session", indicators
    places = (np.searchsorted(ordered, began, "left") + np.searchsorted(ordered, began, "right") - 1) / 2
    if np.ptp(places) == 0:
        return "order", np.zeros((len(began), 0))
    if not any(is_confounded(times[0], other) for other in times[1:]):
        return "order", places[:, None]
    places = 2 * (places - places.mean()) / np.ptp(places)  # powers of 0 to 26 would be nearly collinear
    powers = max(1, min(MOST_POWERS, num_free - LEAST_FREEDOM))
    return "order", np.stack([places**power for power in range(1, powers + 1)], axis=1)


def is_confounded(first: Sequence[RunTime], second: Sequence[RunTime]) -> bool:
    """Return whether all runs of one side ended before the first run of the other began."""
    orders = ((first, second), (second, first))
    return any(max(run.ended for run in before) <= min(run.began for run in after) for before, after in orders)


def num_overlapping(times: Sequence[RunTime]) -> int:
    """Return the number of runs that shared a host with another one at the same time."""
    found: set[int] = set()
    for (at, first), (place, second) in itertools.combinations(enumerate(times), 2):
        shared = min(first.ended, second.ended) - max(first.began, second.began)
        least = LEAST_OVERLAP * min(first.ended - first.began, second.ended - second.began)
        if first.hosts & second.hosts and shared > max(2.0, least):
            found |= {at, place}
    return len(found)
