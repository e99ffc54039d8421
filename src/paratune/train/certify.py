"""One process's part of a certificate: a few optimizer steps of a configuration, without randomness, written down.

`paratune certify` starts it, once for each strategy, in as many processes as that one has.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paratune import hardware, records
from paratune.batch import Batch
from paratune.config.load import LoadedConfig
from paratune.config.sections import Config
from paratune.console import Display, set_up_logging
from paratune.data.load import split_records
from paratune.engine.optim import OptimizerFactory, seed_step
from paratune.engine.stop import StopRequest
from paratune.errors import EXIT_OK, ConfigError, ParatuneError, Stopped
from paratune.hardware.devices import has_fast_fp64
from paratune.models.load import load_config, say_what_is_new
from paratune.models.task_model import TaskModel, find_blocks
from paratune.processes.place import Place, place_from_environment
from paratune.records.certificate import error_file, rank_file
from paratune.strategies.protocol import Strategy
from paratune.train.gradients import FLOORS, Differences, compare_gradients
from paratune.train.meet import met
from paratune.train.prepare import (
    Prepared,
    batch_layout_of,
    batch_sizes,
    choose_device,
    initial_model,
    make_strategy,
    prepare,
    train_batches,
)
from paratune.train.record import model_facts

_MAX_OVERFLOWS = 32
"""Times that a step of fp16 is repeated: each overflow halves the loss scale (2^16 at first), no more."""


@dataclass(frozen=True)
class CertificateJob:
    """What a process is to do; the content of its file."""

    name: str
    """Of the strategy, for people."""
    values: dict[str, Any]
    """The resolved configuration."""
    source: str
    """Its file."""
    num_steps: int
    exact: bool
    """Whether the strategy can do fp64, which is taken where the device does it fast enough."""
    folder: str
    """Where it writes what it did."""
    reference: str | None
    """Folder of the reference, whose gradients are compared with; None in the reference itself."""
    precision: str | None = None
    """The precision that trains; None for fp64, or that of `values` where strategy or device cannot do it fast."""


def run_job(path: Path, stop: StopRequest) -> int:
    """Do what the file says; return the exit code. What goes wrong is written down for the process that started it."""
    job, place = CertificateJob(**records.read_json(path)), place_from_environment()
    set_up_logging(speaks=place.rank == 0 and job.reference is None, rank=place.rank)
    try:
        outcome = take_part(job, place, stop)
    except Exception as error:
        known = isinstance(error, ParatuneError)
        code = error.code if isinstance(error, ParatuneError) else "launch.process_died"
        values = {"kind": type(error).__name__, "code": code, "message": str(error), "known": known}
        records.write_json(Path(job.folder) / error_file(place.rank), values)
        if isinstance(error, ParatuneError):
            return error.exit_code
        raise
    records.write_json(Path(job.folder) / rank_file(place.rank), outcome)
    return EXIT_OK


def take_part(job: CertificateJob, place: Place, stop: StopRequest) -> dict[str, Any]:
    """Train the steps as one of the processes of a strategy; return what this one did.

    Raises:
        ParatuneError: The strategy cannot be run as it is configured, or a signal came.
    """
    config = Config.model_validate(job.values)
    values = {**job.values, "precision": job.precision or _most_exact(choose_device(config.device, place), job)}
    loaded = LoadedConfig(Config.model_validate(values), {}, values, Path(job.source))
    display = Display(speaks=place.rank == 0)
    prepared = without_dropout(prepare(loaded, place, stop, display))
    with met(prepared, stop), prepared.switched(), display.bar(job.name, job.num_steps) as bar:
        strategy = make_strategy(prepared)
        model = initial_model(prepared)
        sizes = batch_sizes(prepared, strategy.layout)
        batches = train_batches(prepared, strategy.layout, sizes, batch_layout_of(prepared, model))
        silence(model)
        outcome: dict[str, Any] = {
            "precision": prepared.precision.name,
            "data_rank": strategy.layout.data_rank,
            "rows": [],
            "losses": [],
            "grad_norms": [],
        }
        if job.reference is None:
            say_what_is_new(model, config.model.name)
            refuse_randomness(model.to(prepared.device), batches.step(0)[0].to(prepared.device))
            outcome["about"] = _about(prepared, model, batches.global_batch_size)
        optimizer = OptimizerFactory(prepared.config.train, job.num_steps)
        strategy.prepare(model, find_blocks(model), optimizer)
        outcome["weights"] = tensor_hashes(strategy.state().tensors("model/"))
        for step in range(job.num_steps):
            if stop.agreed(strategy):
                raise Stopped(f"stopped by {stop.said()}", code="stopped.signal")
            micro_batches = batches.step(step)
            _step(prepared, strategy, optimizer, micro_batches, step, outcome)
            if step == 0:
                outcome["gradients"] = _gradients(job, strategy, prepared.precision.name)
            bar.update(step + 1)
        strategy.close()
    return outcome


def _most_exact(device: torch.device, job: CertificateJob) -> str:
    """Return fp64, which tells a mistake from rounding, where strategy and device can do it fast enough."""
    is_fast = device.type == "cpu"
    if device.type == "cuda":
        # Of AMD's chips the capability says something else; those that are listed are known by their names.
        capability = None if torch.version.hip else torch.cuda.get_device_capability(device)
        is_fast = has_fast_fp64(torch.cuda.get_device_name(device), capability)
    return "fp64" if job.exact and is_fast else str(job.values["precision"])


def _step(
    prepared: Prepared,
    strategy: Strategy,
    optimizer: OptimizerFactory,
    micro_batches: list[Batch],
    step: int,
    outcome: dict[str, Any],
) -> None:
    train = prepared.config.train
    for _ in range(_MAX_OVERFLOWS if prepared.precision.scales_loss else 1):
        seed_step(prepared.config.run.seed, step, strategy.layout.rank)
        loss = strategy.forward_backward(
            [batch.to(prepared.device) for batch in micro_batches], lambda _phase: nullcontext()
        )
        optimizer.set_learning_rate(step)
        # The first step is not clipped: clipping would hide a gradient of the right direction and the wrong length.
        norm = float(strategy.optimizer_step(None if step == 0 else train.max_grad_norm))
        if math.isfinite(norm):
            break
    outcome["rows"].append([int(row) for batch in micro_batches for row in batch.index if row >= 0])
    outcome["losses"].append(float(strategy.reduce(loss.double().cpu().reshape(1), "sum")))
    outcome["grad_norms"].append(norm)


def without_dropout(prepared: Prepared) -> Prepared:
    """Return it with every dropout option of the model's own configuration at 0."""
    config = prepared.config
    own = load_config(config.model, None).to_dict()
    drops = {key: 0.0 for key, value in own.items() if "drop" in key and isinstance(value, float) and value > 0}
    model = config.model.model_copy(update={"overrides": {**config.model.overrides, **drops}})
    return replace(prepared, loaded=replace(prepared.loaded, config=config.model_copy(update={"model": model})))


