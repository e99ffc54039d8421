"""Certificates of `paratune certify`, and the runs that each applies to.

Certificates in or next to a run folder are found automatically; others are given on the command line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.config.traits import TRAITS
from paratune.errors import CheckpointError
from paratune.records import certificate
from paratune.records.certificate import StrategyDifference, cells
from paratune.records.finished import RunRecord
from paratune.records.run_folder import trained_fingerprint
from paratune.records.typed import RecordedData


@dataclass(frozen=True)
class Certificate:
    """A certificate, and the runs of the report that it applies to."""

    path: Path
    verdict: str
    how: str
    """Steps, samples, precision and tolerances in words."""
    findings: tuple[StrategyDifference, ...]
    rows: tuple[tuple[str, ...], ...]
    """The findings as texts, in the order of `certificate.COLUMNS`."""
    trains: tuple[Any, ...]
    """Fields that decide which runs the certificate applies to."""
    runs: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why strategies differ or cannot run."""
        return tuple(
            f"{finding.strategy} {finding.status}: {finding.reason}" for finding in self.findings if finding.reason
        )

    @property
    def sentence(self) -> str:
        """The result of each strategy in words."""
        same = [
            f"{finding.strategy} ({finding.world_size} ranks)" for finding in self.findings if finding.status == "holds"
        ]
        parts = [f"{', '.join(same)} trained the same as one process"] if same else []
        return f"{'; '.join([*parts, *self.reasons])}. {self.how}."

    def run_names(self, num_runs: int) -> str:
        """Return the names of its runs; "all runs" when it applies to all of them."""
        return "all runs" if len(self.runs) == num_runs > 1 else ", ".join(self.runs)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as in report.json."""
        keys = (
            "strategy", "world_size", "status", "reason", "gradient_difference", "loss_difference", "trained",
        )  # fmt: skip
        strategies = [{key: getattr(finding, key) for key in keys} for finding in self.findings]
        return {"path": str(self.path), "verdict": self.verdict, "runs": list(self.runs), "strategies": strategies}


def find_certificates(
    runs: Sequence[RunRecord], given: Sequence[Path]
) -> tuple[tuple[Certificate, ...], tuple[str, ...]]:
    """Return the certificates next to runs or in given folders, and notes on certificates of other runs."""
    certificates, notes = [], []
    places = [*(place for run in runs for place in _places(run)), *(folder.resolve() for folder in given)]
    for folder in dict.fromkeys(places):
        path = _from_here(folder / certificate.FILE)
        try:
            loaded = _read(path)
        except CheckpointError as error:
            notes.append(f"{error}; it is left out.")
            continue
        names = tuple(run.name for run in runs if _trains(run) == loaded.trains)
        if names:
            certificates.append(replace(loaded, runs=names))
        else:
            notes.append(f"{path} is of other data, weights or settings than these runs: it is left out.")
    return tuple(certificates), tuple(notes)


def certified(run: RunRecord, certificates: Sequence[Certificate]) -> tuple[str | None, str]:
    """Return status and path of the certificate for the strategy of a run; None when there is none."""
    own_certificates = [source for source in certificates if run.name in source.runs]
    values = [run.session_values(f"run.{key}") for key in ("strategy.kind", "strategy.options", "world_size")]
    if not own_certificates or any(len(values_of_sessions) > 1 for values_of_sessions in values):
        return None, "no certificate, or its strategy changed in a resume"
    kind, options, world_size = (values_of_sessions[0] for values_of_sessions in values)
    tried = [
        (source, finding)
        for source in own_certificates
        for finding in source.findings
        if finding.kind == kind and finding.options == options
    ]
    if not tried:
        is_reference = kind in TRAITS and TRAITS[kind].max_world_size == 1
        return "reference" if is_reference else "not tried", str(own_certificates[0].path)
    source, finding = min(tried, key=lambda pair: pair[1].world_size != world_size)
    ranks = "" if finding.world_size == world_size else f", {finding.world_size} ranks"
    return f"{finding.status}{ranks}", str(source.path)


def _places(run: RunRecord) -> Iterator[Path]:
    """Yield the folders next to a run that hold its certificates."""
    folder = run.folder.resolve()
    for place in (folder, folder.with_name(folder.name + certificate.SUFFIX)):
        if (place / certificate.FILE).is_file():
            yield place


def _from_here(path: Path) -> Path:
    """Return a path relative to the working directory, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _trains(run: RunRecord) -> tuple[Any, ...] | None:
    """Return the fields that a run and its certificate have in common; None when a field is not recorded.

    docs/reference/records.md lists it.
    """
    data, config = run.run.data.get("train") or RecordedData(), run.run.config
    weights, size = run.run.model.init_fingerprint, run.run.batch.global_batch_size
    values = (trained_fingerprint(config) if config else None, data.fingerprint, weights, size)
    return None if None in values else values


def _read(path: Path) -> Certificate:
    """Read a certificate.

    Raises:
        CheckpointError: It is damaged, or of another version.
    """
    try:
        value = records.read_json(path)
        if value["schema_version"] != certificate.SCHEMA_VERSION:
            text = f"{path} was written by another version of paratune"
            raise CheckpointError(text, code="run.other_version", path=path)
        findings = tuple(StrategyDifference(**finding) for finding in value["strategies"])
        precision = str(value["reference"]["precision"])
        tolerance = value["tolerance"][precision]
        how = (
            f"{value['num_steps']} steps of {value['global_batch_size']} samples in {precision}",
            f"allowed: gradients {tolerance['gradients']:.0e}, losses {tolerance['losses']:.0e}",
            certificate.trained_words(value.get("trained_tolerance", {})),
        )
        return Certificate(
            path=path,
            verdict=str(value["verdict"]),
            how="; ".join(filter(None, how)),
            findings=findings,
            rows=tuple((item.strategy, str(item.world_size), *cells(item), item.status) for item in findings),
            trains=(
                value["config_fingerprint"],
                value["data"]["train"]["fingerprint"],
                value["model"]["init_fingerprint"],
                value["global_batch_size"],
            ),
        )
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, OSError) as error:
        text = f"{plain(path)} is damaged: it is not a certificate ({plain(repr(error))[:80]})"
        raise CheckpointError(text, code="run.damaged", path=path) from error
