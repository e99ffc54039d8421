"""Checks a publication on this machine: files, claims, and the first steps of its runs. None of its code runs."""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paratune import __version__, hardware, records
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import utc_now
from paratune.config.own_code import imported_code
from paratune.config.plain import flatten
from paratune.config.yaml_tree import read_scalar
from paratune.errors import CheckpointError, ConfigError, LaunchError, MissingDependency, Stopped, coded, option_error
from paratune.records.finished import RunRecord, gpus_of, read_record
from paratune.records.run_folder import trained_fingerprint
from paratune.records.sweep import RUNS_FOLDER, SWEEP_FILE, read_sweep, write_sweep
from paratune.records.typed import RunFile
from paratune.reports.published import UNTOLD
from paratune.verify.claims import agreement, changed_claims, choose_runs, find_claims, key_of, read_systems
from paratune.verify.publication import INPUT, Publication, StartingPoint, differing, opened
from paratune.verify.publish import VERSIONS, run_facts
from paratune.verify.steps import (
    MAX_PROCESSES,
    StepComparison,
    Steps,
    compare_steps,
    compare_with_reference,
    other_data,
    probe_values,
    recorded_steps,
    repeat_steps,
    session_at,
    steps_of,
    train_again,
)

log = logging.getLogger(__name__)
WAYS = {"precision": ("fp32", "tf32", "bf16", "fp16"), "device": ("auto", "cpu", "cuda")}
"""What --set may change, besides the places of data and model, with the allowed values."""


@dataclass(frozen=True)
class Way:
    """How the steps are computed here."""

    inputs: Mapping[str, Any]  # other places of data and models, by dotted key
    strategy: str | None = None  # None: as the run was trained
    nproc: int | None = None
    precision: str | None = None
    device: str | None = None
    run_code: bool = False

    @property
    def is_other(self) -> bool:
        return (self.strategy, self.nproc, self.precision, self.device) != (None,) * 4

    def values_of(
        self, run: RunFile, folder: Path, start: StartingPoint | None, place: Path, **more: Any
    ) -> dict[str, Any]:
        """Return `probe_values` of a run with the places here; `folder` is that of the publication."""
        own: dict[str, Any] = {}
        for key, value in (start.inputs if start is not None else {}).items():
            paths = [
                one if one.startswith("demo:") else str(folder / one)
                for one in (value if isinstance(value, list) else [value])
            ]
            own[key] = paths if isinstance(value, list) else paths[0]
        device = {} if self.device is None else {"device": self.device}
        return probe_values(run, own | dict(self.inputs) | device, place, **more)

    def refuse_code(self, values: Mapping[str, Any]) -> None:
        """Raise an error for a configuration that names code, unless it may run."""
        if (code := imported_code(values)) and not self.run_code:
            raise ConfigError(f"it names code, which needs --run-code: {'; '.join(code)}", code="code.refused")


def read_way(words: Sequence[str], strategy: str | None, nproc: int | None, *, run_code: bool) -> Way:
    """Return how the steps are computed from the options; `words` are KEY=VALUE.

    Raises:
        ConfigError: A word is no KEY=VALUE, or changes what is trained; or there are too many processes.
    """
    inputs, ways = dict[str, Any](), dict[str, Any]()
    for word in words:
        key, _, text = word.partition("=")
        try:
            value = read_scalar(text)
        except ValueError as error:
            raise option_error("--set", word, f"its value is {error}", code="cli.invalid_value") from error
        if isinstance(value, str) and INPUT.fullmatch(key) is not None:
            inputs[key] = value
        elif key in WAYS and value in WAYS[key]:
            ways[key] = value
        else:
            allowed = "data.train=PATH and other places of data or models, "
            allowed += ", ".join(f"{name}={'|'.join(values)}" for name, values in WAYS.items())
            raise option_error("--set", word, f"allowed are {allowed}", code="cli.invalid_value")
    if nproc is not None and not 1 <= nproc <= MAX_PROCESSES:
        raise option_error("--nproc", nproc, f"1 to {MAX_PROCESSES} are allowed", code="cli.invalid_value")
    return Way(inputs, strategy, nproc, run_code=run_code, **ways)


