"""Dtypes of queries, keys and values at the attention kernel under autocast, and correctness of its result.

Rotary models compute queries and keys with float32 cosines, so that under autocast their dtype differs from that of the
values; a kernel that reads values with the queries' dtype returns wrong numbers without an error.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .models import compare
from .setting import Check, Figures, Setting, Wrong

ROTARY = ("eurobert", "jina-v3", "esm-rotary", "modernbert", "bert")


class Seen(TorchDispatchMode):
    """Records the dtypes of the first three tensors of each operator with "attention" in its name."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        if "attention_forward" in name or "attend" in name or "scaled_dot_product" in name:
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point()][:3]
            self.dtypes.setdefault(name, set()).add("/".join(str(x.dtype).removeprefix("torch.") for x in tensors))
        return func(*args, **(kwargs or {}))


def checks(setting: Setting) -> Iterator[Check]:
    """Yield a check for each model with rotary positions, and one without."""
    dtypes = {"bf16": torch.bfloat16} | ({"fp16": torch.float16} if setting.on_gpu else {})
    for precision, dtype in dtypes.items():
        for name in ROTARY:
            run = partial(under_autocast, setting, name, dtype)
            yield Check(f"{name}, {precision}", run, "Attention under autocast")


def under_autocast(setting: Setting, name: str, dtype: torch.dtype) -> Figures:
    """Compare a packed step under autocast with float64 on the host, and record the dtypes that reach the kernel."""
    seen, failure = Seen(), None
    figures: dict[str, Any] = {}
    try:
        figures |= compare(setting, name, "classification", dtype, watch=seen)
    except Wrong as wrong:
        failure = wrong
        figures |= wrong.figures
    for operator, kinds in seen.dtypes.items():
        if any(len(set(kind.split("/"))) > 1 for kind in kinds):
            failure = failure or Wrong(f"{operator} received {', '.join(sorted(kinds))}")
    figures["operators"] = "; ".join(f"{op} {', '.join(sorted(kinds))}" for op, kinds in seen.dtypes.items()) or None
    if failure is not None:
        raise Wrong(str(failure), figures)
    return figures
