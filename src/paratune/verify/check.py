"""Checks a publication on this machine: files, claims, and the first steps of its runs. None of its code runs."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune import hardware, records
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import utc_now
from paratune.config.yaml_tree import read_scalar
from paratune.errors import CheckpointError, ConfigError, LaunchError, ParatuneError, Stopped, coded, option_error
from paratune.records.finished import RunRecord, gpus_of, read_record
from paratune.records.run_folder import trained_fingerprint
from paratune.records.sweep import RUNS_FOLDER, SWEEP_FILE, read_sweep, write_sweep
from paratune.reports.published import UNTOLD
from paratune.verify.claims import Decided, agreement, changed_claims, choose_runs, find_claims, key_of, read_systems
from paratune.verify.publication import INPUT, Publication, Start, differing, opened
from paratune.verify.publish import VERSIONS, run_facts
from paratune.verify.steps import (
    MAX_PROCESSES,
    Comparison,
    compare_steps,
    compare_with_reference,
    other_data,
    own_code,
    probe_values,
    recorded_steps,
    repeat_steps,
    steps_of,
    train_again,
)

log = logging.getLogger(__name__)
WAYS = {"precision": ("fp32", "tf32", "bf16", "fp16"), "device": ("auto", "cpu", "cuda")}
"""What --set may change, besides the places of data and model, with the allowed values."""
DAMAGE = (CheckpointError, OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
"""Errors of content that somebody else wrote."""


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
        self, record: RunRecord, folder: Path, start: Start | None, place: Path, **more: Any
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
        return probe_values(record.run, own | dict(self.inputs) | device, place, **more)

    def refuse_code(self, values: Mapping[str, Any]) -> None:
        """Raise an error for a configuration that names code, unless it may run."""
        if (code := own_code(values)) and not self.run_code:
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


def verify(path: Path, way: Way, *, hours: float | None = None, out: Path) -> dict[str, Any]:
    """Return the result of a verification; docs/howto/verify.md describes its fields.

    Args:
        path: Folder or zip of a publication.
        hours: Time for runs that decide the claims again; None for none.
        out: Folder for those runs.

    Raises:
        CheckpointError: It is no publication, or not safe to read.
    """
    with opened(path) as (folder, publication, problems), scratch_folder() as scratch:
        facts, known, code = _records(folder, publication)
        if code:
            text = "it names code of its own, which is %s: %s"
            where = coded("publication.own_code", names=code)
            log.warning(text, "run (--run-code)" if way.run_code else "not imported", "; ".join(code), extra=where)
        machine = _machine(publication)
        starts, ratios = list[dict[str, Any]](), list[float]()
        for number, start in enumerate(publication.starts):
            part = scratch / str(number)
            part.mkdir()
            found, ratio = _check_start(folder, start, known.get(start.run), part, way, same_machine=not machine)
            ratios += [] if ratio is None else [ratio]
            starts.append({
                "run": start.run, "step": start.step, "status": found.status, "reason": found.reason,
                "bound": found.bound, "first_step": found.step, "tensors": list(found.tensors),
            })  # fmt: skip
        claims, decided, systems = list[str](), list[Decided](), None
        if len(known) == len(publication.runs) > 0:
            try:
                systems = read_systems(folder, [one.run for one in publication.runs])
                decided = find_claims(systems)
                claims = changed_claims(publication.claims, decided)
            except DAMAGE as error:
                facts.append(f"the claims cannot be computed: {plain(error)}")
        rerun = None
        if hours is not None and systems is not None:
            rerun = _rerun(folder, publication, known, choose_runs(
                decided, systems, lambda name: _expected_s(known[name], ratios), hours * 3600
            ), hours, out, way)  # fmt: skip
        statuses = [one["status"] for one in starts]
        verdict = "different" if problems or facts or claims or "different" in statuses else "not checked"
        if verdict != "different" and statuses.count("not checked") < len(statuses):
            verdict = "within the bound" if "within the bound" in statuses else "equal"
        without = {one.configuration for one in publication.runs}
        without -= {
            one.configuration for one in publication.runs if one.run in {start.run for start in publication.starts}
        }
        return {
            "publication": publication.name, "source": str(path), "author": publication.author, "created": utc_now(),
            "verdict": verdict, "files": {"num": len(publication.files), "problems": list(problems)}, "facts": facts,
            "own_code": code, "machine": machine, "versions": hardware.package_versions(), "starts": starts,
            "claims": {"num": len(publication.claims), "problems": claims, "checked": systems is not None},
            "rerun": rerun,
            "not_checked": [
                *publication.left_out, *(f"{one} has no starting point" for one in sorted(without)),
                *(f"{one['run']}: {one['reason']}" for one in starts if one["status"] == "not checked"),
            ],
        }  # fmt: skip


def _records(folder: Path, publication: Publication) -> tuple[list[str], dict[str, RunRecord], list[str]]:
    """Return what the records of the runs do not have as publication.json says, the records, and code they name."""
    facts, found, code = list[str](), dict[str, RunRecord](), list[str]()
    for known in publication.runs:
        try:
            record = read_record(folder / RUNS_FOLDER / known.run, known.run)
            own = run_facts(record, known.configuration).model_dump()
            code += [f"{known.run}: {name}" for name in map(plain, own_code(record.run.config))]
            section = record.run.config.get("run")
            own["seed of the configuration"] = section.get("seed") if isinstance(section, dict) else None
            said = known.model_dump() | {"seed of the configuration": known.seed}
            facts += [f"{known.run}: {text} in its record" for text in differing(said, own)]
        except DAMAGE as error:
            facts.append(f"the record of {known.run} cannot be read: {plain(error)}")
            continue
        found[known.run] = record
    for start in publication.starts:
        try:
            recorded = recorded_steps(folder / RUNS_FOLDER / start.run, len(start.losses), start.step)
        except DAMAGE as error:
            facts.append(f"{start.run}: {plain(error)}")
            continue
        if start.repeated == "equal" and (recorded.losses, recorded.grad_norms) != (start.losses, start.grad_norms):
            facts.append(f"{start.run}: the losses after step {start.step} are not those of its record")
    listed = {known.run for known in publication.runs}
    runs = folder / RUNS_FOLDER
    others = sorted(path.name for path in (runs.iterdir() if runs.is_dir() else ()) if path.name not in listed)
    return [*facts, *(f"{plain(name)} has a record and is not in publication.json" for name in others)], found, code


def _machine(publication: Publication) -> list[str]:
    """Return how this machine differs from that of the author, in what can change the last bits."""
    found = differing({name: publication.versions.get(name) for name in VERSIONS}, hardware.package_versions())
    here = hardware.describe_node(Path())
    for node in publication.hardware[:1]:
        found += differing({key: node.get(key) for key in ("cpu_model", "cpu_flags")}, here)
        names = [", ".join(str(gpu.get("name")) for gpu in gpus_of(one)) or "none" for one in (node, here)]
        found += differing({"GPUs": names[0]}, {"GPUs": names[1]})
    return found


def _check_start(
    folder: Path, start: Start, record: RunRecord | None, scratch: Path, way: Way, *, same_machine: bool
) -> tuple[Comparison, float | None]:
    """Train the steps of a starting point: to the bit, else by the bound.

    Returns:
        How they compare, and how many times as long a step takes here as in the record.
    """
    found, ratio, run_code, reasons = None, None, way.run_code, list[str]()
    try:
        if record is None:
            raise CheckpointError("its record cannot be read", code="run.damaged")
        run = record.run
        values = way.values_of(record, folder, start, scratch)
        way.refuse_code(values)
        if not way.is_other:
            checkpoint = None if start.checkpoint is None else folder / start.checkpoint
            place = start.step, len(start.losses)
            try:
                steps = repeat_steps(run, values, place, scratch, run_code=run_code, checkpoint=checkpoint)
            except (ConfigError, LaunchError) as error:  # such as too few devices
                if start.reference is None:
                    raise
                reason = str(error)
            else:
                assert steps.run is not None
                found = compare_steps(steps_of(start), steps, str(record.setting("precision")), start.step)
                reasons, is_same_device = other_data(run, steps.run), run.device == steps.run.device
                if run.model.init_fingerprint != steps.run.model.init_fingerprint:
                    reasons.append("the initial weights are not those of the record")
                reason = "; ".join(filter(None, (*reasons, found.reason)))
                found = replace(found, status="different" if reasons else found.status, reason=reason or None)
                recorded = recorded_steps(folder / RUNS_FOLDER / start.run, *reversed(place))
                ratio = steps.step_ms / recorded.step_ms if steps.step_ms and recorded.step_ms else None
                same_values = (steps.losses, steps.grad_norms) == (start.losses, start.grad_norms)
                if found.status == "within the bound" and same_values and same_machine:
                    found = replace(found, status="different")  # only hashes of weights differ
                # Dropout has other masks on another kind of device.
                decides = is_same_device and run.model.init_fingerprint == steps.run.model.init_fingerprint
                if found.status != "different" or decides or start.reference is None:
                    return found, ratio  # else the reference knows the initial weights
        elif start.reference is None:
            raise CheckpointError(
                "nothing to compare another way with: " + (start.reason or "it starts later"),
                code="publication.not_here",
            )
        else:
            reason = ""
        assert start.reference is not None
        num_here = int(run.world_size or 1) if len(run.hardware) <= 1 else 1
        kind = way.strategy or (str(values["strategy"]["kind"]) if num_here > 1 or len(run.hardware) <= 1 else "single")
        by_bound = compare_with_reference(
            run, values, start.reference, kind, way.nproc or min(max(num_here, 1), MAX_PROCESSES), scratch / "bound",
            precision=way.precision, run_code=run_code,
        )  # fmt: skip
    except Stopped:
        raise
    except (ParatuneError, *DAMAGE) as error:
        if found is not None and found.status != "equal":
            return found, ratio
        log.warning("%s is not checked: %s", start.run, error, extra=coded("publication.not_checked", run=start.run))
        return Comparison("not checked", plain(error)), ratio
    reason = "; ".join(dict.fromkeys(filter(None, (*reason.split("; "), *(by_bound.reason or "").split("; ")))))
    if found is not None and (reasons or by_bound.status == "different"):
        step = by_bound.step if by_bound.step == 0 else found.step
        by_bound = replace(by_bound, status="different", step=step, tensors=by_bound.tensors or found.tensors)
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
    configurations = {one.run: one.configuration for one in publication.runs}
    starts = {configurations[start.run]: start for start in publication.starts if start.run in configurations}
    began, failed, made = time.monotonic(), list[str](), list[str]()
    for name in names:
        record, place = known[name], out / RUNS_FOLDER
        try:
            values = way.values_of(record, folder, starts.get(configurations[name]), place, name=name)
            way.refuse_code(values)
            values |= {"measure": record.run.config["measure"] | {"profile_steps": 0, "plan": False}}
            values["checkpoint"] |= {"every": "never", "steps": None}
            if not _is_made(place / name, values):
                with scratch_folder() as scratch:
                    left_s = hours * 3600 - (time.monotonic() - began)
                    train_again(record.run, values, None, scratch, run_code=way.run_code, limit_s=max(left_s, 1.0))
            made.append(name)
        except Stopped:
            raise
        except (ParatuneError, *DAMAGE) as error:
            failed.append(f"{name}: {plain(error)}")
            log.warning("%s was not made: %s", name, error, extra=coded("publication.not_checked", run=name))
    own: dict[tuple[str, ...], Any] = {}
    if made:
        if (folder / SWEEP_FILE).is_file():
            sweep = read_sweep(folder)
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
                facts, known, code = _records(folder, publication)
                line["problems"] += [*facts, *(f"names code: {name}" for name in code)]
                line["problems"] += changed_claims(publication.claims, find_claims(read_systems(folder, [*known])))
                for name in known:
                    steps = [
                        event for event in records.read_events(folder / RUNS_FOLDER / name) if event["event"] == "step"
                    ]
                    losses |= {repr([(step.get("loss"), step.get("grad_norm")) for step in steps])} if steps else set()
                    walls = [step.get("wall_ms") for step in steps]
                    times |= {repr(walls)} if any(walls) else set()
        except DAMAGE as error:
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
