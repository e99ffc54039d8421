"""The sentences on top of a report: functions of the comparisons, each with three values: yes, no and cannot tell.

Unknown is never no. "X is fastest" needs that X is shown to be faster and as good, and that every other configuration
is shown not to be faster: one with an unknown speed, without a score, with one run or without any run leaves it open.
`trust_statements` has whether the comparisons can be trusted: order of the runs, drift, load, seeds, experiment,
certificates.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paratune.base.grouping import grouped
from paratune.base.text import listing
from paratune.base.units import NOT_AVAILABLE, counted, format_duration
from paratune.config.metric_names import is_lower_better, metric_label
from paratune.records.finished import RunRecord, number_in
from paratune.reports.document import Statement
from paratune.reports.measures import MEASURES, usable_cores
from paratune.reports.outcomes import CandidateGroup, SweepReport
from paratune.reports.runs.machine import software_facts
from paratune.reports.runs.read import Certificate
from paratune.reports.systems.judging import UNKNOWN, axis_verdicts
from paratune.reports.systems.model import NODES, Systems
from paratune.verdicts import Differs, MeasureComparison, Verdict
from paratune.verdicts.estimate import ALPHA
from paratune.verdicts.groups import ANY_VALUE, SPEED
from paratune.verdicts.order import WARN_BELOW, OrderEffect, load_by_others, num_overlapping, run_time
from paratune.verdicts.words import (
    LEAST_LOAD_DIFFERENCE,
    change_words,
    comparison_words,
    name_of,
    quality_words,
    signed_interval_words,
    values_words,
)

MAX_SENTENCES = 4  # sentences on one subject; of more, a last one has the number
TRUST = "Can this be trusted?"
_UNRECORDED = "; whether they trained the same thing is not recorded"
Result = tuple[str, bool | None]  # text of a statement, and whether it is good
WIDE_DRIFT = 0.1  # change of the speed: an interval that goes further excludes no drift that matters
SMALL_CONTROL = 0.02  # difference of speed within which configurations count as equal by default
HIGH_LOAD = 0.1  # share of all cores: other programs that use more make the times of a run longer
LEAST_OWN_SHARE = 0.5  # of the cores for which a run has threads: one that uses less waits
ENOUGH_SEEDS = 3  # seeds of a configuration from which an interval over them is of use


def is_better(comparison: MeasureComparison) -> bool | None:
    """Return whether a measure is better than the baseline's; None where that is not decided."""
    if comparison.code == "placebo":  # sides that are equal by their options, such as two learning rates in speed
        return False
    if comparison.scope == "seeds":  # decided only for the rows on which these runs were scored
        return None
    return {"equal": False, "different": comparison.is_better}.get(comparison.outcome)


def all_of(*facts: bool | None) -> bool | None:
    """Return whether all facts hold: no where one does not hold, else unknown where one is unknown."""
    return False if False in facts else None if None in facts else True


def is_as_good(verdict: Verdict) -> bool | None:
    """Return whether every score is equal or better; None without scores."""
    decided = ((score, is_better(score)) for score in verdict.quality)
    good = [True if known is False and score.outcome == "equal" else known for score, known in decided]
    return all_of(*good) if good else None


def run_statements(verdicts: Sequence[Verdict]) -> tuple[Statement, ...]:
    """Return the conclusions of a report of runs; none without a configuration to compare with."""
    found: list[Statement] = []
    for family in grouped((one.baseline, one) for one in verdicts if not one.differs.refused).values():
        if any(one.speed.code != "placebo" for one in family):
            found.append(fastest(family))
        found += best_in_quality(family)
    others = grouped((", ".join(one.differs.refused), one.head) for one in verdicts if one.differs.refused)
    if found and others:  # without anything to rank, what differs is told above or below
        text = "; ".join(f"{listing(heads, 3)} differ in {why}" for why, heads in others.items())
        found.append(Statement("Not the same experiment", f"{text}. They are not ranked.", None, "verdicts"))
    return tuple(found)


@dataclass(frozen=True)
class Ranked:
    """A configuration in a ranking against its baseline."""

    label: str
    leads: bool | None  # whether it is shown to be better than the baseline; None: not decided
    by: MeasureComparison  # the measure of the ranking
    words: str
    is_as_good: bool | None  # in its scores

    @property
    def gain(self) -> tuple[float, float, float]:
        """Lower end of the interval, change, and upper end, all such that more is better; infinite where unknown."""
        ends = ((self.by.low, -math.inf), (self.by.change, -math.inf), (self.by.high, math.inf))
        low, change, high = (unknown if end is None else end for end, unknown in ends)
        is_less_better = not self.by.is_ratio and is_lower_better(self.by.measure)
        return (-high, -change, -low) if is_less_better else (low, change, high)


