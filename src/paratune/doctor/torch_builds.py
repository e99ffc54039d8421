"""The builds of torch: CUDA version, and GPUs with kernels."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """A build of torch, from one folder of wheels."""

    name: str
    """Name of the folder, such as cu130."""
    cuda: int
    """Major version of CUDA; a driver for this or a later version runs the build."""
    archs: tuple[str, ...]
    """Architectures with kernels, by the names of torch."""
    last_torch: str | None = None
    """Last version of torch with this build; None for the current one."""

    @property
    def install(self) -> str:
        """Return the command that replaces another build of the same version."""
        torch = "torch" if self.last_torch is None else f"'torch=={self.last_torch}.*'"
        return f"pip install --force-reinstall {torch} --index-url https://download.pytorch.org/whl/{self.name}"


BUILDS = (
    Build(
        "cu130",
        13,
        # sm_110 only on aarch64.
        ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120"),
    ),
    Build("cu126", 12, ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")),
    Build("cu128", 12, ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"), last_torch="2.11"),
)
"""In order of preference. The first two exist for torch 2.11 to 2.14, cu128 only for 2.11 of these (CUDA
support matrix in PyTorch's RELEASE.md; pytorch#175253 for 2.11, pytorch#182849 for 2.12)."""
NEWEST_CUDA = max(build.cuda for build in BUILDS)


def has_kernels(archs: Collection[str], number: int) -> bool:
    """Return whether a build for these architectures runs on a GPU, given by its number (86 for sm_86)."""
    exact = [int(match[1]) for arch in archs if (match := re.fullmatch(r"sm_(\d+)a?", arch))]
    compiled_later = [int(match[1]) for arch in archs if (match := re.fullmatch(r"compute_(\d+)a?", arch))]
    # Kernels run on later GPUs of the same major version.
    return any(arch <= number for arch in compiled_later) or any(
        arch // 10 == number // 10 and arch <= number for arch in exact
    )


def build_for(cuda: int, numbers: Sequence[int]) -> Build | None:
    """Return the build that runs on the largest number of GPUs; None if no build runs on any.

    Args:
        cuda: Major version that the driver supports.
        numbers: Architectures of the GPUs, such as 86; empty if unknown.
    """
    fitting = [build for build in BUILDS if build.cuda <= cuda]
    served = {build: sum(has_kernels(build.archs, number) for number in numbers) for build in fitting}
    best = max(fitting, key=served.__getitem__, default=None)
    return best if best is not None and (served[best] or not numbers) else None