def verify(path: Path, way: Way, *, hours: float | None, out: Path) -> dict[str, Any]:
    """Return the result of a verification, which report.json has as `result`.

    Args:
        path: Folder or zip of a publication.
        hours: Time for runs that decide the claims again; None for none.
        out: Folder for those runs.

    Raises:
        CheckpointError: It is no publication, or not safe to read.
    """
    with opened(path) as (folder, publication, problems), scratch_folder() as scratch:
        facts, known, code, unknown = _records(folder, publication)
        if code:
            text = "it names code of its own, which is %s: %s"
            where = coded("publication.own_code", names=code)
            log.warning(text, "run (--run-code)" if way.run_code else "not imported", "; ".join(code), extra=where)
        machine = _machine(publication)
        starts, ratios = list[dict[str, Any]](), list[float]()
        for number, start in enumerate(publication.starts):
            part = scratch / str(number)
            part.mkdir()
            found, ratio = _check_start(folder, start, known.get(start.run), part, way)
            shutil.rmtree(part)
            ratios += [] if ratio is None else [ratio]
            starts.append({"run": start.run, "step": start.step, **asdict(found)})
        claims, rerun, is_computed = list[str](), None, False
        try:
            if len(known) < len(publication.runs):
                raise CheckpointError("not all records can be read", code="run.damaged")
            systems = read_systems(folder, [one.run for one in publication.runs])
            decided = find_claims(systems)
            same_words = publication.versions.get("paratune") == __version__
            claims, is_computed = changed_claims(publication.claims, decided, same_words=same_words), True
            labels = {run.name: member.label for member in systems.measured for run in member.runs}
            facts += [
                f"{one.run} is of the configuration {labels.get(one.run)}, and publication.json has {one.configuration}"
                for one in publication.runs
                if labels.get(one.run, one.configuration) != one.configuration
            ]
            if hours is not None:
                seconds = {name: _expected_s(record, ratios) for name, record in known.items()}
                chosen = choose_runs(decided, systems, seconds.get, hours * 3600)
                rerun = _rerun(folder, publication, known, chosen, hours, out, way)
        except Stopped:
            raise
        except Exception as error:  # whatever records of others have
            unknown.append(f"the claims cannot be computed: {plain(error)}")
        statuses = [one["status"] for one in starts]
        verdict = "different" if problems or facts or claims or "different" in statuses else "not checked"
        if verdict != "different" and not unknown and statuses.count("not checked") < len(statuses):
            verdict = "within the bound" if "within the bound" in statuses else "equal"
        without = {one.configuration for one in publication.runs}
        without -= {
            one.configuration for one in publication.runs if one.run in {start.run for start in publication.starts}
        }
        return {
            "publication": publication.name, "source": str(path), "author": publication.author, "created": utc_now(),
            "verdict": verdict, "files": {"num": len(publication.files), "problems": list(problems)}, "facts": facts,
            "own_code": code, "machine": machine, "versions": hardware.package_versions(), "starts": starts,
            "claims": {"num": len(publication.claims), "problems": claims, "checked": is_computed},
            "rerun": rerun,
            "not_checked": [
                *unknown, *publication.left_out, *(f"{one} has no starting point" for one in sorted(without)),
                *(f"{one['run']}: {one['reason']}" for one in starts if one["status"] == "not checked"),
            ],
        }  # fmt: skip


def _records(folder: Path, publication: Publication) -> tuple[list[str], dict[str, RunRecord], list[str], list[str]]:
    """Return what records do not have as publication.json says, the records, code that they name, and unread ones."""
    facts, found, code, unknown = list[str](), dict[str, RunRecord](), list[str](), list[str]()
    for known in publication.runs:
        try:
            record = read_record(folder / RUNS_FOLDER / known.run, known.run)
            own = run_facts(record, known.configuration).model_dump()
            code += [f"{known.run}: {name}" for name in map(plain, imported_code(record.run.config))]
            section = record.run.config.get("run")
            own["seed of the configuration"] = section.get("seed") if isinstance(section, dict) else None
            said = flatten(known.model_dump()) | {"seed of the configuration": own["seed"]}
            facts += [f"{known.run}: {text}" for text in differing(said, flatten(own), "in its record")]
        except Exception as error:
            unknown.append(f"the record of {known.run} cannot be read: {plain(error)}")
            continue
        found[known.run] = record
    for start in publication.starts:
        try:
            recorded = recorded_steps(folder / RUNS_FOLDER / start.run, len(start.losses), start.step)
        except Exception as error:
            unknown.append(f"{start.run}: {plain(error)}")
            continue
        said_steps = Steps(start.losses, start.grad_norms)
        precision = str(found[start.run].setting("precision")) if start.run in found else ""
        if compare_steps(recorded, said_steps, precision).status not in ("equal", str(start.repeated)):
            facts.append(f"{start.run}: the losses after step {start.step} are not those of its record")
    listed = {known.run for known in publication.runs}
    runs = folder / RUNS_FOLDER
    others = sorted(path.name for path in (runs.iterdir() if runs.is_dir() else ()) if path.name not in listed)
    facts += [f"{plain(name)} has a record and is not in publication.json" for name in others]
    return facts, found, code, unknown


