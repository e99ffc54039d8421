"""Checks of the build of torch: its CUDA version against the driver, and its kernels against the GPUs."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from paratune.doctor.finding import Finding
from paratune.doctor.setup import QueuedRun


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


def check_driver(setup: QueuedRun) -> Iterator[Finding]:
    probes = setup.probes
    built, known = _major(probes.torch_cuda), _major(probes.driver_cuda)
    if setup.start.is_elsewhere:
        return
    # From CUDA 11 on a driver runs all of its own major version (CUDA Compatibility, minor version compatibility).
    if built and known and known < built:
        fact = f"torch is built with CUDA {probes.torch_cuda}, and the driver supports CUDA {probes.driver_cuda}"
        why = "torch finds no GPU (`The NVIDIA driver on your system is too old`)."
        build = build_for(known, _archs(setup))
        line, remedy = (build.install, "or a newer driver") if build else ("", "a newer driver")
        yield Finding("driver_old", "problem", fact, why, remedy, f"driver {probes.driver or 'n/a'}", line)
    elif probes.torch_cuda is None and probes.driver is not None and setup.config.device != "cpu":
        fact = "torch is a build for CPUs, and there is an NVIDIA driver"
        if build_for(NEWEST_CUDA, _archs(setup)) is None:
            why = f"No build of torch has kernels for {_in_words(_archs(setup))}: the run uses the CPU."
            yield Finding("torch_build", "note", fact, why, "", "torch")
            return
        why = "The run uses the CPU, and the GPUs are idle."
        yield Finding("torch_build", "problem", fact, why, *_other_build(setup))


def _other_build(setup: QueuedRun) -> tuple[str, str, str]:
    """Return remedy, place and line of a finding: another build of torch, or first a newer driver or GPU."""
    numbers = _archs(setup)
    current = build_for(_major(setup.probes.driver_cuda) or NEWEST_CUDA, numbers)
    best = build_for(NEWEST_CUDA, numbers)
    if best is None:
        return f"another GPU: no build of torch has kernels for {_in_words(numbers)}", "torch", ""
    later = f"a newer driver, because this one supports CUDA {setup.probes.driver_cuda}, and then {best.install}"
    if current is None:
        return later, "torch", ""
    return f"or {later}" if current.last_torch else "", "torch", current.install


def _archs(setup: QueuedRun) -> list[int]:
    """Return the architectures of the GPUs of torch, or if it finds none, those of the driver."""
    known = [gpu["capability"] for gpu in setup.gpus if gpu["capability"] is not None]
    return [_arch(capability) for capability in known or setup.probes.capabilities]


def _in_words(numbers: Collection[int]) -> str:
    return ", ".join(f"sm_{number}" for number in dict.fromkeys(numbers))


def check_kernels(setup: QueuedRun) -> Iterator[Finding]:
    archs = setup.probes.torch_archs
    # A build for ROCm has names such as gfx90a, which are no compute capabilities.
    is_cuda = any(arch.startswith("sm_") for arch in archs)
    for gpu in setup.gpus if is_cuda and not setup.start.is_elsewhere else ():
        number = _arch(gpu["capability"])
        if has_kernels(archs, number):
            continue
        fact = f"torch has no kernels for {gpu['name']} (sm_{number}); it has {', '.join(archs)}"
        why = "The first operation ends with `no kernel image is available for execution on the device`."
        remedy, where, line = _other_build(setup)
        numbers = _archs(setup)
        build = build_for(NEWEST_CUDA, numbers)
        if build is not None and any(not has_kernels(build.archs, arch) for arch in numbers):
            kinds = _in_words(numbers)
            remedy, line = f"GPUs of one kind (CUDA_VISIBLE_DEVICES): no build has kernels for {kinds}", ""
        yield Finding("gpu_kernels", "problem", fact, why, remedy, where, line)
        return


def _arch(capability: str) -> int:
    """Return a compute capability as in names of architectures: 86 for 8.6."""
    return int(capability.replace(".", ""))


def _major(version: str | None) -> int | None:
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None
