"""What a configuration is checked against: the device and the processes, as far as a surface knows them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The device of each process."""

    is_cpu: bool
    description: str
    """The half of a sentence that follows "and": "this run computes on the CPU", "Tesla T4 has 7.5"."""
    missing_precisions: frozenset[str] = frozenset()
    """Precisions that need compute capability 8.0, where this device is older: any of bf16 and tf32."""
    num_devices: int | None = None
    """Devices of one machine that the processes may use; None where not known."""
    is_tf32_disabled: bool = False
    """Whether the environment has NVIDIA_TF32_OVERRIDE=0."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a run."""

    world_size: int
    num_nodes: int | None = 1
    """None where not known."""