def _machine(publication: Publication) -> list[str]:
    """Return how this machine differs from that of the author, in what can change the last bits."""
    found = differing({name: publication.versions.get(name) for name in VERSIONS}, hardware.package_versions())
    here = hardware.describe_node(Path())
    for node in publication.hardware[:1]:
        found += differing({key: node.get(key) for key in ("cpu_model", "cpu_flags")}, here)
        found += differing({"GPUs": _gpu_names([node])}, {"GPUs": _gpu_names([here])})
    return found


def _gpu_names(nodes: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(gpu.get("name")) for node in nodes for gpu in gpus_of(node)})) or "none"


def _check_start(
    folder: Path, start: StartingPoint, record: RunRecord | None, scratch: Path, way: Way
) -> tuple[StepComparison, float | None]:
    """Train the steps of a starting point: to the bit, else by the bound.

    Returns:
        How they compare, and how many times as long a step takes here as in the record.
    """
    found, ratio, reasons = None, None, list[str]()
    try:
        if record is None:
            raise CheckpointError("its record cannot be read", code="run.damaged")
        run = session_at(record, start.step)
        values = way.values_of(run, folder, start, scratch)
        way.refuse_code(values)
        code, reason = "models" if way.run_code else "", ""
        if run.world_size not in range(1, MAX_PROCESSES + 1):
            raise CheckpointError(f"it has {run.world_size} processes", code="run.damaged")
        if not way.is_other:
            checkpoint = None if start.checkpoint is None else folder / start.checkpoint
            place = start.step, len(start.losses)
            try:
                steps = repeat_steps(run, values, place, scratch, code=code, checkpoint=checkpoint)
            except (ConfigError, LaunchError, MissingDependency) as error:  # such as too few devices
                reason = str(error)
            else:
                assert steps.run is not None
                found = compare_steps(steps_of(start), steps, str(run.config.get("precision")), start.step)
                reasons = other_data(run, steps.run)
                # Dropout has other masks on another kind of device.
                gpus = [_gpu_names(one.hardware) if one.device == "cuda" else "" for one in (run, steps.run)]
                is_same_device = run.device == steps.run.device and gpus[0] == gpus[1]
                if not (same_weights := run.model.init_fingerprint == steps.run.model.init_fingerprint):
                    reasons.append("the initial weights are not those of the record")
                reason = "; ".join(filter(None, (*reasons, found.reason)))
                found = replace(found, status="different" if reasons else found.status, reason=reason or None)
                recorded = recorded_steps(folder / RUNS_FOLDER / start.run, *reversed(place))
                ratio = steps.step_ms / recorded.step_ms if steps.step_ms and recorded.step_ms else None
                same_values = (steps.losses, steps.grad_norms) == (start.losses, start.grad_norms)
                if found.status == "within the bound" and same_values and run.device == "cpu":
                    found = replace(found, status="different")  # only hashes of weights differ
                if found.status != "different" or (same_weights and (is_same_device or reasons)):
                    return found, ratio
                if start.reference is None and not reasons:
                    found = None
        if start.reference is None:
            why = "; ".join(filter(None, (reason, start.reason or "a later starting point has no reference")))
            raise CheckpointError(
                f"it cannot be compared with another way or device: {why}", code="publication.not_here"
            )
        by_bound = compare_with_reference(
            run, values, start.reference, way.strategy or str(values["strategy"]["kind"]),
            way.nproc or int(run.world_size or 1), scratch / "bound", precision=way.precision, code=code,
        )  # fmt: skip
    except Stopped:
        raise
    except Exception as error:
        if found is not None and found.status != "equal":
            return found, ratio
        log.warning("%s is not checked: %s", start.run, error, extra=coded("publication.not_checked", run=start.run))
        return StepComparison("not checked", plain(error)), ratio
    reason = "; ".join(dict.fromkeys(filter(None, (*reason.split("; "), *(by_bound.reason or "").split("; ")))))
    if found is not None and (reasons or by_bound.status == "different"):
        step = 0 if by_bound.first_step == 0 else found.first_step
        by_bound = replace(by_bound, status="different", first_step=step, tensors=by_bound.tensors or found.tensors)
    return replace(by_bound, reason=reason), ratio