def fastest(verdicts: Sequence[Verdict], subject: str = "") -> Statement:
    """Return the sentence on what is fastest at equal quality among the configurations of one baseline."""
    ranking = []
    outcome_words: dict[bool | None, str] = {True: "better", False: "worse"}
    for one in verdicts:
        rows = (" on these rows" * (score.scope == "seeds" and score.code is None) for score in one.quality)
        outcomes = grouped(
            (f"{outcome_words.get(score.is_better, score.outcome)}{own}", name_of(score))
            for score, own in zip(one.quality, rows, strict=True)
        )
        quality = ", ".join(f"{' and '.join(names)} {outcome}" for outcome, names in outcomes.items())
        words = f"{comparison_words(one.speed)}; {quality or 'no score is compared'}"
        words += _UNRECORDED if one.differs.unknown else ""
        leads = None if one.differs.unknown else all_of(is_better(one.speed), is_as_good(one))
        ranking.append(Ranked(one.label, leads, one.speed, words, is_as_good(one)))
    label = f"Fastest at equal quality{f', {subject}' if subject else ''}"
    return _leading(label, verdicts[0].baseline, ranking, "faster without being worse", "as fast or faster")


def best_in_quality(verdicts: Sequence[Verdict]) -> Iterator[Statement]:
    """Yield the sentence on what is best in the headline score that is compared with one baseline, if there is one."""
    ranking = []
    for one in verdicts:
        score = one.quality[0] if one.quality else UNKNOWN
        leads = None if one.differs.unknown else is_better(score)
        words = f"{quality_words(one.quality[:1], one.task)}{_UNRECORDED if one.differs.unknown else ''}"
        ranking.append(Ranked(one.label, leads, score, words, is_as_good(one)))
    if names := [name_of(one.by) for one in ranking if one.by is not UNKNOWN]:
        yield _leading(f"Best in {names[0]}", verdicts[0].baseline, ranking, "better", "as good or better")


def _leading(label: str, base: str, ranking: Sequence[Ranked], better: str, not_behind: str) -> Statement:
    """Return which configuration leads the baseline.

    `better` is what one is that leads, and `not_behind` what one is that is not shown to be behind the leading one.
    """
    undecided = [one for one in ranking if one.leads is None]
    if leading := [one for one in ranking if one.leads]:
        best = max(leading, key=lambda one: one.gain[1])
        others = [one for one in (*leading, *undecided) if one is not best and one.gain[2] >= best.gain[0]]
        text = f"{best.label} against {base}: {best.words}."
        if others:
            text += f" Cannot tell whether {listing((one.label for one in others), 3)} may be {not_behind}."
        return Statement(label, text, None if others else True, "verdicts")
    # One without an interval is not known to be closer than another one.
    among, closest = undecided or ranking, ""
    if near := [one for one in among if one.by.low is not None]:
        nearest = max(near, key=lambda one: one.gain[1])
        which = "" if len(near) == len(among) else " of those with an interval"
        closest = f" Closest{which}: {nearest.label}, {nearest.words}."
    if not undecided:
        alike = [one for one in ranking if is_better(one.by) is False and one.by.is_better is None]
        equal = [one.label for one in alike if not one.by.is_ratio or one.is_as_good is not False]
        lead = f"none; equal to {base} in {name_of(alike[0].by)}: {listing(equal, 3)}" if equal else base
        return Statement(label, f"{lead}. Nothing else is {better}.{closest}", True, "verdicts")
    num = f" for {len(undecided)} of {len(ranking)}" if len(ranking) > 1 else ""
    text = f"cannot tell{num} against {base}"
    if near:
        text += f".{closest}"
    elif num:
        reasons = dict.fromkeys((one.by.reason or "").partition(":")[0] for one in undecided)
        text += f" ({listing(reasons, 3)})."
    else:
        (one,) = undecided
        text = f"cannot tell: {values_words(one.by, one.label, base) or f'{one.label} against {base}, {one.words}'}."
    return Statement(label, text, None, "verdicts")


