"""The work of one process for a certificate: it runs a few optimizer steps without randomness and records them.

`paratune certify` starts this job for each strategy, in all processes of the strategy.
"""

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
from paratune.config.load import LoadedConfig, allow_code
from paratune.config.section import OwnOptimizer
from paratune.config.sections import Config
from paratune.console import Display, set_up_logging
from paratune.data.load import split_records
from paratune.engine.optim import OptimizerFactory, seed_step
from paratune.engine.stop import StopRequest
from paratune.errors import EXIT_OK, ConfigError, ParatuneError, Stopped
from paratune.hardware.devices import has_fast_fp64
from paratune.models.config import load_config
from paratune.models.load import log_new_weights
from paratune.models.task_model import TaskModel, find_blocks
from paratune.processes.place import Place, place_from_environment
from paratune.strategies.protocol import Strategy
from paratune.training.gradients import FLOORS, Differences, compare_gradients, tensor_hashes
from paratune.training.prepare import (
    Prepared,
    batch_sizes,
    choose_device,
    initial_model,
    make_strategy,
    optimizer_factory,
    prepare,
    run_batch_layout,
    train_batches,
)
from paratune.training.record import model_facts
from paratune.training.rendezvous import process_group

_MAX_OVERFLOWS = 32
"""How often a step of fp16 is repeated at most; each overflow halves the loss scale, which is 2^16 at first."""


@dataclass(frozen=True)
class CertificateJob:
    """The settings of a job, read from a file."""

    name: str
    """Displayed name of the strategy."""
    values: dict[str, Any]
    source: str
    num_steps: int
    exact: bool
    """Whether the strategy supports fp64, which is used if the device is fast enough with it."""
    folder: str
    reference: str | None
    """Folder of the reference, with whose gradients the job compares its own; None in the reference itself, and "" to
    return the norms of the gradients."""
    precision: str | None = None
    """The precision of the training; None for fp64, or that of `values` if strategy or device do not support fp64."""
    run_code: bool = False
    """Whether the code of the folders of model and teachers may run."""
    is_own: bool = True
    """Whether the code that the configuration names may run; that of a publication only with --run-code."""


def run_job(path: Path, stop: StopRequest) -> int:
    """Run the job of a file and return the exit code; write an error to a file for the process that started it."""
    values, place = records.read_json(path), place_from_environment()
    folder = Path(values["folder"])
    set_up_logging(speaks=place.rank == 0 and values.get("reference") is None, rank=place.rank)
    try:
        if "mode" in values:
            from paratune.training.first_steps import FirstStepsJob, train_first_steps  # certify needs no whole run

            outcome = train_first_steps(FirstStepsJob(**values), stop)
        else:
            outcome = train_job(CertificateJob(**values), place, stop)
    except Exception as error:
        known = isinstance(error, ParatuneError)
        code = error.code if isinstance(error, ParatuneError) else "launch.rank_lost"
        about = {"kind": type(error).__name__, "code": code, "message": str(error), "known": known}
        records.write_json(folder / records.rank_file("error", place.rank), about)
        if isinstance(error, ParatuneError):
            return error.exit_code
        raise
    records.write_json(folder / records.rank_file("outcome", place.rank), outcome)
    return EXIT_OK


def train_job(job: CertificateJob, place: Place, stop: StopRequest) -> dict[str, Any]:
    """Run the steps in one of the processes of a strategy; return rows, losses, norms and hashes of this process.

    Raises:
        ParatuneError: The strategy cannot run with this configuration, or a signal came.
    """
    config = Config.model_validate(job.values)
    values = {**job.values, "precision": job.precision or _most_exact(choose_device(config.device, place), job)}
    loaded = LoadedConfig(Config.model_validate(values), {}, values, Path(job.source))
    if job.is_own:
        allow_code(loaded, with_models=job.run_code)
    display = Display(speaks=place.rank == 0)
    prepared = without_dropout(prepare(loaded, place, stop, display))
    with process_group(prepared, stop), prepared.switched(), display.bar(job.name, job.num_steps) as bar:
        strategy = make_strategy(prepared)
        model = initial_model(prepared)
        sizes = batch_sizes(prepared, strategy.layout)
        batch_layout = run_batch_layout(prepared, model)
        batches = train_batches(prepared, strategy.layout, sizes, batch_layout)
        zero_dropout(model)
        outcome: dict[str, Any] = {
            "precision": prepared.precision.name,
            "data_rank": strategy.layout.data_rank,
            "batch_layout": batch_layout.kind,
            "rows": [],
            "losses": [],
            "grad_norms": [],
        }
        if job.reference is None:
            log_new_weights(model, config.model.name)
            model.to(prepared.device, prepared.precision.param_dtype)  # 16-bit weights of a file, too
            refuse_randomness(model, batches.step(0)[0].to(prepared.device))
        if not job.reference:
            outcome["about"] = _about(prepared, model, batches.global_batch_size)
        optimizer = optimizer_factory(prepared, model, job.num_steps)
        strategy.prepare(model, find_blocks(model), optimizer)
        outcome["weights"] = tensor_hashes(strategy.state().tensors("model/"))
        for step in range(job.num_steps):
            if stop.agreed(strategy):
                raise Stopped(f"stopped by {stop.signal_name()}", code="stopped.signal")
            micro_batches = batches.step(step)
            _step(prepared, strategy, optimizer, micro_batches, step, outcome)
            if step == 0:
                outcome["gradients"] = _gradients(job, strategy, prepared)
            bar.update(step + 1)
        strategy.close()
    return outcome


