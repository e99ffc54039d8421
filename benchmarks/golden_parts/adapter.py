"""How today's `report --json`, `compare --json` and table.csv give the golden numbers.

Whoever changes a record, a JSON key or a table changes this module, and converts the stored records; the expected
numbers stay. A rule is a path into a document: `{subject}` and `{measure}` take one part of it, `*` takes one part that
has no meaning, and a last `{rest}` takes all others, which name the statistic (`value` if there are none). The words
after the arrow are put before the measure.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paratune
from paratune.config.traits import strategy_traits
from paratune.engine.loop import Progress
from paratune.engine.summary import summarise
from paratune.records import read_json

from .numbers import Key

Leaf = tuple[tuple[str, ...], Any]

SINGLE = ("accumulated", "auto", "baseline", "ddp", "packed-1", "packed-2", "packed-3", "padded-1", "padded-2")
SINGLE += ("padded-3", "pipeline", "resumed", "unscored", "zero3")
CASES: Mapping[str, Sequence[str]] = {
    "all runs of sentences": SINGLE,
    "packed and padded": ("packed-1", "packed-2", "packed-3", "padded-1", "padded-2", "padded-3"),
    "other tasks": ("regression", "labels", "questions", "masked"),
}
"""Runs of each report; the first is the baseline."""
TARGETS = {"packed and padded": ("accuracy>=0.6", "f1>=0.9")}

_VERDICTS = (
    "{subject} speed {rest} -> verdict samples_per_s",
    "{subject} quality {measure} {rest} -> verdict",
    "{subject} num_compared -> compared groups",
)
RULES = {
    "report": (
        "runs {subject} values {measure}",
        "runs {subject} peak_memory_bytes_by_rank {rest} -> peak memory by rank",
        "runs {subject} confusion {measure} {rest} -> confusion",
        "runs {subject} hardware {rest} -> hardware",
        "runs {subject} sessions {rest} -> session",
        "seed_groups {subject} spread {measure} {rest}",
        "same_experiment differ {measure} {subject} {rest} -> experiment",
        "config_differences {measure} {subject} {rest} -> option",
        *(f"verdicts {rule}" for rule in _VERDICTS),
    ),
    "compare": (
        "configurations {subject} runs {measure} seed -> seed of",
        "figures {measure} {subject} {rest} -> verdict",
        *(f"verdicts {rule}" for rule in _VERDICTS),
    ),
    "matrix": (
        "groups * candidates {subject} scores {measure} {measure} {rest}",
        "groups {subject} constant score -> constant",
        "runs {subject} scores {measure} {measure}",
        "runs {subject} {measure}",
        "tables * rows {subject} {measure} {rest}",
        "{measure}",
        *(f"verdicts {rule}" for rule in _VERDICTS),
    ),
    "csv": ("{subject} {measure}",),
    "events": ("{subject} {measure} {rest}",),
}
UNITS = {"per_s": "1/s", "ms": "ms", "s": "s", "bytes": "bytes", "hours": "h", "j": "J", "w": "W"}
RENAMED = {
    ("matrix", "mean step"): "step mean",
    ("matrix", "communication exposed share"): "exposed communication share",
}
"""Names of the expected numbers by the case and today's name."""
TEXTS = ("outcome", "is_better", "state")
"""Conclusions, which are kept beside the numbers; and the results of published claims."""
NAMES = ("run", "name", "label", "measure")
"""Keys of an object in a list that name it."""


@dataclass
class Found:
    """The numbers of today's documents."""

    numbers: dict[Key, str] = field(default_factory=dict)
    num_cells: int = 0
    """Numeric cells of all documents."""
    left: list[str] = field(default_factory=list)
    """Paths of the cells that no rule reads."""

    @property
    def share(self) -> float:
        """Share of the cells that a rule reads."""
        return 1 - len(self.left) / max(1, self.num_cells)


def collect(folder: Path) -> Found:
    """Return the numbers of all documents about the records below `folder`/runs.

    Raises:
        ValueError: Two documents contradict each other.
    """
    found = Found()
    for case, kind, document in documents(folder):
        rules = [_rule(rule) for rule in RULES[kind]]
        for path, value in _cells(document) if kind == "csv" else walk(document):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number and not is_conclusion(path):
                continue
            key = next((key for rule in rules if (key := rule(case, path)) is not None), None)
            if is_number:
                found.num_cells += 1
                found.left += [f"{kind}: {' '.join(path)}"] if key is None else []
            if key is not None and found.numbers.setdefault(key, repr(value)) != repr(value):
                raise ValueError(f"{case}: {' '.join(path)} is {value!r}, elsewhere {found.numbers[key]}")
    return found


def is_conclusion(path: Sequence[str]) -> bool:
    return path[-1] in TEXTS or (path[:2] == ("tables", "claims") and path[-2:] == ("result", "text"))