def matrix_statements(report: SweepReport) -> tuple[Statement, ...]:
    """Return the conclusions of a matrix; none without verdicts and scores."""
    families, groups = compared_with(report), [group for group in report.groups if group.chosen is not None]
    shown = list(families.items())[:MAX_SENTENCES]
    found = [*nodes_statements(report)]
    found += [fastest(verdicts, subject if len(families) > 1 else "") for subject, verdicts in shown]
    if len(families) > MAX_SENTENCES:
        text = f"{len(families) - MAX_SENTENCES} more baselines have verdicts and effects in the section Verdicts."
        found.append(Statement("More baselines", text, None, "verdicts"))
    found += [chosen_statement(report, group) for group in groups[:MAX_SENTENCES]]
    if len(groups) > MAX_SENTENCES:
        text = f"{len(groups) - MAX_SENTENCES} more selections are in the table."
        found.append(Statement("More selections", text, None, "chosen"))
    if report.groups and not groups:
        text = "cannot tell: no candidate has a score of every seed."
        found.append(Statement("Best in quality", text, None, "chosen"))
    found += [Statement("Records", text, False, "over_steps") for text in report.warnings]
    wanted, base = report.record.baseline, report.baseline
    if base is not None and not (wanted.items() <= base.values.items() if wanted else base is report.configurations[0]):
        lost = ", ".join(wanted.values()) if wanted else report.configurations[0].label
        found.append(Statement("Baseline", f"{lost} has no finished run; {base.label} is used.", False, "verdicts"))
    prices_of = ((report.matrix_of(one).price_per_device_hour, run) for one in report.measured for run in one.runs)
    runs = [(MEASURES["device_hours"].of(run), price) for price, run in prices_of]
    hours = [(value, price) for value, price in runs if value is not None]
    if not hours:
        return tuple(found)
    total = math.fsum(value for value, _ in hours)
    time = f"{total:,.1f} device-hours" if total >= 1 else f"{format_duration(3600 * total)} of device time"
    parts = [f"{counted(len(hours), 'run')} took {time}"]
    prices = {price for _, price in hours}
    if None not in prices:
        money = math.fsum(value * (price or 0.0) for value, price in hours)
        at = f"at {prices.pop():g} a device-hour" if len(prices) == 1 else "at the prices of their systems"
        parts.append(f"which cost {money:.2f} {at}")
    energy = [value for run in report.runs if (value := MEASURES["energy_j"].of(run)) is not None]
    known = f"energy is recorded for {len(energy)} of {counted(len(runs), 'run')}"
    parts.append(f"{math.fsum(energy) / 3.6e6:.3g} kWh of energy" if len(energy) == len(runs) else known)
    is_known = len(hours) == len(energy) == len(runs)
    found.append(Statement("Cost", f"{', '.join(parts)}.", True if is_known else None, "resources"))
    return tuple(found)


def nodes_statements(report: SweepReport) -> Iterator[Statement]:
    """Yield how long training takes on other numbers of nodes with as many devices: the mean effects of that axis."""
    nodes = {axis.label for axis in report.record.axes if (axis.keys or (axis.key,)) == (NODES,)}
    for one in report.effects:
        for effect in one.effects:
            found = effect.comparison
            if effect.axis not in nodes or found.measure != SPEED:
                continue
            # A change of the speed; the time is its inverse, unless an extreme one is rounded to a speed of 0.
            changes = (found.change, found.high, found.low)
            time, low, high = (None if end is None or end <= -1 else 1 / (1 + end) for end in changes)
            text = f"time {NOT_AVAILABLE} ({found.reason})" if time is None else f"{time:.2f}× the time"
            if time is not None and low is not None and high is not None:
                text += f" ({low:.2f}–{high:.2f}×)"
            told = {"equal": f", equal within {100 * (found.margin or 0):g}%", "cannot tell": ", cannot tell"}
            text += told.get(found.outcome, "")
            text += f", mean over {counted(effect.num_combinations, 'combination')} of the other axes."
            label = f"nodes {effect.level} against nodes {effect.baseline}, equal devices"
            is_good = {"equal": True, "different": found.is_better}.get(found.outcome)
            yield Statement(", ".join(filter(None, (label, one.title))), text, is_good, "verdicts")


