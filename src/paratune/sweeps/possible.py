"""Why cells cannot run: combinations that are impossible on any machine, or on this one.

Mistakes in a file (an unknown option, a value of the wrong type) are errors, and are not checked here. No torch.
"""

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from paratune.config.feasibility import Ranks, Target, num_layers, reasons_against
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.errors import is_installed

_ASK = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([torch.cuda.get_device_capability(number) for number in range(count)]))
"""
_ASK_S = 120.0  # importing torch from a slow file system may take this long
Gpus = tuple[tuple[int, int], ...] | None
"""Compute capability of each GPU of a machine; None when PyTorch could not report it."""


@functools.cache
def gpus_here() -> Gpus:
    """Return the GPUs that PyTorch sees, from another process: here it would use GPU memory while runs are measured."""
    if sys.platform == "linux" and not any(Path("/dev").glob("nvidia[0-9]*")):
        if not any(Path("/dev", name).exists() for name in ("kfd", "dxg")):
            return ()
    command = [sys.executable, "-P", "-c", _ASK]
    try:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=True)
        return tuple((int(major), int(minor)) for major, minor in json.loads(process.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        return None


def why_impossible(
    config: Config,
    num_processes: int,
    num_nodes: int | None = None,
    environment: Mapping[str, str | None] | None = None,
    *,
    here: bool,
    gpus: Gpus | str = "here",
) -> str | None:
    """Return why a run is impossible; None when it is possible, as far as is known.

    Args:
        num_nodes: Nodes that the matrix sets.
        environment: Variables of the run; CUDA_VISIBLE_DEVICES hides GPUs.
        here: Whether it is to run on this machine; otherwise on any, with any packages.
        gpus: Those of this machine; default: those that PyTorch sees.
    """
    if num_nodes is not None and num_processes % num_nodes:
        return f"nproc: {num_processes} cannot be divided equally among nodes: {num_nodes}"
    if here and num_nodes is not None and num_nodes > 1:
        return f"nodes: {num_nodes} needs several machines: paratune launch MATRIX --site SITE --array submits it"
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    target = None  # unknown, or not needed
    if config.device == "cpu":
        target = Target(is_cpu=True, description="device is cpu")
    elif here:
        needs_gpus = num_processes > 1 or (traits is not None and traits.needs_accelerator)
        asks = needs_gpus or config.device == "cuda" or config.precision in ("fp16", "bf16", "tf32")
        if asks or not config.train.deterministic:
            target = _target(num_processes, environment or {}, gpus_here() if isinstance(gpus, str) else gpus)
    reasons = reasons_against(
        config,
        traits,
        target,
        Ranks(num_processes, 1 if here else None),
        num_blocks=num_layers(config.model),
        is_installed=is_installed if here else None,
    )
    return reasons[0].message if reasons else None


def _target(num_processes: int, environment: Mapping[str, str | None], gpus: Gpus) -> Target | None:
    """Return the device of each process; None when it is unknown."""
    if gpus is None:
        return None
    words = environment.get("CUDA_VISIBLE_DEVICES")
    if words is not None:  # which of them are visible does not matter where all are alike
        named = itertools.takewhile(lambda word: word != "-1", (word.strip() for word in words.split(",")))
        gpus = gpus[: sum(map(bool, named))]
    if not gpus:
        return Target(is_cpu=True, description="PyTorch sees no GPU here")
    oldest = min(gpus[:num_processes])
    return Target(
        is_cpu=False,
        description=f"one here has {'.'.join(map(str, oldest))}",
        missing_precisions=frozenset(("bf16", "tf32")) if oldest < (8, 0) else frozenset(),
        num_devices=len(gpus),
        is_tf32_disabled={**os.environ, **environment}.get("NVIDIA_TF32_OVERRIDE") == "0",
    )
