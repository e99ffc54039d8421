"""How long the operations of a pass take: on the device the larger of arithmetic and memory, on the host the launching.

Operations come from a trace, each with its FLOP, its bytes, its dtype and its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paratune.plan.constants import Constants
from paratune.plan.trace import Operation

_PRODUCTS = {"mm", "addmm", "linear", "convolution", "_linear_pointwise"}
_KIND_OF = {
    **dict.fromkeys(
        ("gelu", "gelu_backward", "tanh", "tanh_backward", "silu", "silu_backward", "exp", "erf"), "activation"
    ),
    **dict.fromkeys(("_softmax", "_softmax_backward_data", "_safe_softmax", "_log_softmax"), "softmax"),
    **dict.fromkeys(("_log_softmax_backward_data", "logsumexp", "softmax"), "softmax"),
    **dict.fromkeys(("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm"), "norm"),
    **dict.fromkeys(("native_dropout", "native_dropout_backward", "cheap_dropout"), "dropout"),
    **dict.fromkeys(("bernoulli_", "bernoulli", "rand_like", "uniform_"), "random"),
    **dict.fromkeys(("embedding", "embedding_dense_backward", "gather", "scatter_add", "scatter_add_"), "gather"),
    **dict.fromkeys(("index", "index_put", "index_put_", "index_select", "index_add", "index_add_"), "gather"),
    "tile_scores": "scores",
    "tile_scores_backward": "scores_backward",
}
"""Figure of the machine that an operator without products is bound by; `elementwise` for all others."""
_ARITHMETIC = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class PassTime:
    """Of the operations of one pass, in seconds."""

    device_s: float
    """On the device, one behind the other."""
    host_s: float
    """Launching them."""
    arithmetic_s: float
    """The part of `device_s` that is bound by arithmetic; the rest waits for memory, or is too short for either."""
    is_queued: bool
    """Whether the host launches ahead of the device (CUDA), or does the work itself."""

    @property
    def total_s(self) -> float:
        return max(self.device_s, self.host_s) if self.is_queued else self.device_s + self.host_s

    @property
    def is_host_bound(self) -> bool:
        return self.host_s > self.device_s


def pass_time(
    operations: Mapping[Operation, int], constants: Constants, *, launch: str, tf32: bool, is_cuda: bool
) -> PassTime:
    """Return how long operations take.

    Args:
        operations: How often each runs.
        constants: Of the machine.
        launch: Which figure is the host's time for one: launch.forward or launch.backward.
        tf32: Whether products of float32 are computed in TF32.
        is_cuda: Whether operations are put into a queue.

    Raises:
        UnknownFigure: The machine has no figure for one of them: an arithmetic that its sheet does not list.
    """
    device_s = arithmetic_s = 0.0
    shortest = constants.value("kernel", 0.0) if is_cuda else 0.0
    for operation, count in operations.items():
        computing, moving = _bounds(operation, constants, tf32=tf32)
        seconds = max(computing, moving, shortest)
        device_s += count * seconds
        arithmetic_s += count * seconds if computing == seconds else 0.0
    host_s = sum(operations.values()) * constants[launch].value
    return PassTime(device_s, host_s, arithmetic_s, is_queued=is_cuda)


def _bounds(operation: Operation, constants: Constants, *, tf32: bool) -> tuple[float, float]:
    """Return the seconds of an operation's arithmetic, and of what it moves."""
    if not operation.flops:
        kind = _KIND_OF.get(operation.name, "elementwise")
        return 0.0, operation.num_bytes / constants[kind].at(operation.num_bytes)
    family = "product" if operation.name in _PRODUCTS else "batched"
    rate = constants[f"{family}.{arithmetic_of(operation.dtype, tf32=tf32)}"]
    # A measured rate of products holds what they move, too.
    moving = 0.0 if rate.curve else operation.num_bytes / constants["elementwise"].at(operation.num_bytes)
    return operation.flops / rate.at(operation.flops), moving


def arithmetic_of(dtype: str, *, tf32: bool) -> str:
    """Return in which arithmetic products of a dtype are computed, as `devices.ARITHMETICS` names it."""
    found = _ARITHMETIC.get(dtype, "fp32")
    return "tf32" if tf32 and found == "fp32" else found