def compared_with(report: SweepReport) -> dict[str, list[Verdict]]:
    """Return what is compared with each baseline: values of the axes if there are main effects, else configurations.

    The key is the subject of a sentence: an axis, or "against" and the baseline. Left out are axes that cannot change
    the speed, also where rates or runs are unknown, and configurations that differ only in these; and an axis without
    any value that may be faster, unless that is so of all. What could run and has no verdict, because no run of it is
    finished or for another reason, has one of which nothing is known.
    """
    axes = {axis.label for axis in report.record.axes if not ANY_VALUE.issuperset(axis.keys or (axis.key,))}
    if report.effects:
        by_axis = {
            f"{axis} ({title})" if title else axis: verdicts
            for (axis, title), verdicts in axis_verdicts(report.effects).items()
            if axis in axes and any(one.speed.code != "placebo" for one in verdicts)
        }
        slower = [axis for axis, own in by_axis.items() if all(is_better(one.speed) is False for one in own)]
        return {axis: own for axis, own in by_axis.items() if axis not in slower} or by_axis
    families = grouped((f"against {one.baseline}", one) for one in report.verdicts if not one.differs.refused)
    known = {name for verdict in report.verdicts for name in (verdict.label, verdict.baseline)}
    for member in report.configurations if report.baseline is not None else ():
        base = report.baseline_of(member).label
        if member.can_run and member.label not in known and member.label != base:
            unknown = Verdict(member.label, base, (), (), UNKNOWN, (), None, "", Differs(), 0)
            families.setdefault(f"against {base}", []).append(unknown)
    values = {member.label: {axis: member.values.get(axis) for axis in axes} for member in report.configurations}
    return {
        subject: verdicts
        for subject, verdicts in families.items()
        if any(one.speed.code != "placebo" and values[one.label] != values[one.baseline] for one in verdicts)
    }


def chosen_statement(report: SweepReport, group: CandidateGroup) -> Statement:
    """Return the sentence on the selected candidate, and whether it is shown to be better than every other one."""
    chosen = group.chosen
    assert chosen is not None
    noun, name = report.seed_axis.repeats, chosen.label
    where = ", ".join(f"{label} {report.shown(label, value)}" for label, value in group.values.items())
    label = f"Best in quality{f', {where}' if where else ''}"
    found = chosen.score_over_seeds("validation", group.metric)
    seeds = f"over {counted(len(found.values), noun)}" if len(found.values) > 1 else f"(one {noun})"
    seeds += f" ({found.remark})" if found.remark else ""
    mean = NOT_AVAILABLE if found.center is None else f"{found.center:.4f} {seeds}"
    score = f"validation {metric_label(group.metric)} {mean}"
    if group.is_below_constant:
        text = f"{name or 'the only candidate'}: {score}, not better than a constant prediction ({group.constant:.4f})."
        return Statement(label, text, False, "chosen")
    if len(group.candidates) == 1:
        same = "all configurations train the same thing" if group.not_chosen_among else "there is one candidate"
        text = f"nothing to select, because {same}: {score}."
        return Statement(label, text, True if found.values else None, "chosen")
    text = f"{name}: {score}"
    if known := [(abs(lead.change), other, lead) for other, lead in group.compared if lead.change is not None]:
        _, second, lead = min(known, key=lambda item: item[0])
        interval = "without an interval" if lead.low is None else signed_interval_words(lead, group.task)
        text += f"; next {second.label}, {change_words(lead, group.task)} {interval}"
        text += f" over {noun}s, on these rows" if lead.scope == "seeds" else ""
    # A candidate that lacks a seed, and one that is not decided, may be better.
    outcomes = {other.label: lead.outcome for other, lead in group.compared if lead.is_shown}
    others = [candidate.label for candidate in group.candidates if candidate is not chosen]
    may_lead = [other for other in others if outcomes.get(other) not in ("different", "equal")]
    equal = [other for other in others if outcomes.get(other) == "equal"]
    doubts = [f"cannot tell whether {name} is better than {listing(may_lead, 3)}"] if may_lead else []
    doubts += [f"{name} is equal to {listing(equal, 3)}"] if equal else []
    text = f"{'; '.join(doubts)}. Chosen: {text}" if doubts else text
    return Statement(label, f"{text}.", None if doubts else True, "chosen")


