"""Detects virtual machines and containers from files of the kernel."""

import re
from pathlib import Path

from paratune.hardware.system_files import read_text

NONE = "none"
_ROOT = Path("/")


def describe_virtualisation(root: Path = _ROOT) -> dict[str, str | None]:
    """Describe the virtual machine and the container of this process.

    Args:
        root: Folder with proc, sys and the files of containers.

    Returns:
        hypervisor (none; the vendor and product of the virtual machine's firmware, such as "QEMU" or "Amazon EC2
        g5.xlarge"; or other), container (none, or a name such as docker, podman, kubernetes, lxc, apptainer or wsl).
        None where unknown, such as the hypervisor of ARM's processors.
    """
    return {"hypervisor": _hypervisor(root), "container": _container(root)}


def _hypervisor(root: Path) -> str | None:
    """Return the hypervisor. The firmware alone is not enough: physical machines of clouds have the same names."""
    flags = re.search(r"^flags\s*:(.*)$", read_text(root / "proc" / "cpuinfo") or "", re.MULTILINE)
    if not flags:
        return None
    if "hypervisor" not in flags[1].split():
        return NONE
    parts = (read_text(root / "sys" / "class" / "dmi" / "id" / name) for name in ("sys_vendor", "product_name"))
    firmware = " ".join(part.strip() for part in parts if part and part.strip())
    return firmware or (read_text(root / "sys" / "hypervisor" / "type") or "").strip() or "other"


def _container(root: Path) -> str | None:
    if "microsoft" in (read_text(root / "proc" / "sys" / "kernel" / "osrelease") or "").lower():
        return "wsl"
    if (root / ".singularity.d").exists():
        return "apptainer"
    if container := (read_text(root / "run" / "systemd" / "container") or "").strip():
        return container
    mounts = read_text(root / "proc" / "self" / "mountinfo")
    if "/kubelet/pods/" in (mounts or ""):  # Kubernetes mounts /etc/hosts from there
        return "kubernetes"
    for file, name in (("run/.containerenv", "podman"), (".dockerenv", "docker")):
        if (root / file).exists():
            return name
    # An overlay as root is a container, or a machine without disks.
    return None if mounts is None or re.search(r"^\S+ \S+ \S+ \S+ / .* - overlay ", mounts, re.MULTILINE) else NONE
