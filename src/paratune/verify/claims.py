"""The claims of a publication: what its report decides, and the cheapest runs that decide it again."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.records.sweep import RUNS_FOLDER, SWEEP_FILE
from paratune.reports.comparison import systems_of_runs
from paratune.reports.matrix import read_joined
from paratune.reports.published import FAILS, HOLDS, UNTOLD, claims_table
from paratune.reports.runs.read import read_runs
from paratune.reports.systems.judging import axis_effects, axis_verdicts, judged
from paratune.reports.systems.model import Systems
from paratune.verdicts import MeasureComparison, Verdict
from paratune.verdicts.finding import POWER, power_different, power_equal
from paratune.verdicts.words import comparison_words
from paratune.verify.publication import ReportedClaim

Decided = tuple[ReportedClaim, MeasureComparison | None]
"""A claim with the comparison that decides it; None for one that the matrix names."""


def read_systems(folder: Path, names: Sequence[str]) -> Systems:
    """Return the runs of a publication, or of a folder of a matrix; `names` are those of runs without a matrix."""
    if (folder / SWEEP_FILE).is_file():
        return read_joined([folder])
    return systems_of_runs(read_runs([folder / RUNS_FOLDER / name for name in names]).runs)


def find_claims(systems: Systems) -> list[Decided]:
    """Return the claims on the configurations, on the axes, and those of the file that the matrix names."""
    verdicts, _ = judged(systems, all_of_them=True)
    found = [*chain.from_iterable(map(_of_verdict, verdicts))]
    for (_, title), of_axis in axis_verdicts(axis_effects(systems)).items():
        found += chain.from_iterable(_of_verdict(verdict, title) for verdict in of_axis)
    published = systems.record.published
    if published is not None and published.claims:
        lines = claims_table(systems, published).lines
        for number, (named, line) in enumerate(zip(published.claims, lines, strict=True), start=1):
            text, result, change, _where = line
            known: Any = result.text if result.text in (HOLDS, FAILS) else UNTOLD
            claim = ReportedClaim(
                claim=f"{text.text} ({change.text})", configuration=named.text, baseline=f"{number}",
                measure=named.measure,
                result=known, outcome="named", runs=result.runs,
            )  # fmt: skip
            found.append((claim, None))
    return found


def _of_verdict(verdict: Verdict, title: str = "") -> Iterator[Decided]:
    """Yield the claims of a verdict; `title` has the values that an effect of an axis is within."""
    where = f"{title}: " if title else ""
    for one in (verdict.speed, *verdict.quality):
        if one.code == "placebo" or one.change is None:
            continue
        outcome: Any = "cannot tell"
        if one.outcome == "equal" or (one.outcome == "different" and one.is_better is not None):
            outcome = "equal" if one.outcome == "equal" else "better" if one.is_better else "worse"
        claim = ReportedClaim(
            claim=f"{where}{verdict.head}: {comparison_words(one, verdict.task)}", baseline=verdict.baseline,
            configuration=f"{where}{verdict.label}", measure=" ".join(filter(None, (one.split, one.measure))),
            result="cannot tell" if outcome == "cannot tell" else "holds", outcome=outcome, change=one.change,
            low=one.low, high=one.high, runs=(*verdict.baseline_runs, *verdict.runs),
        )  # fmt: skip
        yield claim, one


def key_of(claim: ReportedClaim) -> tuple[str, ...]:
    """Return what a claim is about, without its result."""
    return (claim.configuration, claim.baseline, claim.measure)


def changed_claims(
    published: Sequence[ReportedClaim], decided: Sequence[Decided], *, same_words: bool = True
) -> list[str]:
    """Return the claims that the records of the publication do not give, each as a text with both results.

    `same_words`: the publication was made by this version, which would use the same words.
    """
    known = {key_of(claim): claim for claim, _ in decided}
    problems = []
    for claim in published:
        own = known.pop(key_of(claim), None)
        if own is None:
            problems.append(f"{plain(claim.claim)}: the records have no such comparison")
            continue
        numbers = [[getattr(one, key) for key in ("change", "low", "high")] for one in (claim, own)]
        same = all(
            first == second or (None not in (first, second) and math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-9))
            for first, second in zip(*numbers, strict=True)
        )
        if not same or (own.result, own.outcome) != (claim.result, claim.outcome):
            given = f"the records give: {own.claim} [{own.result}]"
            problems.append(f"claimed: {plain(claim.claim)} [{claim.result}]; {given}")
        elif same_words and own.claim != claim.claim:
            problems.append(f"claimed: {plain(claim.claim)}; the records give: {own.claim}")
    return [*problems, *(f"not claimed: {one.claim} [{one.result}]" for one in known.values())]


def agreement(claim: ReportedClaim, own: ReportedClaim | None) -> str:
    """Return whether runs that were made here agree with a claim: yes, no or cannot tell."""
    if own is None or UNTOLD in (own.result, claim.result):
        return UNTOLD
    return "yes" if (own.result, own.outcome) == (claim.result, claim.outcome) else "no"


def choose_runs(
    decided: Sequence[Decided], systems: Systems, seconds_of: Callable[[str], float | None], limit_s: float
) -> tuple[list[str], list[ReportedClaim], list[str], float]:
    """Choose the cheapest runs that decide claims: those of the claim that costs least first, while they fit.

    A claim needs as many runs of both sides as find a change of the recorded size, by the recorded variances, with a
    probability of 80% (`verdicts.finding.POWER`); at most those that the publication has.

    Args:
        seconds_of: Expected seconds of a run on this machine, by its name.
        limit_s: Seconds of all runs.

    Returns:
        The names of the runs, with both sides in turn; the claims that they decide; the claims that do not fit, with
        the reason; and the expected seconds.
    """
    chosen, claims, left_out, total = dict[str, None](), list[ReportedClaim](), list[str](), 0.0
    waiting = [(claim, _needed_runs(claim, one, systems)) for claim, one in decided if claim.result != UNTOLD]

    def cost(names: Sequence[str]) -> float:
        seconds = [seconds_of(name) for name in names if name not in chosen]
        return math.fsum(math.inf if value is None else max(0.0, value) for value in seconds)

    while waiting:
        claim, names = waiting.pop(min(range(len(waiting)), key=lambda at: cost(waiting[at][1])))
        seconds = cost(names)
        if math.isinf(seconds) or total + seconds > limit_s:
            why = "the time of a run is unknown" if math.isinf(seconds) else f"needs {seconds / 3600:.2g} hours more"
            left_out.append(f"{claim.claim}: {why}")
            continue
        chosen |= dict.fromkeys(names)
        claims.append(claim)
        total += seconds
    return [*chosen], claims, left_out, total


def _needed_runs(claim: ReportedClaim, found: MeasureComparison | None, systems: Systems) -> list[str]:
    """Return the names of the first runs of both sides that decide a claim; all of them where variances do not tell."""
    by_side = [[run.name for run in member.runs] for member in systems.measured]
    sides = [names for names in by_side if not claim.runs or set(claim.runs) & set(names)]
    count = max(map(len, sides), default=0)
    if found is not None and found.estimate is not None and found.estimate.sides and claim.runs:
        margin = found.margin or 0.0
        limit = math.log1p(margin) if found.is_ratio else margin
        for number in range(2, count):
            fewer = replace(found.estimate, sides=tuple(
                replace(side, num_runs=number, freedom=number - 1, is_pooled=False)  # others may not be made again
                for side in found.estimate.sides
            ))  # fmt: skip
            power = power_equal(fewer, limit) if found.outcome == "equal" else power_different(fewer, abs(fewer.value))
            if power >= POWER:
                count = number
                break
    # In turn: runs of one side before all of the other would confound their order with the configuration.
    return [name for pair in zip_longest(*(side[:count] for side in sides)) for name in pair if name is not None]
