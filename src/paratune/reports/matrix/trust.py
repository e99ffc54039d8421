"""Whether the comparisons of a matrix can be trusted: order, drift, load, seeds, experiment, certificates."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from paratune.base.text import listing
from paratune.base.units import counted
from paratune.records.finished import RunRecord
from paratune.reports.document import Statement
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.runs.certificates import Certificate
from paratune.reports.runs.machine import own_share, software_facts
from paratune.reports.systems.model import Systems
from paratune.verdicts import Verdict
from paratune.verdicts.order import OrderEffect, load_by_others, num_overlapping, run_time
from paratune.verdicts.placebo import NegativeControl
from paratune.verdicts.words import LEAST_LOAD_DIFFERENCE

TITLE = "Can this be trusted?"
WIDE_DRIFT = 0.1
"""Change of the speed: an interval that goes further excludes no drift that matters."""
Result = tuple[str, bool | None]
"""Text of a statement, and whether it is good."""
SMALL_CONTROL = 0.02
"""Difference of speed within which configurations count as equal by default."""
HIGH_LOAD = 0.1
"""Share of all cores: other programs that use more make the times of a run longer."""
LEAST_OWN_SHARE = 0.5
"""Of the cores for which a run has threads: one that uses less waits."""
ENOUGH_SEEDS = 3
"""Seeds of a configuration from which an interval over them is of use."""


def trust_statements(report: SweepReport) -> tuple[Statement, ...]:
    """Return one statement for each threat to the comparisons; none without measured runs."""
    runs = report.runs
    if not runs:
        return ()
    compared = [verdict for verdict in report.verdicts if not verdict.differs.refused]
    effects = [effect for verdict in compared if (effect := verdict.speed.order) is not None]
    statements = [*_seeds(report), _experiment(report.verdicts, runs), _certificates(report.certificates[0])]
    if compared:
        found = {
            "Order of runs": _order(compared, effects, runs),
            "Drift of the machine": _drift(effects),
            "Other programs": _load(effects, runs),
            "Negative control": _control([verdict.speed.control for verdict in compared]),
        }
        statements = [
            *(Statement(label, *result, "verdicts") for label, result in found.items() if result is not None),
            *statements,
        ]
    return tuple(statements)


def _order(compared: Sequence[Verdict], effects: Sequence[OrderEffect], runs: Sequence[RunRecord]) -> Result:
    times = [time for run in runs if (time := run_time(run)) is not None]
    together = num_overlapping(times)
    if together:
        text = f"{together} of {len(runs)} runs ran at the same time as another one on the same machine"
        if all(run.run.device == "cuda" for run in runs):
            return f"{text}: they shared its cores, memory and network.", None
        return f"{text}: their times are too long.", False
    if not effects:
        why = (
            "more than one run of a configuration is needed" if len(times) == len(runs) else "runs have no time stamps"
        )
        return f"cannot tell: {why}.", None
    orders = {verdict.label: verdict.speed.order for verdict in compared}
    confounded = [label for label, order in orders.items() if order is not None and order.is_confounded]
    if confounded:
        names = listing(confounded, 3)
        return f"not in turn: all runs of {names} came before or after all runs of the baseline.", False
    return "the runs of all configurations were made in turn.", True


def _drift(effects: Sequence[OrderEffect]) -> Result:
    in_time = [effect for effect in effects if set(effect.covariates) & {"order", "session"}]
    if not in_time:
        return "cannot tell from these runs.", None
    largest = max(in_time, key=lambda effect: abs(effect.total))
    size = f"{100 * largest.total:+.1f}% [{100 * largest.total_low:+.1f}, {100 * largest.total_high:+.1f}]"
    text = f"speed changed by up to {size} since the first run".replace("-", "\u2212")
    if not largest.is_drift:
        is_narrow = max(abs(largest.total_low), abs(largest.total_high)) <= WIDE_DRIFT
        return (f"none found: {text}.", True) if is_narrow else (f"cannot tell: {text}.", None)
    if not largest.is_adjusted:
        return f"{text}; the verdicts on speed are not adjusted.", False
    if abs(largest.total) <= WIDE_DRIFT:
        return f"{text}; the verdicts on speed are adjusted for it.", True
    return f"{text}; verdicts and changes are adjusted for it, but times and rates themselves are not.", False


def _load(effects: Sequence[OrderEffect], runs: Sequence[RunRecord]) -> Result:
    """Return how much other programs used: at most, and how it differs; and the least that runs used themselves."""
    loads = [load for run in runs if (load := load_by_others(run)) is not None]
    if not loads:
        return "load is not recorded (it is for runs on CPUs).", None
    own = min((share for run in runs if (share := own_share(run)) is not None), default=None)
    differences = [abs(effect.load_difference) for effect in effects if effect.load_difference is not None]
    texts = [f"they kept up to {100 * max(loads):.0f}% of all cores busy during a run"]
    if differences:
        texts.append(f"between configurations this differs by up to {100 * max(differences):.0f}%")
    if own is not None and own < LEAST_OWN_SHARE:
        texts.append(f"a run used only {100 * own:.0f}% of its own cores")
    text = "; ".join(texts)
    if max(loads) >= HIGH_LOAD:
        return f"{text}: times are too long.", False
    if own is not None and own < LEAST_OWN_SHARE:
        return f"{text}: it waited, and times may be too long.", None
    return f"{text}.", max(differences, default=0.0) < LEAST_LOAD_DIFFERENCE


def _control(controls: Sequence[NegativeControl | None]) -> Result | None:
    """Return how much configurations differ that cannot differ in speed; None where all may differ."""
    known = [control for control in controls if control is not None]
    if not known:
        return None
    largest = max(known, key=lambda control: control.most)
    text = f"configurations that cannot differ in speed differ by up to {100 * largest.most:.1f}%"
    if largest.most > SMALL_CONTROL and any(control.is_found for control in known):
        return f"{text}, more than their runs vary; the intervals of speed include it.", False
    return f"{text}.", True if largest.most <= WIDE_DRIFT else None


def _seeds(systems: Systems) -> Iterator[Statement]:
    counts = [len({str(run.run.seed) for run in member.scored}) for member in systems.measured if member.scored]
    if not counts:
        return
    low, high = min(counts), max(counts)
    number = counted(low, "seed") if low == high else f"{low} to {high} seeds"
    few = {1: "; differences between seeds are unknown", 2: "; intervals over two seeds are wide"}.get(low, "")
    yield Statement("Seeds", f"{number} for each configuration{few}.", low >= ENOUGH_SEEDS, "candidates")


def _experiment(verdicts: Sequence[Verdict], runs: Sequence[RunRecord]) -> Statement:
    """Return whether the configurations trained the same thing, with the same software on the same machine."""
    label = "Same experiment"
    refused = [verdict.label for verdict in verdicts if verdict.differs.refused]
    if refused:
        return Statement(label, f"not comparable with the baseline: {listing(refused, 3)}.", False, "verdicts")
    problems = []
    software = Counter(tuple(software_facts(run).items()) for run in runs)
    if len(software) > 1:
        problems.append(f"{len(software)} sets of package versions")
    budgets = {verdict.label: verdict.differs.samples for verdict in verdicts if verdict.differs.samples is not None}
    if budgets:
        furthest, factor = max(budgets.items(), key=lambda pair: abs(math.log(pair[1])))
        others = f" (the largest difference of {len(budgets)})" if len(budgets) > 1 else ""
        problems.append(f"training budgets differ: {furthest} has {factor:.2g} times the samples{others}")
    if any(verdict.differs.elsewhere for verdict in verdicts):
        problems.append("different machines")
    unknown = [verdict.label for verdict in verdicts if verdict.differs.unknown]
    untold = [f"not all that was trained is recorded for {listing(unknown, 3)}"] if unknown else []
    if any(not run.run.versions for run in runs):
        untold.append("package versions are not recorded for all runs")
    if problems or untold:
        text = f"{'; '.join([*problems, *untold])}."
        return Statement(label, text, False if problems else None, "machine")
    allowed = dict.fromkeys(text for verdict in verdicts for text in verdict.differs.allowed)
    only = f" except for {'; '.join(allowed)}, which the axes vary" if allowed else ""
    text = f"data, model, training and software are equal{only}."
    return Statement(label, text, True, "machine")


def _certificates(certificates: Sequence[Certificate]) -> Statement:
    label = "Certificate"
    if not certificates:
        text = "none: paratune certify tests whether strategies train the same as one process."
        return Statement(label, text, None)
    findings = [finding for certificate in certificates for finding in certificate.findings]
    differing = [finding.strategy for finding in findings if finding.status == "differs"]
    if differing:
        text = f"{listing(differing, 3)} trained differently from one process."
        return Statement(label, text, False, "certificates")
    untold = list(dict.fromkeys(finding.strategy for finding in findings if finding.status == "cannot run"))
    if untold or not findings:
        text = f"cannot tell: {listing(untold, 3) or 'no strategy'} was not compared with one process."
        return Statement(label, text, None, "certificates")
    held = list(dict.fromkeys(finding.strategy for finding in findings if finding.status == "holds"))
    return Statement(label, f"{listing(held, 6)} trained the same as one process.", True, "certificates")