def silence(model: nn.Module) -> None:
    """Set the dropout of modules to 0 as well: some have their own constant."""
    for module in model.modules():
        if "dropout" in type(module).__name__.lower() and isinstance(getattr(module, "p", None), float):
            module.p = 0.0  # type: ignore[assignment]


def refuse_randomness(model: TaskModel, batch: Batch) -> None:
    """Look whether the model gives the same twice in training mode.

    Raises:
        ConfigError: It does not, so that nothing can be compared.
    """
    model.train()
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            outputs.append(model(batch))
    if not torch.equal(*outputs):
        raise ConfigError(
            f"model: {type(model.hf).__name__} draws random numbers although all its dropout options are 0; strategies "
            "cannot be compared with it (switch it off with model.overrides)",
            code="certify.random",
            key="model",
        )


def tensor_hashes(tensors: Iterable[tuple[str, Tensor | None]]) -> dict[str, str]:
    """Return the SHA-256 of each tensor, taken as float32, by its name; empty where there are none. Collective.

    -0 counts as 0: a weight that is put together as a sum of its parts and zeros has lost the sign.
    """
    hashes = {}
    for key, tensor in tensors:
        if tensor is not None:
            whole = (tensor.detach().float().cpu() + 0.0).contiguous().view(-1).view(torch.uint8)
            hashes[key.removeprefix("model/")] = hashlib.sha256(whole.numpy().data).hexdigest()
    return hashes


def _gradients(job: CertificateJob, strategy: Strategy, precision: str) -> dict[str, Any]:
    """Keep the gradients of the first step for others, or compare them with those that were kept. Collective.

    The first moments of AdamW and LAMB are, after one step, the gradients times a constant; whatever a strategy shards,
    its state shows them whole.
    """
    moments = (item for item in strategy.state().tensors("optimizer/") if item[0].endswith("/exp_avg"))
    if job.reference is None:
        kept = {key: tensor.contiguous() for key, tensor in moments if tensor is not None}
        largest = max(float(tensor.abs().max()) for tensor in kept.values())
        save_file(kept, Path(job.folder) / "gradients.safetensors", metadata={"largest": repr(largest)})
        return {"largest": 0.0, "tensor": None, "missing": [], "unexpected": [], **Differences().as_dict()}
    reference = Path(job.reference) / "gradients.safetensors"
    return compare_gradients(reference, moments, floor=FLOORS[precision], is_first=strategy.layout.rank == 0)


def _about(prepared: Prepared, model: TaskModel, global_batch_size: int) -> Mapping[str, Any]:
    """Return what the certificate says of model, data and machine."""
    return {
        "model": model_facts(model, prepared.config.model.name),
        "data": split_records(prepared.splits),
        "global_batch_size": global_batch_size,
        "versions": hardware.package_versions(),
        "code": hardware.code_version(),
        "hardware": [hardware.describe_node(Path())],
        "device": prepared.device.type,
    }
