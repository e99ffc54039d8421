"""Counts and findings of a soak."""

from dataclasses import asdict, dataclass, field
from typing import Any

DIFFERENCE, TRACEBACK, STUCK = SORTS = ("difference", "traceback", "stuck")


@dataclass(frozen=True)
class Finding:
    """A violation found by a trial."""

    sort: str
    """One of `SORTS`: a wrong result or exit code; an exception that is not a ParatuneError; a hang."""
    kind: str
    trial: int
    text: str


@dataclass
class Count:
    """A row of the table."""

    kind: str
    trials: int = 0
    kills: int = 0
    """Signals that reached a running process; 0 for readers."""
    inputs: int = 0
    """Inputs of a reader; 0 for commands."""
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    skipped: str | None = None
    """Reason why nothing was run."""

    def number(self, sort: str) -> int:
        return sum(finding.sort == sort for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def table(counts: list[Count]) -> str:
    """Return a Markdown table of all kinds and of their sums."""
    heads = ("kind", "trials", "kills", "inputs", "differences", "tracebacks", "stuck", "seconds")
    rows = [_row(count) for count in counts]
    sums = [sum(int(row[i]) for row in rows) for i in range(1, len(heads))]
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows, ["all", *map(str, sums)]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(count: Count) -> list[str]:
    numbers = [count.trials, count.kills, count.inputs, *(count.number(sort) for sort in SORTS), round(count.seconds)]
    return [count.kind, *map(str, numbers)]
