"""Whether the comparisons of a matrix can be trusted: order, drift, load, seeds, experiment, certificates."""

from collections import Counter
from collections.abc import Iterator, Sequence

from paratune.base.units import counted
from paratune.records.certificate import COLUMNS
from paratune.reports.document import Statement
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.runs.certificates import find_certificates
from paratune.reports.runs.machine import software_facts
from paratune.reports.runs.read import RunRecord
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Heading, Table, TableCell, make_table
from paratune.reports.text import some_names
from paratune.verdicts import Verdict
from paratune.verdicts.order import OrderEffect, run_time
from paratune.verdicts.words import LEAST_LOAD_DIFFERENCE

TITLE = "Can this be trusted?"
WIDE_DRIFT = 0.1
"""Change of the speed: an interval that goes further excludes no drift that matters."""
Result = tuple[str, bool | None]
"""Text of a statement, and whether it is good."""
ENOUGH_SEEDS = 3
"""Seeds of a configuration from which an interval over them is of use."""


def trust_statements(report: SweepReport) -> tuple[Statement, ...]:
    """Return one statement for each threat to the comparisons; none without measured runs."""
    systems = report.systems
    if systems is None or not systems.measured:
        return ()
    runs = systems.runs
    compared = [verdict for verdict in report.verdicts if not verdict.differs.refused]
    effects = [effect for verdict in compared if (effect := verdict.speed.order) is not None]
    statements = [*_seeds(systems), _experiment(report.verdicts, runs), _certificates(runs)]
    if compared:
        found = {
            "Order of runs": _order(compared, effects, runs),
            "Drift of the machine": _drift(effects),
            "Other programs": _load(effects),
        }
        statements = [*(Statement(label, *result, "verdicts") for label, result in found.items()), *statements]
    return tuple(statements)


def _order(compared: Sequence[Verdict], effects: Sequence[OrderEffect], runs: Sequence[RunRecord]) -> Result:
    if not effects:
        known = sum(run_time(run) is not None for run in runs)
        why = "more than one run of a configuration is needed" if known == len(runs) else "runs have no time stamps"
        return f"cannot tell: {why}.", None
    orders = {verdict.label: verdict.speed.order for verdict in compared}
    confounded = [label for label, order in orders.items() if order is not None and order.is_confounded]
    if confounded:
        names = some_names(confounded, 3)
        return f"not in turn: all runs of {names} came before or after all runs of the baseline.", False
    return "the runs of all configurations were made in turn.", True


def _drift(effects: Sequence[OrderEffect]) -> Result:
    in_time = [effect for effect in effects if set(effect.covariates) & {"order", "session"}]
    if not in_time:
        return "cannot tell from these runs.", None
    largest = max(in_time, key=lambda effect: abs(effect.total))
    size = f"{100 * largest.total:+.1f}% [{100 * largest.total_low:+.1f}, {100 * largest.total_high:+.1f}]"
    text = f"speed changed by {size} from the first to the last run".replace("-", "\u2212")
    if not largest.is_drift and max(abs(largest.total_low), abs(largest.total_high)) > WIDE_DRIFT:
        return f"cannot tell: {text}.", None
    if not largest.is_drift:
        return f"none found: {text}.", True
    if largest.is_adjusted:
        return f"{text}; the verdicts on speed are adjusted for it.", True
    return f"{text}; the verdicts on speed are not adjusted.", False


def _load(effects: Sequence[OrderEffect]) -> Result:
    differences = [effect.load_difference for effect in effects if effect.load_difference is not None]
    if not differences:
        return "load is not recorded (it is for runs on CPUs).", None
    largest = max(map(abs, differences))
    text = f"their load differs by up to {100 * largest:.0f}% of all cores between configurations."
    return text, largest < LEAST_LOAD_DIFFERENCE


def _seeds(systems: Systems) -> Iterator[Statement]:
    counts = [len({str(run.get("run.seed")) for run in member.scored}) for member in systems.measured if member.scored]
    if not counts:
        return
    low, high = min(counts), max(counts)
    number = counted(low, "seed") if low == high else f"{low} to {high} seeds"
    few = {1: "; differences between seeds are unknown", 2: "; intervals over two seeds are wide"}.get(low, "")
    yield Statement("Seeds", f"{number} for each configuration{few}.", low >= ENOUGH_SEEDS, "runs")


def _experiment(verdicts: Sequence[Verdict], runs: Sequence[RunRecord]) -> Statement:
    """Return whether the configurations trained the same thing, with the same software on the same machine."""
    label = "Same experiment"
    refused = [verdict.label for verdict in verdicts if verdict.differs.refused]
    if refused:
        return Statement(label, f"not comparable with the baseline: {some_names(refused, 3)}.", False, "verdicts")
    problems = []
    software = Counter(tuple(software_facts(run).items()) for run in runs)
    if len(software) > 1:
        problems.append(f"{len(software)} sets of package versions")
    if any(verdict.differs.elsewhere for verdict in verdicts):
        problems.append("different machines")
    unknown = [verdict.label for verdict in verdicts if verdict.differs.unknown]
    if unknown:
        problems.append(f"not all that was trained is recorded for {some_names(unknown, 3)}")
    if problems:
        return Statement(label, f"{'; '.join(problems)}.", False, "machine")
    allowed = dict.fromkeys(text for verdict in verdicts for text in verdict.differs.allowed)
    only = f" except for {'; '.join(allowed)}, which the axes vary" if allowed else ""
    text = f"data, model, training and software are equal{only}."
    return Statement(label, text, True, "machine")


def _certificates(runs: Sequence[RunRecord]) -> Statement:
    label = "Certificate"
    certificates, _ = find_certificates(runs, ())
    if not certificates:
        text = "none: paratune certify tests whether strategies train the same as one process."
        return Statement(label, text, None)
    findings = [finding for certificate in certificates for finding in certificate.findings]
    differing = [finding.strategy for finding in findings if finding.status == "differs"]
    if differing:
        text = f"{some_names(differing, 3)} trained differently from one process."
        return Statement(label, text, False, "certificates")
    held = list(dict.fromkeys(finding.strategy for finding in findings if finding.status == "holds"))
    return Statement(label, f"{some_names(held, 6)} trained the same as one process.", True, "certificates")


def certificate_table(systems: Systems) -> Iterator[Table]:
    """Yield the table of certificates next to the runs, with a line for each strategy."""
    runs = systems.runs
    certificates, notes = find_certificates(runs, ())
    if not certificates and not notes:
        return
    rows = [
        (
            *(TableCell(text, runs=member.runs, source=str(member.path)) for text in row),
            TableCell(member.run_names(len(runs)), runs=member.runs),
        )
        for member in certificates
        for row in member.rows
    ]
    columns: list[Heading] = [*((name.capitalize(), name) for name in COLUMNS), "Runs"]
    remarks = [f"{member.how}." for member in certificates]
    remarks += [reason for member in certificates for reason in member.reasons]
    title, notes = "Certificates: compared with one process", (*dict.fromkeys(remarks), *notes)
    yield make_table("certificates", title, columns, rows, len(columns), notes)
