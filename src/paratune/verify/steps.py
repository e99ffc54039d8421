"""Trains the first steps of recorded runs again: to the bit as they ran, and within a bound in another way.

To the bit: the loop of `paratune train` itself, from the recorded configuration, with as many processes and threads,
which ends after the last compared step. Within a bound: as `paratune certify` compares a strategy with one process,
without dropout; but a publication has norms of the reference's gradients in place of the gradients.
"""

import math
import os
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paratune import records
from paratune.base.units import counted
from paratune.config.candidates import common_values, strategy_candidate
from paratune.config.load import LoadedConfig
from paratune.config.plain import set_at
from paratune.config.sections import Config, data_sources
from paratune.config.sources import local_path, path_and_split
from paratune.errors import CheckpointError, ConfigError, Stopped
from paratune.records import certificate
from paratune.records.certificate import SMALLEST_TENSOR, TOLERANCES, TRAINED_TOLERANCES, Part, largest_difference
from paratune.records.finished import RunRecord, in_session, number_in, read_typed
from paratune.records.typed import RunFile
from paratune.verify.certify import run_part, start_job
from paratune.verify.publication import Reference, StartingPoint

RUN = "steps"
MAX_THREADS, MAX_PROCESSES = 256, 64  # a record of others may name any number
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
MAX_S = 3600.0  # of the steps after a starting point
MAX_NAMES = 5  # tensors that a comparison names


@dataclass(frozen=True)
class Steps:
    """What the steps after a starting point gave."""

    losses: tuple[float | None, ...]
    grad_norms: tuple[float | None, ...]
    weights: tuple[Mapping[str, str], ...] = ()  # SHA-256 of each tensor after each step; empty in a record
    step_ms: float | None = None  # of the last one, over its four phases
    run: RunFile | None = None  # the record of the repetition


@dataclass(frozen=True)
class StepComparison:
    """How the steps differ from those of a publication or of a record."""

    status: str  # equal, within the bound, different, not checked
    reason: str | None = None
    bound: str | None = None
    first_step: int | None = None  # that differs; 0 for the initial weights
    tensors: tuple[str, ...] = ()  # that differ after it


def recorded_steps(folder: Path, num_steps: int, after: int = 0) -> Steps:
    """Return losses and norms that the record of a run has of its steps after step `after`.

    Raises:
        CheckpointError: The events are damaged, or a step is missing.
    """
    events = (event for event in records.read_events(folder) if event.get("event") == "step")
    found = list(islice((event for event in events if event["step"] > after), num_steps))
    if not found or [event["step"] for event in found] != [*range(after + 1, after + 1 + len(found))]:
        message = f"{folder} has no record of step {after + 1}; its events are incomplete"
        raise CheckpointError(message, code="run.damaged", path=folder)
    losses, norms = (tuple(number_in(event.get(key)) for event in found) for key in ("loss", "grad_norm"))
    phases = found[-1].get("phases_ms")
    known = [number_in(part) or 0.0 for part in phases.values()] if isinstance(phases, dict) else []
    return Steps(losses, norms, (), math.fsum(known) or None)