def _most_exact(device: torch.device, job: CertificateJob) -> str:
    """Return fp64, in which mistakes differ clearly from rounding, if strategy and device support it fast enough."""
    is_fast = device.type == "cpu"
    if device.type == "cuda":
        # The capability of AMD's GPUs has another meaning; listed GPUs are recognised by their names.
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
        # The first step is not clipped: clipping would hide a gradient with a correct direction but a wrong length.
        norm = float(strategy.optimizer_step(None if step == 0 else train.max_grad_norm))
        if math.isfinite(norm):
            break
    outcome["rows"].append([int(row) for batch in micro_batches for row in batch.index if row >= 0])
    outcome["losses"].append(float(strategy.reduce(loss.double().cpu().reshape(1), "sum")))
    outcome["grad_norms"].append(norm)


def without_dropout(prepared: Prepared) -> Prepared:
    """Return the prepared run with all dropout options of the model's own configuration set to 0."""
    config = prepared.config
    own = load_config(config.model).to_dict()
    drops = {key: 0.0 for key, value in own.items() if "drop" in key and isinstance(value, float) and value > 0}
    model = config.model.model_copy(update={"overrides": {**config.model.overrides, **drops}})
    return replace(prepared, loaded=replace(prepared.loaded, config=config.model_copy(update={"model": model})))


def zero_dropout(model: nn.Module) -> None:
    """Set p of all dropout modules to 0, also of modules with a constant p that is not an option of the model."""
    for module in model.modules():
        if "dropout" in type(module).__name__.lower() and isinstance(getattr(module, "p", None), float):
            module.p = 0.0  # type: ignore[assignment]


def refuse_randomness(model: TaskModel, batch: Batch) -> None:
    """Check that the model returns the same outputs twice in training mode.

    Raises:
        ConfigError: It does not, so strategies cannot be compared with it.
    """
    model.train()
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            outputs.append(model(batch))
    if not torch.equal(*outputs):
        raise ConfigError(
            f"model: {type(model.hf).__name__} uses random numbers although all its dropout options are 0; strategies "
            "cannot be compared with it (switch the randomness off with model.overrides)",
            code="certify.unsupported",
            key="model",
        )


def _gradients(job: CertificateJob, strategy: Strategy, prepared: Prepared) -> dict[str, Any]:
    """Save the gradients of the first step (in the reference) or compare them with the saved ones. Collective.

    After one step, the first moments of AdamW are the gradients times a constant, and `Strategy.state` returns
    them whole whatever the sharding. Of the user's own optimizer all states that are not scalars are compared.

    Raises:
        ConfigError: The optimizer has no such states.
    """
    own = prepared.config.train.optimizer
    is_own = isinstance(own, OwnOptimizer)
    states = strategy.state().tensors("optimizer/")
    moments = (
        (key, tensor)
        for key, tensor in states
        if (is_own and (tensor is None or tensor.ndim > 0)) or key.endswith("/exp_avg")
    )
    if job.reference is None:
        gradients = {key: tensor.contiguous() for key, tensor in moments if tensor is not None}
        if isinstance(own, OwnOptimizer) and not gradients:
            message = (
                f"train.optimizer.function: {own.function} keeps no states, from which the gradients of a strategy are "
                "read; certify with train.optimizer=adamw, on which gradients do not depend"
            )
            raise ConfigError(message, code="certify.unsupported", key="train.optimizer.function", value=own.function)
        largest = max(float(tensor.abs().max()) for tensor in gradients.values())
        save_file(gradients, Path(job.folder) / "gradients.safetensors", metadata={"largest": repr(largest)})
        same = {"largest": 0.0, "tensor": None, "missing": [], "unexpected": [], **Differences().as_dict()}
        return same | {"norms": _norms_of(gradients.items())}
    if not job.reference:
        return {"norms": _norms_of(moments)}
    reference = Path(job.reference) / "gradients.safetensors"
    return compare_gradients(
        reference, moments, floor=FLOORS[prepared.precision.name], is_first=strategy.layout.rank == 0
    )


def _norms_of(moments: Iterable[tuple[str, Tensor | None]]) -> dict[str, float]:
    """Return the norm of each gradient by the name of its tensor; empty on ranks without tensors."""
    named = ((key.removeprefix("optimizer/").removesuffix("/exp_avg"), tensor) for key, tensor in moments)
    return {name: float(tensor.detach().double().norm()) for name, tensor in named if tensor is not None}


def _about(prepared: Prepared, model: TaskModel, global_batch_size: int) -> Mapping[str, Any]:
    """Return the facts of model, data and machine for the certificate."""
    return {
        "model": model_facts(model, prepared.config.model.name),
        "data": split_records(prepared.splits),
        "global_batch_size": global_batch_size,
        "versions": hardware.package_versions(),
        "code": hardware.code_version(),
        "hardware": [hardware.describe_node(Path())],
        "device": prepared.device.type,
    }
