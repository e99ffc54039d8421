"""The device and the processes for which a configuration is checked, as far as they are known to a command."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The device of each process."""

    is_cpu: bool
    description: str
    """Part of a message after "and": "this run computes on the CPU", "Tesla T4 has 7.5"."""
    missing_precisions: frozenset[str] = frozenset()
    """Any of bf16 and tf32, where the device has a compute capability below 8.0."""
    num_devices: int | None = None
    """Devices of one machine that the processes may use; None where it is not known."""
    is_tf32_disabled: bool = False
    """Whether the environment has NVIDIA_TF32_OVERRIDE=0."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a run."""

    world_size: int
    num_nodes: int | None = 1
    """None where it is not known."""
