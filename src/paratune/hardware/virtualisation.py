"""Detects virtual machines and containers from files of the kernel."""

import re
from collections.abc import Iterator
from pathlib import Path

from paratune.hardware.system_files import read_text

NONE = "none"
OTHER = "other"
_ROOT = Path("/")
_VENDORS = {
    "Amazon EC2": "amazon",
    "Apple Virtualization": "apple",
    "BHYVE": "bhyve",
    "Bochs": "bochs",
    "Google Compute Engine": "google",
    "Hyper-V": "microsoft",
    "innotek GmbH": "oracle",
    "KubeVirt": "kvm",
    "KVM": "kvm",
    "Microsoft Corporation": "microsoft",
    "OpenStack": "kvm",
    "Parallels": "parallels",
    "QEMU": "qemu",
    "VirtualBox": "oracle",
    "VMware": "vmware",
    "VMW": "vmware",
    "Xen": "xen",
}
"""Hypervisors by the start of the firmware's description, with the names of systemd-detect-virt."""
_DMI = ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version")
_IN_CGROUP = {
    "kubepods": "kubernetes",
    "docker": "docker",
    "libpod": "podman",
    "lxc": "lxc",
    "containerd": "containerd",
}
"""Kinds of containers by a part of the control group's path."""


def describe_virtualisation(root: Path = _ROOT) -> dict[str, str | None]:
    """Describe the virtual machine and the container of this process.

    Args:
        root: Folder with proc, sys and the files of containers.

    Returns:
        hypervisor (none, a name such as kvm, vmware, xen, amazon, google or microsoft, or other), container (none, or a
        name such as docker, podman, kubernetes, lxc, apptainer or wsl). None where unknown.
    """
    return {"hypervisor": _hypervisor(root), "container": _container(root)}


def _hypervisor(root: Path) -> str | None:
    """Return the hypervisor. The firmware alone is not enough: physical machines of clouds have the same names."""
    flags = re.search(r"^flags\s*:(.*)$", read_text(root / "proc" / "cpuinfo") or "", re.MULTILINE)
    if flags and "hypervisor" not in flags[1].split():
        return NONE
    name = next(_names(root), None)
    if flags:
        return name or OTHER
    # For processors without flags, such as ARM's, the firmware decides; Amazon's physical machines end with .metal.
    product = read_text(root / "sys" / "class" / "dmi" / "id" / "product_name") or ""
    return NONE if product.strip().endswith(".metal") else name


def _names(root: Path) -> Iterator[str]:
    for file in _DMI:
        text = (read_text(root / "sys" / "class" / "dmi" / "id" / file) or "").strip()
        yield from (name for start, name in _VENDORS.items() if text.startswith(start))
    if kind := (read_text(root / "sys" / "hypervisor" / "type") or "").strip():
        yield kind
    if "kvm" in (read_text(root / "proc" / "device-tree" / "hypervisor" / "compatible") or ""):
        yield "kvm"


def _container(root: Path) -> str | None:
    if "microsoft" in (read_text(root / "proc" / "sys" / "kernel" / "osrelease") or "").lower():
        return "wsl"
    if (root / ".singularity.d").exists():
        return "apptainer"
    if container := (read_text(root / "run" / "systemd" / "container") or "").strip():
        return container
    groups, mounts = (read_text(root / "proc" / "self" / name) for name in ("cgroup", "mountinfo"))
    if "/kubelet/pods/" in (mounts or ""):  # Kubernetes mounts /etc/hosts from there
        return "kubernetes"
    for part, name in _IN_CGROUP.items():
        if part in (groups or ""):
            return name
    for file, name in (("run/.containerenv", "podman"), (".dockerenv", "docker")):
        if (root / file).exists():
            return name
    # An overlay as root is a container, or a machine without disks.
    is_layered = re.search(r"^\S+ \S+ \S+ \S+ / .* - overlay ", mounts or "", re.MULTILINE)
    return None if groups is None or mounts is None or is_layered else NONE
