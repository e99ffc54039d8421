"""Writes a publication: claims, tables, records, and starting points that others can check."""

import csv
import io
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paratune import hardware, records
from paratune.base.atomic import replace_folder
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import format_bytes, utc_now
from paratune.config.own_code import named_code
from paratune.config.permission import admit
from paratune.errors import CheckpointError, ParatuneError, Stopped, coded, os_error_as
from paratune.hub.bundle import hash_file, name_problem
from paratune.records.finished import RunRecord
from paratune.records.own import is_own
from paratune.records.run_folder import trained_fingerprint
from paratune.records.sweep import CONFIGS_FOLDER, RUNS_FOLDER, SWEEP_FILE, read_sweep
from paratune.reports import make
from paratune.reports.comparison import systems_of_runs
from paratune.reports.matrix import make_sweep, read_joined
from paratune.reports.output import LATEX
from paratune.reports.page.document import document_html
from paratune.reports.run import run_document
from paratune.reports.runs.read import Unfinished, read_runs
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Table
from paratune.verify.claims import find_claims
from paratune.verify.page import publication_document
from paratune.verify.publication import (
    CONSTRAINTS,
    FILE,
    NAME_LENGTH,
    NUM_STEPS,
    PAGE,
    Publication,
    RunFacts,
    StartingPoint,
)
from paratune.verify.steps import (
    compare_steps,
    make_reference,
    other_data,
    probe_values,
    recorded_steps,
    repeat_steps,
    session_at,
)

log = logging.getLogger(__name__)
VERSIONS = ("paratune", "torch", "transformers", "tokenizers", "numpy")  # that can change the last bits
Paths = Mapping[str, str | list[str]]
AddInputs = Callable[[RunRecord, int], tuple[Mapping[str, Path], Paths]]
"""From a run and a number: its files by name in the publication, and those names by dotted key of the configuration."""


def publish(
    sources: Sequence[Path], out: Path, *, author: str | None, max_bytes: int, add_inputs: AddInputs | None,
    run_code: bool,
) -> Publication:  # fmt: skip
    """Write a publication of a matrix or of runs.

    Args:
        sources: One folder of a matrix, or folders of runs.
        out: New folder.
        max_bytes: Kept checkpoints are copied up to this size, of all together.
        add_inputs: Finds data and models of a run; None where they are not asked for.
        run_code: Also run the code that model folders name; for records of others, `permission.trust` is needed, too.

    Raises:
        CheckpointError: `out` exists or cannot be written, there is no finished run, no run can be repeated, or the
            first steps of one, as they are trained now, are not those of its record. Nothing is written then.
    """
    if out.exists():
        raise CheckpointError(f"{plain(out)} exists; choose a new folder", code="output.exists", folder=out)
    systems, unfinished = _systems(sources)
    remedy, where = "choose another --out", {"folder": out}
    with (
        os_error_as(CheckpointError, f"{plain(out)} cannot be written", remedy, code="output.not_writable", **where),
        replace_folder(out, is_new=True) as folder,
        scratch_folder() as scratch,
    ):
        _copy_records(sources[0], systems.runs, folder)
        tables = _write_report(folder, sources)
        starts, left_out = list[StartingPoint](), [f"{one.name}: {one.reason}" for one in unfinished]
        for line in left_out:
            log.warning("left out: %s", line, extra=coded("publication.no_start"))
        added: dict[str, Paths] = {}
        problem: ParatuneError | None = None
        for member in systems.measured:
            run, paths = member.runs[0], {}
            if add_inputs is not None:
                key = repr([run.run.config.get(section) for section in ("data", "model", "distil")])
                if key not in added:
                    files, added[key] = add_inputs(run, len(added))
                    for name, path in files.items():
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(path, folder / name)
                paths = dict(added[key])
            for checkpoint in (None, *(_checkpoints(run.folder) if max_bytes else [])):
                size = 0 if checkpoint is None else sum(path.stat().st_size for path in checkpoint.iterdir())
                if checkpoint is not None and size > max_bytes:
                    left_out.append(f"{run.name}/{checkpoint.name}: {format_bytes(size)}, see --max-size")
                    continue
                part = scratch / "part"
                part.mkdir()
                try:
                    starts.append(_start(run, part, paths, checkpoint, run_code=run_code))
                except Stopped:
                    raise
                except ParatuneError as error:
                    if error.code == "publication.not_repeated":
                        raise
                    problem = error
                    left_out.append(f"{run.name} has no starting point: {error}")
                    log.warning("%s", left_out[-1], extra=coded("publication.no_start", run=run.name))
                    break
                finally:
                    shutil.rmtree(part)  # with gradients and copies of checkpoints
                if checkpoint is not None:
                    max_bytes -= size
                    shutil.copytree(checkpoint, folder / str(starts[-1].checkpoint))
        if problem is not None and not starts:
            raise problem
        versions = hardware.package_versions()
        lines = [f"{name}=={version}\n" for name, version in versions.items() if version and name != "python"]
        (folder / CONSTRAINTS).write_text("".join(lines), encoding="utf-8")
        publication = Publication(
            name=systems.record.name if (folder / SWEEP_FILE).is_file() else out.name, author=author, created=utc_now(),
            versions=versions, hardware=[hardware.describe_node(Path())],
            runs=tuple(run_facts(run, member.label) for member in systems.measured for run in member.runs),
            starts=tuple(starts), claims=tuple(claim for claim, _ in find_claims(systems)),
            left_out=tuple(left_out), files=(),
        )  # fmt: skip
        (folder / PAGE).write_text(document_html(publication_document(publication, tables)), encoding="utf-8")
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        if unsafe := [name for name in names if name_problem(name, NAME_LENGTH) is not None]:
            message = f"{unsafe[0]!r} cannot be in a publication: it {name_problem(unsafe[0], NAME_LENGTH)}; rename it"
            raise CheckpointError(message, code="publication.unsafe", name=unsafe[0])
        publication = publication.model_copy(update={"files": tuple(hash_file(folder / name, name) for name in names)})
        records.write_json(folder / FILE, publication.model_dump(mode="json"))
    return publication


