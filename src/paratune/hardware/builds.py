"""Builds of torch: the GPUs for which each has kernels, and the line that installs it."""

import re
from collections.abc import Collection, Sequence

BUILDS = {
    "cu130": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120"),  # sm_110 on aarch64
    "cu126": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    "cu128": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}
"""Builds of torch in order of preference: name of the folder of wheels -> architectures with kernels, by the names of
torch. A driver for the major version of CUDA in the name, or for a later one, runs the build. The first two exist for
torch 2.11 to 2.14, cu128 only for 2.11 of these (CUDA support matrix in PyTorch's RELEASE.md; pytorch#175253 for 2.11,
pytorch#182849 for 2.12)."""
OLD_BUILD, OLD_TORCH = "cu128", "'torch==2.11.*'"
NEWEST_CUDA = 13


def has_kernels(archs: Collection[str], number: int) -> bool:
    """Return whether a build for these architectures runs on a GPU, given by its number (86 for sm_86)."""
    exact = [int(match[1]) for arch in archs if (match := re.fullmatch(r"sm_(\d+)a?", arch))]
    compiled_later = [int(match[1]) for arch in archs if (match := re.fullmatch(r"compute_(\d+)a?", arch))]
    # Kernels run on later GPUs of the same major version.
    return any(arch <= number for arch in compiled_later) or any(
        arch // 10 == number // 10 and arch <= number for arch in exact
    )


def build_for(cuda: int, numbers: Sequence[int]) -> str | None:
    """Return the build that runs on the largest number of GPUs; None if no build runs on any.

    Args:
        cuda: Major version that the driver supports.
        numbers: Architectures of the GPUs, such as 86; empty if unknown.
    """
    fitting = [build for build in BUILDS if int(build[2:4]) <= cuda]
    served = {build: sum(has_kernels(BUILDS[build], number) for number in numbers) for build in fitting}
    best = max(fitting, key=served.__getitem__, default=None)
    return best if best is not None and (served[best] or not numbers) else None


def install_line(build: str) -> str:
    """Return the line that replaces another build of the same version."""
    torch = "torch" if build != OLD_BUILD else OLD_TORCH
    return f"pip install --force-reinstall {torch} --index-url https://download.pytorch.org/whl/{build}"


def kernels_problem(name: str, number: int, archs: Collection[str]) -> str | None:
    """Return why this build of torch cannot use a GPU, and the remedy; None if it can, and for builds for ROCm.

    Args:
        number: Compute capability without the point, such as 70.
        archs: Architectures of the build, as `torch.cuda.get_arch_list` has them.
    """
    # A build for ROCm has names such as gfx90a, which are no compute capabilities.
    if not any(arch.startswith("sm_") for arch in archs) or has_kernels(archs, number):
        return None
    best = build_for(NEWEST_CUDA, [number])
    remedy = f"use another GPU: no build has kernels for sm_{number}" if best is None else install_line(best)
    return f"torch has no kernels for {name} (sm_{number}); it has {', '.join(archs)}; {remedy}"
