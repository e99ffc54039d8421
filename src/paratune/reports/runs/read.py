"""Reads the records of finished runs, and the certificates of `paratune certify` that apply to them.

Damaged records raise an error, all at once; unfinished runs are listed. Certificates in or next to a run folder are
found automatically; others are given on the command line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from paratune import records
from paratune.base.grouping import grouped
from paratune.base.text import listing, plain
from paratune.base.units import counted
from paratune.errors import CheckpointError, Fault
from paratune.records import certificate
from paratune.records.certificate import COLUMNS, StrategyDifference, cells
from paratune.records.finished import RunRecord, number_in, read_record, read_typed, steps_taken
from paratune.records.run_folder import trained_fingerprint
from paratune.records.trainer_folder import read_trainer_folder, state_file
from paratune.records.typed import RunFile
from paratune.reports.tables.table import Table, TableCell, make_table
from paratune.verdicts.scoring import CannotTell, DamagedFile, read_rows


@dataclass(frozen=True)
class Certificate:
    """A certificate of runs of a report."""

    path: Path
    runs: tuple[str, ...]  # names of the runs that it applies to
    verdict: str
    how: str  # steps, samples, precision and tolerances in words
    findings: tuple[StrategyDifference, ...]

    @property
    def sentence(self) -> str:
        """The result of each strategy in words, with the reasons why strategies differ or cannot run."""
        held = [item for item in self.findings if item.status == "holds"]
        same = [f"{item.strategy} ({item.world_size} rank{'s' * (item.world_size > 1)})" for item in held]
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
    trains: dict[str, tuple[Any, ...] | None] = {}  # what runs and certificates record: docs/reference/records.md
    for run in runs if places else ():
        config, model = run.run.config, run.run.model
        weights, size = model.init_fingerprint, run.run.batch.global_batch_size
        values = (trained_fingerprint(config) if config else None, run.data("train").fingerprint, weights, size)
        trains[run.name] = None if None in values else values
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
    rows = []
    for item in certificates:
        for found in item.findings:
            texts = (found.strategy, str(found.world_size), *cells(found), found.status, item.run_names(num_runs))
            rows.append([TableCell(text, runs=item.runs, source=str(item.path)) for text in texts])
    columns = [*map(str.capitalize, COLUMNS), "Runs"]
    remarks = [f"{item.path}: {item.sentence}" for item in certificates]
    remarks += ["The numbers are the largest relative differences."] if certificates else []
    if remarks or notes:
        title = "Certificates: compared with one process"
        yield make_table("certificates", title, columns, rows, 1, (*remarks, *notes))


def _read(path: Path, runs: Mapping[str, tuple[Any, ...] | None]) -> Certificate:
    """Read a certificate, and find its runs among these, by what they train.

    Raises:
        CheckpointError: It is damaged, or of another version.
    """
    try:
        value = records.read_object(path, "run paratune certify again")
        fingerprints = (value["data"]["train"]["fingerprint"], value["model"]["init_fingerprint"])
        trains = (value["config_fingerprint"], *fingerprints, value["global_batch_size"])
        findings = TypeAdapter(tuple[StrategyDifference, ...]).validate_python(value["strategies"])
        for finding in findings:
            cells(finding)  # raises where a difference of the precision that trains is none
        precision = str(value["reference"]["precision"])
        tolerance = value["tolerance"][precision]
        how = (
            f"{value['num_steps']} steps of {value['global_batch_size']} samples in {precision}",
            f"allowed: gradients {tolerance['gradients']:.0e}, losses {tolerance['losses']:.0e}",
            certificate.trained_words(value.get("trained_tolerance", {})),
        )
        names = tuple(name for name, own in runs.items() if own == trains)
        return Certificate(path, names, str(value["verdict"]), "; ".join(filter(None, how)), findings)
    except (KeyError, TypeError, ValueError) as error:
        text = f"{plain(path)} is damaged: it is no certificate ({plain(repr(error))[:80]}); run paratune certify again"
        raise CheckpointError(text, code="run.damaged", path=path) from error


@dataclass(frozen=True)
class Unfinished:
    """A run that is not finished."""

    name: str
    folder: Path
    reason: str  # progress and end of the run, from its events


@dataclass(frozen=True)
class FoundRuns:
    """Runs in a list of folders, and their certificates."""

    runs: tuple[RunRecord, ...]
    unfinished: tuple[Unfinished, ...]
    notes: tuple[str, ...]
    certificates: tuple[Certificate, ...] = ()
    warnings: tuple[str, ...] = ()  # what event logs lack


def reasons_text(unfinished: Iterable[Unfinished]) -> str:
    """Return a line for each reason, with the folders of its runs."""
    by_reason = grouped((run.reason, str(run.folder)) for run in unfinished)
    return "".join(f"\n  {plain(listing(folders, 3))}: {plain(reason)}" for reason, folders in by_reason.items())


def read_runs(folders: Sequence[Path]) -> FoundRuns:
    """Read the records of finished runs in the given order, each once.

    Raises:
        CheckpointError: No folder is given; one is not a run, is damaged or of another schema version; or none is
            finished.
    """
    if not folders:
        text = "no run is given; name one or more run folders, such as runs/first runs/second"
        raise CheckpointError(text, code="run.not_found")
    found: list[RunRecord | Unfinished] = []
    problems: list[Fault] = []
    given: list[Path] = []
    facts_of: dict[Path, str] = {}  # what files of folders of the Trainer say, in words
    named = grouped((folder.resolve(), folder) for folder in folders)
    for folder, *_ in named.values():
        if state_file(folder) is not None:
            try:
                record, facts_of[folder], why = read_trainer_folder(folder)
                found.append(record if why is None else Unfinished(record.name, folder, why))
            except CheckpointError as error:
                problems += error.faults
            continue
        if (folder / certificate.FILE).is_file() and not (folder / records.RUN_FILE).exists():
            given.append(folder)
            continue
        try:
            if records.is_finished(folder):
                record = read_record(folder, "")
                found.append(replace(record, name=str(record.run.run_id)))
                continue
            run = read_typed(folder, RunFile)
            found.append(Unfinished(str(run.run_id), folder, _progress_text(folder, run)))
        except CheckpointError as error:
            problems += error.faults
    own = [record for record in found if isinstance(record, RunRecord) and not record.is_foreign]
    warnings = log_warnings(own, problems)
    if problems:
        heading = f"{len(problems)} of {len(folders)} folders cannot be reported:"
        raise CheckpointError(heading, code=problems[0].code, faults=problems)
    unfinished = tuple(record for record in found if isinstance(record, Unfinished))
    finished = [record for record in found if isinstance(record, RunRecord)]
    names = [run.name for run in finished]
    parts = {run.folder: run.folder.resolve().parts for run in finished if names.count(run.name) > 1}
    depth = next(depth for depth in count(2) if len({path[-depth:] for path in parts.values()}) == len(parts))
    unique = {folder: "/".join(path[-depth:]) for folder, path in parts.items()}
    runs = tuple(replace(run, name=unique.get(run.folder, run.name)) for run in finished)
    if foreign := [f"{run.name} ({facts_of[run.folder]})" for run in runs if run.is_foreign]:
        text = f"Hugging Face's Trainer, without a record of paratune: {listing(foreign, 4)}; settings are unknown."
        warnings = (text, *warnings)
    if not runs:
        text = f"{', '.join(map(plain, given))}: a certificate and not a run; give the runs of the certificate, too"
        if unfinished:
            text = f"no run is finished, so there is nothing to report:{reasons_text(unfinished)}"
        raise CheckpointError(text, code="run.not_found")
    certificates, of_others = find_certificates(runs, given)
    several = (f"{names[0]} is given {len(names)} times, and shown once." for names in named.values() if len(names) > 1)
    return FoundRuns(runs, unfinished, (*several, *of_others), certificates, warnings)


def log_warnings(runs: Sequence[RunRecord], problems: list[Fault]) -> tuple[str, ...]:
    """Return a sentence on event logs that lack steps, and one on damaged prediction files, if there are any.

    Logs with damaged lines are added to `problems`.
    """
    lost = []
    for run in runs:
        sizes = [run.run.world_size, *(session.get("world_size") for session in run.run.sessions)]
        # Ranks of all sessions: others have the steps of some of them.
        num_ranks, taken = int(min(filter(None, map(number_in, sizes)), default=1)), steps_taken(run) or 0
        for rank in range(min(num_ranks, records.MAX_RANKS)):
            try:
                if (logged := records.num_logged_steps(run.folder, rank)) < taken:
                    lost.append(f"{run.folder / records.events_file(rank)} has {logged:,} of {taken:,.0f} steps")
            except CheckpointError as error:
                problems += error.faults
    text = (
        "Curves over the steps and times to a target leave the lost steps out; all other figures are of summary.json. "
        "Copy the logs again, train the runs again with --overwrite, or leave them out."
    )
    warnings = [f"{listing(lost, 3)}. {text}"] if lost else []
    damaged = []
    for run in runs:
        for split in run.summary.scores:
            try:
                read_rows(run, split)
            except DamagedFile as error:
                path = plain(run.folder / records.predictions_file(split))
                why = plain(error.__cause__ or error).rpartition(f"'{path}': ")[2]
                damaged.append(f"{path}: {why.rstrip('.')}")
            except CannotTell:  # no file, or a single row
                continue
    if damaged:
        first = "the first one is " if len(damaged) > 1 else ""
        warnings.append(
            f"{counted(len(damaged), 'prediction file')} cannot be read: {first}{damaged[0]}. "
            "Scores of these runs are compared without their rows. Copy the files again, or train the runs again with "
            "--overwrite."
        )
    return tuple(warnings)


def _progress_text(folder: Path, run: RunFile) -> str:
    if run.kind == "form":
        return "not measured; repeat paratune compress"
    planned, last, stop = run.plan.num_steps, 0, None
    for event in records.read_events(folder):
        if event["event"] == "step":
            last, stop = event.get("step", last), None
        elif event["event"] == "stop":
            stop = event
    reached = f"step {last} of {planned}" if planned else f"step {last}"
    if stop is None:
        return f"not finished: it still runs or was cut off; last logged {reached}"
    what_resume_does = "evaluates and writes the model" if last == planned else "continues"
    return f"stopped by {stop.get('signal')} at {reached}; --resume {what_resume_does}"