def probe_values(run: RunFile, inputs: Mapping[str, Any], folder: Path, *, name: str = RUN) -> dict[str, Any]:
    """Return the configuration with which a recorded run is trained again, as a probe that only makes steps.

    It is that of the record in all that decides the training. What writes, sends or watches is left out: a record of
    others must not choose a file that is written.

    Args:
        inputs: Values by dotted key: other places of data and model, or another device.
        folder: Folder that contains the folder of the run.

    Raises:
        CheckpointError: The configuration of the record is damaged.
    """
    values: dict[str, Any] = deepcopy(run.config)
    try:
        for key, value in inputs.items():
            set_at(values, key, value)
        if inputs.keys() & {"model.name", "model.tokenizer"}:
            values["model"] |= {"revision": None, "tokenizer_revision": None}
        values["run"] |= {"name": name, "folder": str(folder), "callbacks": [], "hang_timeout_s": 600}
        values["data"] |= {"cache_dir": None, "num_workers": 0}
        values["measure"] |= {"probe": True, "plan": False, "profile_steps": 0, "sample_every_s": None}
        values["trackers"] = {}
        if values["batch"]["micro_batch_size"] == "auto" and run.batch.micro_batch_size is not None:
            values["batch"]["micro_batch_size"] = int(run.batch.micro_batch_size)
        return Config.model_validate(values).model_dump(mode="json", by_alias=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"it lacks {error}"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        message = f"the configuration of {run.run_id} cannot be used: {why}"
        raise CheckpointError(message, code="run.damaged") from error


def refuse_absent(values: Mapping[str, Any]) -> None:
    """Check that data and model are at hand; what is no file or folder, such as a device, counts as absent.

    Raises:
        CheckpointError: Lists what is missing.
    """
    sources = data_sources(Config.model_validate(values).data)
    places = ((key, path_and_split(path)[0]) for key, source in sources if (path := local_path(source)) is not None)
    missing = [f"{key}: {place}" for key, place in places if not (place.is_file() or place.is_dir())]
    for key in ("name", "tokenizer"):
        place = values["model"].get(key)
        if isinstance(place, str) and (Path(place).is_absolute() or place.startswith(".")) and not Path(place).is_dir():
            missing.append(f"model.{key}: {place}")
    if missing:
        message = f"missing here: {'; '.join(missing)}; copy them there, or give their places: --set KEY=PATH"
        raise CheckpointError(message, code="publication.input_missing", missing=missing)


def train_again(
    run: RunFile, values: dict[str, Any], num_steps: int | None, scratch: Path, *, code: str,
    checkpoint: Path | None = None, limit_s: float = MAX_S,
) -> Path:  # fmt: skip
    """Train a recorded run again, with as many processes and threads, and return the folder of the repetition.

    Args:
        values: From `probe_values`.
        num_steps: Steps after the starting point, whose hashes are in the folder of the job; None for a whole run.
        scratch: Existing folder for the job.
        code: As in `FirstStepsJob`.
        checkpoint: The starting point; None for the initial weights. It is copied, with run.json.
        limit_s: Seconds after which the processes are stopped.

    Raises:
        ParatuneError: It cannot be trained here, as on one machine a run of several, or its time is over.
    """
    num_processes, num_nodes = run.world_size or 1, len(run.hardware)
    if num_nodes > 1 or num_processes not in range(1, MAX_PROCESSES + 1):
        message = f"it ran on {num_nodes} machines with {num_processes} processes, and here is one machine"
        raise ConfigError(message, code="publication.not_here")
    refuse_absent(values)
    folder = Path(values["run"]["folder"], values["run"]["name"])
    if checkpoint is not None:
        if not checkpoint.is_dir():
            message = f"missing here: the checkpoint {checkpoint.name}"
            raise CheckpointError(message, code="publication.input_missing", missing=[checkpoint.name])
        shutil.copytree(checkpoint, folder / records.CHECKPOINTS_FOLDER / checkpoint.name)
        kept = run.model_dump(exclude_unset=True) | {"config": values}
        records.write_json(folder / records.RUN_FILE, {"schema_version": records.SCHEMA_VERSION, **kept})
    job = {
        "name": run.run_id or RUN, "values": values, "source": str(source_of(run, code)), "num_steps": num_steps,
        "mode": "overwrite" if checkpoint is None else "resume", "folder": str(scratch / "job"), "code": code,
    }  # fmt: skip
    # Sums over another number of threads have other bits.
    threads = run.num_threads if run.num_threads in range(1, MAX_THREADS + 1) else None
    environment = OFFLINE | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    is_over = threading.Event()

    def stop() -> None:
        is_over.set()
        os.kill(os.getpid(), signal.SIGTERM)  # `launch` sends it to the processes

    timer = threading.Timer(limit_s, stop)
    timer.start()
    try:
        start_job(scratch / "job", job, int(num_processes), environment)
    except Stopped as error:
        if is_over.is_set():
            message = f"it was stopped: its time of {limit_s:.0f} s was over"
            raise ConfigError(message, code="publication.not_here") from error
        raise
    finally:
        timer.cancel()
    return folder


def repeat_steps(
    run: RunFile, values: dict[str, Any], start: tuple[int, int], scratch: Path, *, code: str,
    checkpoint: Path | None = None,
) -> Steps:  # fmt: skip
    """Train the steps after a starting point again; `start` has its step, and the number of steps after it."""
    after, num_steps = start
    folder = train_again(run, values, num_steps, scratch, code=code, checkpoint=checkpoint)
    outcome = records.read_json(scratch / "job" / records.rank_file("outcome", 0))
    found = recorded_steps(folder, num_steps, after)
    return replace(found, weights=tuple(outcome["weights"]), run=read_typed(folder, RunFile))


def compare_steps(expected: Steps, found: Steps, precision: str, after: int = 0) -> StepComparison:
    """Compare steps to the bit, else by the bound of the certificate for two trainings in this precision."""
    for number, values in enumerate(zip(expected.losses, expected.grad_norms, strict=True)):
        own = found.losses[number : number + 1], found.grad_norms[number : number + 1]
        names = []
        if expected.weights and found.weights:
            first, second = expected.weights[number], found.weights[number] if number < len(found.weights) else {}
            names = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
        if own != ((values[0],), (values[1],)) or names:
            break
    else:
        return StepComparison("equal")
    allowed = (TOLERANCES.get(precision) or TRAINED_TOLERANCES.get(precision) or TOLERANCES["fp32"]).losses
    loss, norm = (_difference(getattr(found, key), getattr(expected, key)) for key in ("losses", "grad_norms"))
    what = f"losses differ by up to {loss:.1e}, gradient norms by {norm:.1e}"
    if not loss and not norm:
        what = "losses and gradient norms are equal"
    if names:
        what += f", the weights of {counted(len(names), 'tensor')} differ"
    status = "within the bound" if max(loss, norm) <= allowed else "different"
    step = after + number + 1
    return StepComparison(status, f"from step {step} on, {what}", f"{allowed:.0e}", step, tuple(names[:MAX_NAMES]))


def _difference(found: Sequence[float | None], expected: Sequence[float | None]) -> float:
    """Return the largest relative difference; a norm that both lack is that of a step that fp16 skipped."""
    pairs = [pair for pair in zip_longest(found, expected) if pair != (None, None)]
    return largest_difference([own for own, _ in pairs], [one for _, one in pairs])


def make_reference(run: RunFile, values: dict[str, Any], num_steps: int, folder: Path, *, code: str) -> Reference:
    """Train the steps in one process without dropout, in the most exact precision of this machine.

    Raises:
        ParatuneError: One process cannot train them here, or the model uses random numbers without dropout.
    """
    loaded = LoadedConfig(Config.model_validate(values), {}, values, source_of(run, code))
    common, _ = common_values(loaded, int(run.world_size or 1), num_steps)
    single = strategy_candidate(loaded, common, "single", 1)
    part = run_part(loaded, single, num_steps, folder, reference=None, code=code, environment=OFFLINE)
    losses, norms = (tuple(number_in(value) for value in of) for of in (part.losses, part.grad_norms))
    return Reference(
        precision=part.precision, rows=part.rows, losses=losses, grad_norms=norms, weights=dict(part.weights),  # type: ignore[arg-type]
        norms=part.gradients["norms"],
    )  # fmt: skip


def compare_with_reference(
    run: RunFile, values: dict[str, Any], reference: Reference, strategy: str, num_processes: int, folder: Path, *,
    precision: str | None, code: str,
) -> StepComparison:  # fmt: skip
    """Train the steps in another way without dropout, and compare them with a reference by the certificate's bound.

    Args:
        strategy: As `paratune certify` takes it.
        precision: Of the training; None for the most exact one of the machine.

    Raises:
        ParatuneError: They cannot be trained here.
    """
    refuse_absent(values)
    values = deepcopy(values)
    values["batch"] |= {"global": max(map(len, reference.rows)), "per_device": None, "grad_accum_steps": None}
    loaded = LoadedConfig(Config.model_validate(values), {}, values, source_of(run, code))
    common, _ = common_values(loaded, num_processes, len(reference.losses))
    candidate = strategy_candidate(loaded, common, strategy, num_processes)
    part = run_part(
        loaded, candidate, len(reference.losses), folder, precision, reference="", code=code,
        environment=OFFLINE,
    )  # fmt: skip
    about = records.read_json(folder / records.rank_file("outcome", 0))["about"]
    changed = other_data(run, RunFile(data=about["data"]))
    # The less exact of two precisions decides the bound.
    trained = None if part.precision == reference.precision else part.precision
    trained = reference.precision if trained == "fp64" else trained
    losses, norms = (
        tuple(math.nan if one is None else one for one in numbers)
        for numbers in (reference.losses, reference.grad_norms)
    )
    expected = Part(reference.precision, reference.rows, losses, norms, reference.weights, {})
    differences = norm_differences(reference.norms, part.gradients["norms"])
    found = certificate.compare(expected, replace(part, gradients=differences), trained=trained)
    limit = TRAINED_TOLERANCES[trained] if trained is not None else TOLERANCES[part.precision]
    bound = f"{part.precision}: gradients {limit.gradients:.0e}, losses {limit.losses:.0e}"
    if found["status"] == "holds" and not changed:
        largest = f"gradients differ by {differences['largest']:.1e}, losses by {found['loss_difference']:.1e}"
        return StepComparison("within the bound", f"{candidate.world_size} x {strategy}: {largest}", bound)
    names = {*reference.weights, *part.weights}
    other = [name for name in sorted(names) if reference.weights.get(name) != part.weights.get(name)]
    tensors = other or [name for name in (found["gradient_tensor"],) if name and found["status"] == "differs"]
    by_step = enumerate(zip(reference.losses, part.losses, strict=False), start=1)
    step = next((number for number, (one, own) in by_step if largest_difference([own], [one]) > limit.losses), 1)
    why = "; ".join(filter(None, (*changed, found["reason"])))
    return StepComparison("different", why, bound, 0 if other else step, tuple(tensors[:MAX_NAMES]))


def norm_differences(expected: Mapping[str, float], found: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the differences of gradients as far as norms have them, in the form of `compare_gradients`."""
    own = {name: math.inf if (norm := number_in(value)) is None else norm for name, value in found.items()}
    total, own_total = (math.hypot(*norms.values()) for norms in (expected, own))
    shared = {name: (norm, own[name]) for name, norm in expected.items() if name in own}
    floor = SMALLEST_TENSOR * total
    apart = {name: abs(second - first) / (max(first, floor) or 1.0) for name, (first, second) in shared.items()}
    worst = max(apart, key=lambda name: apart[name], default=None)
    largest = math.inf if worst is None else apart[worst]
    length = abs(own_total / total - 1) if total and math.isfinite(own_total) else math.inf
    return {
        "largest": largest, "tensor": worst, "worst_tensor": largest, "worst_name": worst, "difference": length,
        "length": length, "missing": sorted(expected.keys() - own.keys()),
        "unexpected": sorted(own.keys() - expected.keys()),
    }  # fmt: skip


def other_data(recorded: RunFile, found: RunFile) -> list[str]:
    """Return which splits of a record have another content here."""
    known, own = ({name: part.fingerprint for name, part in run.data.items() if part} for run in (recorded, found))
    changed = [name for name, sha256 in known.items() if sha256 and sha256 != own.get(name)]
    return [f"the content of data.{name} is not that of the record" for name in changed]


def session_at(record: RunRecord, step: int) -> RunFile:
    """Return run.json with the values of the session that made the step after this one."""
    begun = [one for one in record.run.sessions if type(one.get("step")) is int and one["step"] <= step]
    return in_session(record.folder, record.run, begun[-1]) if step and begun else record.run


def source_of(run: RunFile, code: str) -> Path:
    """Return the file of the configuration, beside which own code is if it may run."""
    place = getattr(run, "config_file", None)
    return Path(place if code and isinstance(place, str) else records.RUN_FILE)


def steps_of(start: StartingPoint) -> Steps:
    return Steps(start.losses, start.grad_norms, start.weights)
