"""Certificates of `paratune certify` beside the runs of a report, and of which runs each is.

One that lies beside or in a run folder is found by itself; others are given on the command line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.config.traits import TRAITS
from paratune.errors import CheckpointError
from paratune.records import certificate
from paratune.records.certificate import StrategyDifference, cells
from paratune.records.run_folder import trained_fingerprint
from paratune.report.read import RunRecord


@dataclass(frozen=True)
class Certificate:
    """What a certificate says, and which runs of the report train what it is of."""

    path: Path
    verdict: str
    how: str
    """Steps, samples, arithmetic and tolerances in words."""
    findings: tuple[StrategyDifference, ...]
    rows: tuple[tuple[str, ...], ...]
    """The findings as texts, in the order of `certificate.COLUMNS`."""
    trains: tuple[Any, ...]
    """What decides which runs it is of."""
    runs: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a strategy differs or cannot run, a line each."""
        return tuple(f"{one.strategy} {one.status}: {one.reason}" for one in self.findings if one.reason)

    @property
    def sentence(self) -> str:
        """What each strategy did, in words."""
        same = [f"{one.strategy} ({one.world_size} ranks)" for one in self.findings if one.status == "holds"]
        parts = [f"{', '.join(same)} trained the same as one process"] if same else []
        return f"{'; '.join([*parts, *self.reasons])}. {self.how}."

    def whose(self, num_runs: int) -> str:
        """Return the names of its runs, of so many in the report."""
        return "all runs" if len(self.runs) == num_runs > 1 else ", ".join(self.runs)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, as in report.json."""
        strategies = [{"strategy": one.strategy, "world_size": one.world_size, "status": one.status,
                       "reason": one.reason, "gradient_difference": one.gradient_difference,
                       "loss_difference": one.loss_difference, "trained": one.trained}
                      for one in self.findings]  # fmt: skip
        return {"path": str(self.path), "verdict": self.verdict, "runs": list(self.runs), "strategies": strategies}


def find_certificates(
    runs: Sequence[RunRecord], given: Sequence[Path]
) -> tuple[tuple[Certificate, ...], tuple[str, ...]]:
    """Return the certificates of runs, each once, and what has to be said of the others.

    Args:
        runs: Of the report.
        given: Folders of certificates that were named.
    """
    found, notes = [], []
    places = [*(place for run in runs for place in _places(run)), *(folder.resolve() for folder in given)]
    for folder in dict.fromkeys(places):
        path = _from_here(folder / certificate.FILE)
        try:
            one = _read(path)
        except CheckpointError as error:
            notes.append(f"{error}; it is left out.")
            continue
        names = tuple(run.name for run in runs if _trains(run) == one.trains)
        if names:
            found.append(replace(one, runs=names))
        else:
            notes.append(f"{path} is of other data, weights or settings than these runs: it is left out.")
    return tuple(found), tuple(notes)


def certified(run: RunRecord, certificates: Sequence[Certificate]) -> tuple[str | None, str]:
    """Return what certificates say of a run's own strategy, and which of them; None where there is none of it."""
    own = [one for one in certificates if run.name in one.runs]
    courses = [run.course(f"run.{key}") for key in ("strategy.kind", "strategy.options", "world_size")]
    if not own or any(len(course) > 1 for course in courses):
        return None, "no certificate of what it was all along"
    kind, options, world_size = (course[0] for course in courses)
    tried = [(one, each) for one in own for each in one.findings if each.kind == kind and each.options == options]
    if not tried:
        return "reference" if kind in TRAITS and TRAITS[kind].max_world_size == 1 else "not tried", str(own[0].path)
    one, found = min(tried, key=lambda pair: pair[1].world_size != world_size)
    ranks = "" if found.world_size == world_size else f", {found.world_size} ranks"
    return f"{found.status}{ranks}", str(one.path)


def _places(run: RunRecord) -> Iterator[Path]:
    """Yield the folders in which certificates of a run lie."""
    folder = run.folder.resolve()
    for place in (folder, folder.with_name(folder.name + certificate.SUFFIX)):
        if (place / certificate.FILE).is_file():
            yield place


def _from_here(path: Path) -> Path:
    """Return an absolute path relative to the working directory, where it is in it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _trains(run: RunRecord) -> tuple[Any, ...] | None:
    """Return what a run and a certificate must have in common; None where it is not recorded.

    docs/reference/records.md lists it.
    """
    config = run.get("run.config")
    values = (
        trained_fingerprint(config) if isinstance(config, Mapping) else None,
        run.get("run.data.train.fingerprint"),
        run.get("run.model.init_fingerprint"),
        run.get("run.batch.global_batch_size"),
    )
    return None if None in values else values


def _read(path: Path) -> Certificate:
    """Read a certificate.

    Raises:
        CheckpointError: It is damaged, or of another version.
    """
    try:
        value = records.read_json(path)
        if value["schema_version"] != certificate.SCHEMA_VERSION:
            raise CheckpointError(
                f"{path} was written by another version of paratune", code="run.other_version", path=path
            )
        findings = tuple(StrategyDifference(**each) for each in value["strategies"])
        precision = str(value["reference"]["precision"])
        tolerance = value["tolerance"][precision]
        return Certificate(
            path=path,
            verdict=str(value["verdict"]),
            how="; ".join(
                filter(
                    None,
                    (
                        f"{value['num_steps']} steps of {value['global_batch_size']} samples in {precision}",
                        f"allowed: gradients {tolerance['gradients']:.0e}, losses {tolerance['losses']:.0e}",
                        certificate.trained_words(value.get("trained_tolerance", {})),
                    ),
                )
            ),
            findings=findings,
            rows=tuple((each.strategy, str(each.world_size), *cells(each), each.status) for each in findings),
            trains=(
                value["config_fingerprint"],
                value["data"]["train"]["fingerprint"],
                value["model"]["init_fingerprint"],
                value["global_batch_size"],
            ),
        )
    except (KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{plain(path)} is damaged: it is not a certificate ({plain(repr(error))[:80]})",
            code="run.damaged",
            path=path,
        ) from error