def trust_statements(systems: Systems, given: Sequence[Certificate] = ()) -> tuple[Statement, ...]:
    """Return one statement for each threat to the comparisons of a matrix or of runs; none without measured runs.

    `given` are certificates that are not beside the runs.
    """
    if not (runs := systems.runs):
        return ()
    found: dict[tuple[str, str], Result] = {}  # by label and evidence
    if compared := [verdict for verdict in systems.verdicts if not verdict.differs.refused]:
        effects = {verdict.label: effect for verdict in compared if (effect := verdict.speed.order) is not None}
        found = {
            ("Order of runs", "verdicts"): _order(effects, len(compared), runs),
            ("Drift of the machine", "verdicts"): _drift(effects, len(compared)),
            ("Other programs", "verdicts"): _load(effects, runs),
        }
        if known := [control for verdict in compared if (control := verdict.speed.control) is not None]:
            most = max(control.most for control in known)
            text = f"configurations that cannot differ in speed differ by up to {100 * most:.1f}%"
            result: Result = (f"{text}.", True if most <= WIDE_DRIFT else None)
            if most > SMALL_CONTROL and any(control.p_value < ALPHA for control in known):
                result = f"{text}, more than their runs vary; the intervals of speed include it.", False
            found["Negative control", "verdicts"] = result
    members = (one for one in systems.configurations if any(item.cell.counts for item in one.cell_runs))
    counts = [len({str(run.run.seed) for run in member.scored}) for member in members]
    if any(counts):
        low, high = min(counts), max(counts)
        number = counted(low, "seed") if low == high else f"{low} to {high} seeds"
        few = ("some have no run", "differences between seeds are unknown", "intervals over two seeds are wide")
        about = f"; {few[low]}" if low < len(few) else ""
        found["Seeds", "candidates"] = f"{number} for each configuration{about}.", low >= ENOUGH_SEEDS
    found["Same experiment", "machine"] = _experiment(systems)
    names = [system for (_, system), group in systems.machines.items() if system and group[0].run.hardware]
    if shared := dict.fromkeys(name for name in names if names.count(name) > 1):
        found["Names of systems", "machine"] = f"different hardware has the same name: {listing(shared, 3)}.", False
    certificates = {one.path: one for one in (*systems.certificates[0], *given)}
    found["Certificate", "certificates" if certificates else ""] = _certificate([*certificates.values()], runs)
    return tuple(Statement(label, *result, key) for (label, key), result in found.items())


def _of_all(text: str, num_known: int, num: int, noun: str) -> Result:
    """Return a yes where all are known, else "cannot tell"."""
    if num_known == num:
        return f"{text}.", True
    return f"cannot tell: unknown for {num - num_known} of {counted(num, noun)}; of the others, {text}.", None


def _order(effects: Mapping[str, OrderEffect], num: int, runs: Sequence[RunRecord]) -> Result:
    times = [time for run in runs if (time := run_time(run)) is not None]
    if together := num_overlapping(times):
        text = f"{together} of {len(runs)} runs ran at the same time as another one on the same machine"
        if all(run.summary.neighbours is not None for run in runs):
            return f"{text} (--parallel): speed has verdicts only where neighbours stayed the same; --timing.", False
        if all(run.run.device == "cuda" for run in runs):
            return f"{text}: they shared its cores, memory and network.", None
        return f"{text}: their times are too long.", False
    if not effects:
        why = "runs have no time stamps" if len(times) < len(runs) else "more than one run of a configuration is needed"
        return f"cannot tell: {why}.", None
    if confounded := [label for label, order in effects.items() if order.is_confounded]:
        return f"not in turn: all runs of {listing(confounded, 3)} came before or after all of the baseline's.", False
    return _of_all("the runs were made in turn", len(effects), num, "configuration")


def _drift(effects: Mapping[str, OrderEffect], num: int) -> Result:
    in_time = [effect for effect in effects.values() if set(effect.covariates) & {"order", "session"}]
    if not in_time:
        return "cannot tell from these runs.", None
    largest = max(in_time, key=lambda effect: abs(effect.total))
    size = f"{100 * largest.total:+.1f}% [{100 * largest.total_low:+.1f}, {100 * largest.total_high:+.1f}]"
    text = f"speed changed by up to {size} since the first run".replace("-", "\u2212")
    if largest.p_value >= WARN_BELOW:
        is_wide = max(abs(largest.total_low), abs(largest.total_high)) > WIDE_DRIFT
        known = f"none found: {text}"
        return (f"cannot tell: {text}.", None) if is_wide else _of_all(known, len(in_time), num, "configuration")
    if not largest.is_adjusted:
        return f"{text}; the verdicts on speed are not adjusted.", False
    if abs(largest.total) > WIDE_DRIFT:
        return f"{text}; verdicts and changes are adjusted for it, but times and rates themselves are not.", False
    return _of_all(f"{text}; the verdicts on speed are adjusted for it", len(in_time), num, "configuration")