def run_facts(run: RunRecord, configuration: str) -> RunFacts:
    """Return what a run trained, from its record.

    Raises:
        ValueError: A value of the record has another type.
    """
    config, seed, size = run.run.config, run.run.seed, run.run.world_size
    return RunFacts(
        run=run.name, configuration=configuration, seed=None if seed is None else int(seed),
        strategy=run.run.strategy.kind, precision=run.setting("precision"),
        world_size=None if size is None else int(size), config=trained_fingerprint(config) if config else None,
        initial_weights=run.run.model.init_fingerprint,
        data={name: split.fingerprint for name, split in run.run.data.items() if split is not None},
        versions={name: run.run.versions.get(name) for name in VERSIONS},
    )  # fmt: skip


def _systems(sources: Sequence[Path]) -> tuple[Systems, Sequence[Unfinished]]:
    """Return the finished runs of a matrix, or those that are given, and the others.

    Raises:
        CheckpointError: There is none, or a name is no name of a folder.
    """
    matrices = [source for source in sources if (source / SWEEP_FILE).is_file()]
    if matrices and len(sources) > 1:
        message = f"{plain(matrices[0])} is a matrix of runs: publish it alone, or name its runs: {matrices[0]}/runs/*"
        raise CheckpointError(message, code="cli.conflict", folder=matrices[0])
    if matrices:
        systems: Systems = read_joined(matrices)
        unfinished = systems.unfinished
    else:
        found = read_runs(sources)
        systems, unfinished = systems_of_runs(found.runs), found.unfinished
    if not systems.runs:
        message = f"no run of {plain(sources[0])} is finished, so there is nothing to publish"
        raise CheckpointError(message, code="run.not_found", folder=sources[0])
    for run in systems.runs:
        if "/" in run.name or name_problem(run.name, NAME_LENGTH) is not None:
            message = f"{plain(run.name)} is no name of a folder, or two runs have it; publish runs with other names"
            raise CheckpointError(message, code="publication.unsafe", name=run.name)
    return systems, unfinished