def _expected_s(record: RunRecord, ratios: Sequence[float]) -> float | None:
    """Return the expected seconds of a run here: the recorded ones, times how much longer a step takes here."""
    took = record.summary.time.total_s
    return None if took is None else float(took) * (sorted(ratios)[len(ratios) // 2] if ratios else 1.0)


def _rerun(
    folder: Path, publication: Publication, known: Mapping[str, RunRecord], chosen: tuple[Any, ...], hours: float,
    out: Path, way: Way,
) -> dict[str, Any]:  # fmt: skip
    """Make the chosen runs, and judge the claims by them alone."""
    names, claims, left_out, seconds = chosen
    names = [name for name in names if name in known]
    configurations = {one.run: one.configuration for one in publication.runs}
    starts = {configurations[start.run]: start for start in publication.starts if start.run in configurations}
    began, failed, made = time.monotonic(), list[str](), list[str]()
    sweep = read_sweep(folder) if (folder / SWEEP_FILE).is_file() else None
    variables = {} if sweep is None else {cell.name: cell.environment for cell in sweep.cells}
    for name in names:
        record, place = known[name], out / RUNS_FOLDER
        try:
            values = way.values_of(record.run, folder, starts.get(configurations[name]), place, name=name)
            way.refuse_code(values)
            values |= {"measure": record.run.config["measure"] | {"profile_steps": 0, "plan": False}}
            values["checkpoint"] |= {"every": "never", "steps": None}
            values["data"]["num_workers"] = record.run.config["data"].get("num_workers", 0)  # times depend on it
            if not _is_made(place / name, values):
                if (left_s := hours * 3600 - (time.monotonic() - began)) < 1:
                    failed.append(f"{name}: the time was over")
                    continue
                if set(variables.get(name, ())) - {"OMP_NUM_THREADS"}:
                    raise ConfigError("its matrix sets variables of the environment", code="publication.not_here")
                with scratch_folder() as scratch:
                    code = "models" if way.run_code else ""
                    train_again(record.run, values, None, scratch, code=code, limit_s=left_s)
            made.append(name)
        except Stopped:
            raise
        except Exception as error:
            failed.append(f"{name}: {plain(error)}")
            log.warning("%s was not made: %s", name, error, extra=coded("publication.not_checked", run=name))
    own: dict[tuple[str, ...], Any] = {}
    if made:
        if sweep is not None:
            cells = [replace(cell, state="finished" if cell.name in made else "pending") for cell in sweep.cells]
            write_sweep(out, replace(sweep, cells=tuple(cells), looks=(), rounds=None))
        own = {key_of(claim): claim for claim, _ in find_claims(read_systems(out, made))}
    lines = []
    for claim in claims:
        here = own.get(key_of(claim))
        words = "n/a: not all of its runs were made" if here is None else here.claim
        lines.append({
            "claim": claim.claim, "published": claim.result, "agrees": agreement(claim, here), "here": words,
        })  # fmt: skip
    return {
        "hours": (time.monotonic() - began) / 3600, "expected_hours": seconds / 3600, "runs": made, "failed": failed,
        "claims": lines, "left_out": left_out,
    }  # fmt: skip


def _is_made(folder: Path, values: Mapping[str, Any]) -> bool:
    """Return whether an earlier call made this run.

    Raises:
        CheckpointError: The folder is another run's.
    """
    if not records.is_finished(folder):
        return False
    if trained_fingerprint(read_record(folder, "").run.config) != trained_fingerprint(values):
        message = f"{plain(folder)} is another run; give another --out"
        raise CheckpointError(message, code="output.foreign", folder=folder)
    return True


def class_lines(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return what a table of several publications shows of each; nothing is trained."""
    lines, trained, timed = list[dict[str, Any]](), list[set[str]](), list[set[str]]()
    for path in paths:
        line: dict[str, Any] = {"name": str(path), "author": None, "num_runs": 0, "problems": [], "claims": []}
        losses, times = set[str](), set[str]()
        try:
            with opened(path) as (folder, publication, problems):
                line |= {"author": publication.author, "num_runs": len(publication.runs), "problems": [*problems]}
                line["claims"] = [f"{one.claim} [{one.result}]" for one in publication.claims if one.result != UNTOLD]
                facts, known, code, unknown = _records(folder, publication)
                line["problems"] += [*facts, *unknown, *(f"names code: {name}" for name in code)]
                line["problems"] += changed_claims(publication.claims, find_claims(read_systems(folder, [*known])))
                for name in known:
                    steps = [
                        event for event in records.read_events(folder / RUNS_FOLDER / name) if event["event"] == "step"
                    ]
                    losses |= {repr([(step.get("loss"), step.get("grad_norm")) for step in steps])} if steps else set()
                    walls = [step.get("wall_ms") for step in steps]
                    times |= {repr(walls)} if any(walls) else set()
        except Exception as error:
            line["problems"].append(plain(error))
        lines.append(line)
        trained.append(losses)
        timed.append(times)
    for at, line in enumerate(lines):
        for key, groups in (("equal_to", trained), ("copy_of", timed)):
            line[key] = [
                lines[other]["name"] for other in range(len(lines)) if other != at and groups[at] & groups[other]
            ]
    return lines