def _load(effects: Mapping[str, OrderEffect], runs: Sequence[RunRecord]) -> Result:
    """Return how much other programs used: at most, and how it differs; and the least that runs used themselves."""
    loads = [load for run in runs if (load := load_by_others(run)) is not None]
    if not loads:
        return "load is not recorded (it is for runs on CPUs).", None
    own = 1.0  # the least share of their own cores, which they may use and have threads for, that runs kept busy
    for run in runs:
        mean, threads, size = run.summary.utilisation.mean, run.run.num_threads, run.run.world_size
        cores = [number_in(node.get("num_logical_cores")) for node in run.run.hardware]
        usable, is_on_cpu = usable_cores(run), run.summary.utilisation.kind == "cpu"
        if mean is not None and None not in cores and is_on_cpu and cores and usable and threads and size:
            own = min(own, mean * sum(number or 0.0 for number in cores) / min(usable, threads * size))
    differences = [abs(one.load_difference) for one in effects.values() if one.load_difference is not None]
    text = f"they kept up to {100 * max(loads):.0f}% of all cores busy during a run"
    if differences:
        text += f"; between configurations this differs by up to {100 * max(differences):.0f}%"
    if own < LEAST_OWN_SHARE:
        text += f"; a run used only {100 * own:.0f}% of its own cores"
    if max(loads) >= HIGH_LOAD:
        return f"{text}: times are too long.", False
    if own < LEAST_OWN_SHARE:
        return f"{text}: it waited, and times may be too long.", None
    if max(differences, default=max(loads)) >= LEAST_LOAD_DIFFERENCE:
        return f"{text}.", False if differences else None
    return _of_all(text, len(loads), len(runs), "run")


def _experiment(systems: Systems) -> Result:
    """Return whether the configurations trained the same thing, with the same software on the same machine."""
    differing = {member.label: systems.differs(member) for member in systems.measured}
    if refused := [label for label, differs in differing.items() if differs.refused]:
        why = listing(dict.fromkeys(text for differs in differing.values() for text in differs.refused), 3)
        return f"not comparable with the baseline: {listing(refused, 3)}. They differ in {why}.", False
    problems, unrecorded = [], []
    software = {tuple(software_facts(run).items()) for run in systems.runs if run.run.versions}
    if len(software) > 1:
        problems.append(f"{len(software)} sets of package versions")
    if budgets := {label: differs.samples for label, differs in differing.items() if differs.samples is not None}:
        furthest, factor = max(budgets.items(), key=lambda pair: abs(math.log(pair[1])))
        others = f" (the largest difference of {len(budgets)})" if len(budgets) > 1 else ""
        problems.append(f"training budgets differ: {furthest} has {factor:.2g} times the samples{others}")
    if any(differs.elsewhere for differs in differing.values()):
        problems.append("different machines")
    if unknown := [label for label, differs in differing.items() if differs.unknown]:
        unrecorded.append(f"not all that was trained is recorded for {listing(unknown, 3)}")
    if any(not run.run.versions for run in systems.runs):
        unrecorded.append("package versions are not recorded for all runs")
    if problems or unrecorded:
        return f"{'; '.join([*problems, *unrecorded])}.", False if problems else None
    allowed = dict.fromkeys(text for differs in differing.values() for text in differs.allowed)
    only = f" except for {listing(allowed, 3)}, which the axes vary" if allowed else ""
    # The runs of one configuration are not compared with each other.
    return f"{'data, model, training and ' if len(differing) > 1 else ''}software are equal{only}.", True


def _certificate(certificates: Sequence[Certificate], runs: Sequence[RunRecord]) -> Result:
    if not certificates:
        return "none: paratune certify tests whether strategies train the same as one process.", None
    findings = [finding for certificate in certificates for finding in certificate.findings]
    by_status = grouped((finding.status, finding.strategy) for finding in findings)
    if differing := by_status.get("differs"):
        return f"{listing(dict.fromkeys(differing), 3)} trained differently from one process.", False
    kinds = {finding.kind for finding in findings}
    others = [str(run.run.strategy.kind) for run in runs if (run.run.world_size or 1) > 1]
    unknown = dict.fromkeys([*by_status.get("cannot run", ()), *(kind for kind in others if kind not in kinds)])
    if unknown or not by_status:
        return f"cannot tell: {listing(unknown, 3) or 'no strategy'} was not compared with one process.", None
    return f"{listing(dict.fromkeys(by_status['holds']), 6)} trained the same as one process.", True