def _copy_records(source: Path, runs: Sequence[RunRecord], folder: Path) -> None:
    """Copy the records of runs, and of their matrix."""
    if (source / SWEEP_FILE).is_file():
        shutil.copyfile(source / SWEEP_FILE, folder / SWEEP_FILE)
        if (text := read_sweep(source).matrix_text) is not None:
            (folder / "matrix.yaml").write_text(text, encoding="utf-8")
        if (source / CONFIGS_FOLDER).is_dir():
            shutil.copytree(source / CONFIGS_FOLDER, folder / CONFIGS_FOLDER)
    for run in runs:
        target = folder / RUNS_FOLDER / run.name
        target.mkdir(parents=True)
        wanted = (records.RUN_FILE, records.SUMMARY_FILE, records.events_file(0))
        for path in (*(run.folder / file for file in wanted), *run.folder.glob("predictions.*.parquet")):
            if path.is_file():
                shutil.copyfile(path, target / path.name)


def _write_report(folder: Path, sources: Sequence[Path]) -> tuple[Table, ...]:
    """Write the report of the runs and its tables; return the tables."""
    place = folder / "report"
    if (folder / SWEEP_FILE).is_file():
        matrix = make_sweep(sources, place, None, [], plan=None, margins=None, layout=None, wanted=(LATEX,))
        tables = tuple(table for section in matrix.sections for table in section.tables)
    else:
        parts = run_document(make(sources, place, wanted=(LATEX,))).parts
        tables = tuple(part for part in parts if isinstance(part, Table))
    (place / "tables").rename(folder / "tables")
    for table in tables:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([table.header, *table.rows])
        (folder / "tables" / f"{table.key}.csv").write_text(text.getvalue(), encoding="utf-8")
    return tables


def _start(run: RunRecord, scratch: Path, inputs: Paths, checkpoint: Path | None, *, run_code: bool) -> StartingPoint:
    """Train the first steps of a run again, and demand those of its record.

    Raises:
        CheckpointError: They differ by more than rounding can cause (`publication.not_repeated`).
        ParatuneError: They cannot be trained here; or the record of somebody else names code.
    """
    if run.is_fitted:
        raise CheckpointError("it has no training steps", code="publication.not_here", run=run.name)
    after = 0 if checkpoint is None else int(checkpoint.name.removeprefix("step_"))
    recorded, expected = session_at(run, after), recorded_steps(run.folder, NUM_STEPS, after)
    values = probe_values(recorded, {}, scratch)
    named, record = named_code(values), run.folder / records.RUN_FILE
    admit(named, record, is_own=is_own(records.read_json(record)))
    code = "models" if run_code else "config" if named else ""
    found = repeat_steps(recorded, values, (after, len(expected.losses)), scratch, code=code, checkpoint=checkpoint)
    compared = compare_steps(expected, found, str(recorded.config.get("precision")), after)
    assert found.run is not None
    changed = other_data(run.run, found.run)
    if compared.status == "different" or changed:
        why = "; ".join(filter(None, (*changed, compared.reason)))
        message = f"{run.name} cannot be repeated here: {why}. Publish it where it was trained, with the same data and "
        message += "versions, or leave it out"
        raise CheckpointError(message, code="publication.not_repeated", run=run.name, step=compared.first_step)
    if compared.status != "equal":
        text = "%s is repeated within the bound %s, and not to the bit: %s"
        where = coded("publication.not_equal", run=run.name)
        log.warning(text, run.name, compared.bound, compared.reason, extra=where)
    reference, reason = None, compared.reason
    if checkpoint is None:
        try:
            reference = make_reference(recorded, values, len(expected.losses), scratch / "reference", code=code)
        except Stopped:
            raise
        except ParatuneError as error:
            reason = "; ".join(filter(None, (reason, f"no reference for other machines: {error}")))
    return StartingPoint(
        run=run.name, step=after, losses=found.losses, grad_norms=found.grad_norms, reason=reason,
        weights=tuple(dict(one) for one in found.weights), reference=reference, inputs=dict(inputs),
        repeated=compared.status,  # type: ignore[arg-type]
    )  # fmt: skip


def _checkpoints(origin: Path) -> list[Path]:
    """Return the kept checkpoints of a run after which it has steps."""
    last = records.num_logged_steps(origin, 0)
    found = sorted((origin / records.CHECKPOINTS_FOLDER).glob("step_*"))
    return [path for path in found if path.name[5:].isdigit() and int(path.name[5:]) < last]