def documents(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield case, kind and contents of each document."""
    trained = [*CASES["all runs of sentences"], *CASES["other tasks"]]
    yield "events", "events", {name: from_events(folder / "runs" / name) for name in trained if name != "baseline"}
    for case, names in CASES.items():
        runs = [folder / "runs" / name for name in names]
        report = paratune.report(*runs, out=folder / "out", target=TARGETS.get(case, ()))
        yield case, "report", report.as_dict()
        yield case, "csv", (folder / "out" / "table.csv").read_text()
    groups = [folder / "runs" / "packed-*", folder / "runs" / "padded-*"]
    yield "packed and padded", "compare", paratune.compare(*map(str, groups)).as_dict()
    report = paratune.report(folder / "runs" / "matrix", out=folder / "matrix", target="accuracy>=0.5")
    yield "matrix", "matrix", report.as_dict()
    yield "matrix", "csv", (folder / "matrix" / "table.csv").read_text()
    yield "matrix by layout", "compare", paratune.compare(folder / "runs/matrix", by=["layout"]).as_dict()


def from_events(folder: Path) -> dict[str, Any]:
    """Return the figures that are computed from the events of a run; the other arguments are of its own records."""
    run, recorded = read_json(folder / "run.json"), read_json(folder / "summary.json")
    strategy = dict(run["config"]["strategy"])
    plan = run["plan"]
    summary = summarise(
        folder,
        Progress(step=recorded["num_steps"]),
        kept_step=None,
        world_size=run["world_size"],
        num_steps=plan["num_steps"],
        steps_per_epoch=plan["steps_per_epoch"],
        peaks=[None] * run["world_size"],
        device="cpu",
        cost_ms=None,
        global_batch_size=run["batch"]["global_batch_size"],
        traits=strategy_traits(strategy.pop("kind"), strategy),
    )
    left_out = ("schema_version", "finished", "num_interruptions", "num_lost_events", "recorder", "memory", "best")
    times = {"train_s": summary.pop("time")["train_s"]}
    return {key: value for key, value in summary.items() if key not in left_out} | times


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield all leaves of a document with their paths; objects in lists have their name in place of their number."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from walk(part, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        names = [_name(part, number) for number, part in enumerate(value)]
        for number, (name, part) in enumerate(zip(names, value, strict=True)):
            yield from walk(part, (*path, name if names.count(name) == 1 else f"{name} #{number}"))
    else:
        yield path, value


def _name(part: Any, number: int) -> str:
    if not isinstance(part, Mapping) or not part:
        return str(number)
    texts = [cell.get("text") for cell in part.values() if isinstance(cell, Mapping)]
    if len(texts) == len(part):  # a row of a table
        if "measure" in part:  # of a published figure; a score has its split
            name = re.sub("^(Test|Validation) (.)", lambda found: found[2].upper(), texts[1])
            return f"{texts[0]} {name}"
        return texts[0]
    if isinstance(part.get("values"), Mapping) and "runs" in part:
        return " ".join(map(str, part["values"].values())) or "all runs"
    if "spread" in part:
        return ", ".join(part["runs"])
    if isinstance(part.get("baseline"), str) and "label" in part:
        return f"{part['label']} against {part['baseline']}"
    if "key" in part and "rows" in part:
        return str(part["key"])
    return next((str(part[key]) for key in NAMES if isinstance(part.get(key), str)), str(number))


def _cells(text: str) -> Iterator[Leaf]:
    for row in csv.DictReader(text.splitlines()):
        for column, cell in row.items():
            try:
                number = float(cell)
            except ValueError:
                continue
            yield (row["run"], column), number if not re.fullmatch(r"-?\d+", cell) else int(cell)


def _rule(text: str) -> Callable[[str, tuple[str, ...]], Key | None]:
    """Return a function of case and path that returns the key, or None if the rule is not for this path."""
    pattern, _, words = text.partition(" -> ")
    parts = pattern.split()
    fixed = [part for part in parts if part != "{rest}"]

    def key(case: str, path: tuple[str, ...]) -> Key | None:
        if len(path) < len(fixed) or (len(path) > len(fixed) and len(fixed) == len(parts)):
            return None
        taken: dict[str, list[str]] = {"{measure}": [words] if words else [], "{subject}": []}
        for part, step in zip(fixed, path, strict=False):
            if part in taken:
                taken[part].append(step)
            elif part not in ("*", step):
                return None
        name, unit = plain(" ".join(taken["{measure}"]))
        name = RENAMED.get((case, name), name)
        return Key(case, " ".join(taken["{subject}"]), name, unit, " ".join(path[len(fixed) :]) or "value")

    return key


def plain(measure: str) -> tuple[str, str]:
    """Return name and unit of a measure: `step_median_ms` is the step median in ms."""
    words = re.sub(r"[^\w.]+", "_", measure.lower()).strip("_")
    end = next((end for end in UNITS if words.endswith(f"_{end}")), None)
    return words.removesuffix(f"_{end}").replace("_", " "), UNITS.get(end or "", "")
