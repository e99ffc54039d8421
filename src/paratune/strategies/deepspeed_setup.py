"""Starts DeepSpeed's engine: its configuration, its log messages, and its compiled extensions."""

import contextlib
import copy
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paratune.config.strategy_sections import STAGES, deepspeed_limits
from paratune.errors import LaunchError, require
from paratune.precision import Precision, values_of
from paratune.strategies import deepspeed_double as double

log = logging.getLogger(__name__)

_OLD_NAMES = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"


@dataclass(frozen=True)
class Options:
    """The options of `config.strategy_sections`."""

    stage: int
    offload_optimizer: bool = False
    offload_parameters: bool = False
    cpu_adam: bool = False
    param_dtype: str = "fp32"
    bucket_cap_mb: float | None = None
    reduce_bucket_size: int | None = None
    allgather_bucket_size: int | None = None
    prefetch_bucket_size: int | None = None
    max_live_parameters: int | None = None
    max_reuse_distance: int | None = None
    param_persistence_threshold: int | None = None

    @property
    def keeps_16_bits(self) -> bool:
        """Whether DeepSpeed's own 16-bit mode is on."""
        return self.param_dtype != "fp32"


def import_deepspeed(device: torch.device) -> ModuleType:
    """Import DeepSpeed for `device`, and redirect its messages to our log.

    Raises:
        MissingDependency: It is not installed.
        LaunchError: It was already imported for another kind of device.
    """
    # Without this variable DeepSpeed chooses a device itself.
    with captured_output(), environment(DS_ACCELERATOR=device.type):
        deepspeed = require("deepspeed", extra="deepspeed")
        accelerator = deepspeed.accelerator.get_accelerator().device_name()
    if accelerator != device.type:
        raise LaunchError(
            f"DeepSpeed computes on {accelerator} here, this run on {device.type}; unset DS_ACCELERATOR, or set it to "
            f"{device.type}",
            code="deepspeed.accelerator",
        )
    logging.getLogger("DeepSpeed").handlers[:] = [_ToOurLog()]
    # PyTorch 2.13 renamed these collectives; DeepSpeed 0.19 calls the old names in every step.
    warnings.filterwarnings("ignore", _OLD_NAMES, FutureWarning)
    return deepspeed


def engine_config(options: Options, blocks: Sequence[nn.Module], dtype: torch.dtype) -> dict[str, Any]:
    """Return DeepSpeed's configuration; all communication has the dtype of the parameters, except in a 16-bit mode."""
    zero: dict[str, Any] = {"stage": options.stage}
    if dtype == torch.float64:
        # DeepSpeed has no reduce-scatter for float64; each rank then gets the sums of all gradients and drops most.
        zero["reduce_scatter"] = False
    zero |= _limits(options, blocks, dtype)
    if options.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if options.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    own_mode = {options.param_dtype: {"enabled": True}} if options.keeps_16_bits else {}
    return {
        **own_mode,
        # Only for DeepSpeed's statistics: the strategy itself sets the boundaries of steps and divides losses.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _limits(options: Options, blocks: Sequence[nn.Module], dtype: torch.dtype) -> dict[str, int]:
    """Return the sizes of buckets and caches under DeepSpeed's names; empty at stage 0, which has none."""
    limits = deepspeed_limits(
        asdict(options),
        element_size=2 if options.keeps_16_bits else dtype.itemsize,
        largest_block=max((sum(p.numel() for p in block.parameters()) for block in blocks), default=0),
    )
    used = {name: value for name, value in asdict(limits).items() if options.stage in STAGES[name]}
    return {f"stage3_{name}" if STAGES[name] == (3,) else name: value for name, value in used.items()}


def start_engine(
    deepspeed: ModuleType,
    model: nn.Module,
    optimizer: Optimizer,
    config: dict[str, Any],
    *,
    blocks: Sequence[nn.Module],
    precision: Precision,
) -> Any:
    """Return DeepSpeed's engine on the open process group, without compiling anything.

    At stage 3 the model is still on the host.
    """
    _forget_process_group()
    with captured_output(), _without_shared_memory(deepspeed), double.precision(precision.param_dtype):
        if config["zero_optimization"]["stage"] == 3:
            _shard(deepspeed, model.train(), config, blocks, precision)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=copy.deepcopy(config))
    if precision.param_dtype == torch.float64:
        double.widen(engine)
    return engine


def _shard(
    deepspeed: ModuleType, model: nn.Module, config: dict[str, Any], blocks: Sequence[nn.Module], precision: Precision
) -> None:
    """Shard the weights of a model on the host, one by one: the engine would first move all of them to the device."""
    dtype = precision.pass_dtype or precision.param_dtype  # the former in DeepSpeed's own 16-bit modes
    for unit in (*blocks, model):
        for parameter in unit.parameters():
            if not hasattr(parameter, "ds_id"):
                # A copy: Init writes rank 0's weights into it, and pages of a file would stay in memory after that.
                parameter.data = values_of(parameter)().to(dtype, copy=True)
                vars(parameter).pop("draw", None)
        # Init reads the whole configuration each time, and leaves weights alone that are sharded already.
        init = deepspeed.zero.Init(module=unit, config_dict_or_path=copy.deepcopy(config))
    for buffer in model.buffers():
        kept = precision.param_dtype if buffer.is_floating_point() else buffer.dtype
        buffer.data = buffer.data.to(init.local_device, kept)


def _forget_process_group() -> None:
    """Let DeepSpeed use the open process group: it would keep the first one of the process."""
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    comm.cdb = None
    groups._release_process_group_references(group=None)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables that are not set; delete them at the end of the block."""
    missing = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


@contextlib.contextmanager
def _without_shared_memory(deepspeed: ModuleType) -> Iterator[None]:
    """Keep DeepSpeed from compiling, for minutes, an all-reduce that only inference uses."""
    deepspeed.ops.__compatible_ops__ = {}
    try:
        yield
    finally:
        del deepspeed.ops.__compatible_ops__  # DeepSpeed computes it again at the next access


@contextlib.contextmanager
def captured_output() -> Iterator[None]:
    """Write all output to stdout of the block into the log: stdout is for results."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            # DeepSpeed imports torch's compiler, which uses torch.jit, which torch itself deprecates.
            warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
            yield
    finally:
        for line in printed.getvalue().splitlines():
            _log(log.makeRecord(log.name, logging.INFO, __file__, 0, "DeepSpeed: %s", (line,), None))


class _ToOurLog(logging.Handler):
    """Replaces DeepSpeed's handler, which writes to stdout."""

    def emit(self, record: logging.LogRecord) -> None:
        _log(copy.copy(record))


def _log(record: logging.LogRecord) -> None:
    """Write a record to the log files; only errors go to stderr, as a user cannot act on DeepSpeed's warnings."""
    if record.levelno < logging.ERROR:
        record.levelno = logging.DEBUG
    logging.getLogger("paratune").handle(record)
