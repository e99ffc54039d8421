"""Which builds of torch there are: the CUDA of each, and the GPUs for which it has kernels."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """Of one folder of wheels."""

    name: str
    """Of the folder, such as cu130."""
    cuda: int
    """Major version of its CUDA; a driver that knows it, or a later one, runs the build."""
    archs: tuple[str, ...]
    """For which there are kernels, as torch names them."""
    last_torch: str | None = None
    """Version after which there is no such build."""

    @property
    def install(self) -> str:
        """Return the command that puts it in the place of a build that pip takes for the same version."""
        torch = "torch" if self.last_torch is None else f"'torch=={self.last_torch}.*'"
        return f"pip install --force-reinstall {torch} --index-url https://download.pytorch.org/whl/{self.name}"


BUILDS = (
    Build(
        "cu130",
        13,
        # sm_110 on aarch64 alone, where its GPUs are.
        ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120"),
    ),
    Build("cu126", 12, ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")),
    Build("cu128", 12, ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"), last_torch="2.11"),
)
"""In the order of preference. The first two are there for torch 2.11 to 2.14, cu128 of these for 2.11 alone (CUDA
support matrix in PyTorch's RELEASE.md; pytorch#175253 for 2.11, pytorch#182849 for 2.12)."""
NEWEST_CUDA = max(build.cuda for build in BUILDS)


def has_kernels(archs: Collection[str], number: int) -> bool:
    """Return whether a build for these architectures runs on a GPU, given by its number (86 for sm_86)."""
    exact = [int(match[1]) for arch in archs if (match := re.fullmatch(r"sm_(\d+)a?", arch))]
    compiled_later = [int(match[1]) for arch in archs if (match := re.fullmatch(r"compute_(\d+)a?", arch))]
    # Kernels run on later GPUs of the same major version.
    return any(each <= number for each in compiled_later) or any(
        each // 10 == number // 10 and each <= number for each in exact
    )


def build_for(cuda: int, numbers: Sequence[int]) -> Build | None:
    """Return the build that runs on most of some GPUs; None where none does.

    Args:
        cuda: Major version that the driver knows.
        numbers: Of the GPUs' architectures; empty where they are not known.
    """
    fitting = [build for build in BUILDS if build.cuda <= cuda]
    served = {build: sum(has_kernels(build.archs, number) for number in numbers) for build in fitting}
    best = max(fitting, key=served.__getitem__, default=None)
    return best if best is not None and (served[best] or not numbers) else None
