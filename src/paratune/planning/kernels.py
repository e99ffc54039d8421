"""The time of the operations of a pass: on the device the longer of arithmetic and memory, on the host the launches.

Operations come from a trace, each with FLOP, bytes, dtype and name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paratune.planning.constants import Constants
from paratune.planning.trace import Operation

_PRODUCTS = {"mm", "addmm", "linear", "convolution", "_linear_pointwise"}
_OPERATORS = {
    "activation": "gelu gelu_backward tanh tanh_backward silu silu_backward exp erf",
    "softmax": (
        "_softmax _softmax_backward_data _safe_softmax _log_softmax _log_softmax_backward_data logsumexp softmax"
    ),
    "norm": "native_layer_norm native_layer_norm_backward _fused_rms_norm",
    "dropout": "native_dropout native_dropout_backward cheap_dropout",
    "random": "bernoulli_ bernoulli rand_like uniform_",
    "gather": "embedding gather scatter_add scatter_add_ index index_put index_put_ index_select index_add index_add_",
    "scatter": "embedding_dense_backward",
    "scores": "tile_scores",
    "scores_backward": "tile_scores_backward",
}
"""Operators without matrix products, by their constant; `elementwise` for all others."""
_KIND_OF = {name: kind for kind, names in _OPERATORS.items() for name in names.split()}
_ARITHMETIC = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class PassTime:
    """The time of the operations of one pass, in seconds."""

    device_s: float
    """On the device, one after another."""
    host_s: float
    """On the host, for launching them."""
    arithmetic_s: float
    """The part of `device_s` that is bound by arithmetic; the rest is bound by memory or by the shortest kernel."""
    is_queued: bool
    """Whether the host launches operations ahead of the device (CUDA); on a CPU the host computes them itself."""

    @property
    def total_s(self) -> float:
        return max(self.device_s, self.host_s) if self.is_queued else self.device_s + self.host_s

    @property
    def is_host_bound(self) -> bool:
        return self.host_s > self.device_s


def pass_time(
    operations: Mapping[Operation, int],
    constants: Constants,
    *,
    launch: str,
    tf32: bool,
    is_cuda: bool,
    threads_speedup: float = 1.0,
) -> PassTime:
    """Return the time of operations, given how often each runs; on CUDA they are put into a queue.

    `launch` is the constant for the host's time of an operation: launch.forward or launch.backward; `threads_speedup`
    divides the time of the operations on a CPU (`planning.time`).

    Raises:
        UnknownConstant: The constant of an operation is unknown, such as an arithmetic that is not on the data sheet.
    """
    device_s = arithmetic_s = 0.0
    shortest = constants.value("kernel", 0.0) if is_cuda else 0.0
    for operation, count in operations.items():
        computing, moving = _bounds(operation, constants, tf32=tf32)
        seconds = max(computing, moving, shortest)
        device_s += count * seconds
        arithmetic_s += count * seconds if computing == seconds else 0.0
    host_s = sum(operations.values()) * constants[launch].value
    return PassTime(device_s / threads_speedup, host_s, arithmetic_s / threads_speedup, is_queued=is_cuda)


def _bounds(operation: Operation, constants: Constants, *, tf32: bool) -> tuple[float, float]:
    """Return the seconds of an operation's arithmetic, and of its memory traffic."""
    if not operation.flops:
        kind = _KIND_OF.get(operation.name, "elementwise")
        kind = "gather" if kind == "scatter" and kind not in constants else kind
        return 0.0, operation.num_bytes / constants[kind].value
    family = "product" if operation.name in _PRODUCTS else "batched"
    arithmetic = _ARITHMETIC.get(operation.dtype, "fp32")
    rate = constants[f"{family}.{'tf32' if tf32 and arithmetic == 'fp32' else arithmetic}"]
    return operation.flops / rate.value, operation.num_bytes / constants["elementwise"].value
