"""Certificates of `paratune certify`, and the runs that each applies to.

Certificates in or next to a run folder are found automatically; others are given on the command line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import certificate
from paratune.records.certificate import COLUMNS, StrategyDifference, cells
from paratune.records.finished import RunRecord
from paratune.records.run_folder import trained_fingerprint
from paratune.reports.tables.table import Table, TableCell, make_table


@dataclass(frozen=True)
class Certificate:
    """A certificate of runs of a report."""

    path: Path
    runs: tuple[str, ...]  # names of the runs that it applies to
    verdict: str
    how: str  # steps, samples, precision and tolerances in words
    findings: tuple[StrategyDifference, ...]
    rows: tuple[tuple[str, ...], ...]  # the findings as texts, in the order of `certificate.COLUMNS`

    @property
    def sentence(self) -> str:
        """The result of each strategy in words, with the reasons why strategies differ or cannot run."""
        same = [f"{item.strategy} ({item.world_size} ranks)" for item in self.findings if item.status == "holds"]
        parts = [f"{', '.join(same)} trained the same as one process"] if same else []
        parts += [f"{item.strategy} {item.status}: {item.reason}" for item in self.findings if item.reason]
        return f"{'; '.join(parts)}. {self.how}."

    def run_names(self, num_runs: int) -> str:
        """Return the names of its runs; "all runs" when it applies to all of them."""
        return "all runs" if len(self.runs) == num_runs > 1 else ", ".join(self.runs)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as in report.json."""
        keys = ("strategy", "world_size", "status", "reason", "gradient_difference", "loss_difference", "trained")
        strategies = [{key: getattr(finding, key) for key in keys} for finding in self.findings]
        return {"path": str(self.path), "verdict": self.verdict, "runs": list(self.runs), "strategies": strategies}


def find_certificates(
    runs: Sequence[RunRecord], given: Sequence[Path]
) -> tuple[tuple[Certificate, ...], tuple[str, ...]]:
    """Return the certificates next to runs or in given folders, and notes on those that are left out."""
    certificates, notes = [], []
    own = [run.folder.resolve() for run in runs]
    beside = (place for folder in own for place in (folder, folder.with_name(folder.name + certificate.SUFFIX)))
    places = [place for place in beside if (place / certificate.FILE).is_file()]
    places += [folder.resolve() for folder in given]
    trains = {run.name: _trains(run) for run in runs} if places else {}
    for folder in dict.fromkeys(places):
        path = folder / certificate.FILE
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        try:
            found = _read(path, trains)
        except CheckpointError as error:
            notes.append(f"{error}; it is left out.")
            continue
        if found.runs:
            certificates.append(found)
        else:
            notes.append(f"{path} is of other data, weights or settings than these runs: it is left out.")
    return tuple(certificates), tuple(notes)


def certificates_table(
    certificates: Sequence[Certificate], num_runs: int, notes: Sequence[str] = ()
) -> Iterator[Table]:
    """Yield the table of the strategies of certificates, if there are any; `notes` are below it."""
    rows = [
        [TableCell(text, runs=item.runs, source=str(item.path)) for text in (*row, item.run_names(num_runs))]
        for item in certificates for row in item.rows
    ]  # fmt: skip
    columns = [*map(str.capitalize, COLUMNS), "Runs"]
    remarks = [f"{item.path}: {item.sentence}" for item in certificates]
    remarks += ["The numbers are the largest relative differences."] if certificates else []
    if remarks or notes:
        title = "Certificates: compared with one process"
        yield make_table("certificates", title, columns, rows, 1, (*remarks, *notes))


def _trains(run: RunRecord) -> tuple[Any, ...] | None:
    """Return the fields that a run and its certificate have in common; None when a field is not recorded.

    docs/reference/records.md lists them.
    """
    config = run.run.config
    weights, size = run.run.model.init_fingerprint, run.run.batch.global_batch_size
    values = (trained_fingerprint(config) if config else None, run.data("train").fingerprint, weights, size)
    return None if None in values else values


def _read(path: Path, runs: Mapping[str, tuple[Any, ...] | None]) -> Certificate:
    """Read a certificate, and find its runs among these, by their names and `_trains`.

    Raises:
        CheckpointError: It is damaged, or of another version.
    """
    try:
        value = records.read_object(path, "run paratune certify again")
        fingerprints = (value["data"]["train"]["fingerprint"], value["model"]["init_fingerprint"])
        trains = (value["config_fingerprint"], *fingerprints, value["global_batch_size"])
        findings = tuple(StrategyDifference(**finding) for finding in value["strategies"])
        precision = str(value["reference"]["precision"])
        tolerance = value["tolerance"][precision]
        how = (
            f"{value['num_steps']} steps of {value['global_batch_size']} samples in {precision}",
            f"allowed: gradients {tolerance['gradients']:.0e}, losses {tolerance['losses']:.0e}",
            certificate.trained_words(value.get("trained_tolerance", {})),
        )
        rows = tuple((item.strategy, str(item.world_size), *cells(item), item.status) for item in findings)
        names = tuple(name for name, own in runs.items() if own == trains)
        return Certificate(path, names, str(value["verdict"]), "; ".join(filter(None, how)), findings, rows)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, OSError) as error:
        text = f"{plain(path)} is damaged: it is not a certificate ({plain(repr(error))[:80]})"
        raise CheckpointError(text, code="run.damaged", path=path) from error
