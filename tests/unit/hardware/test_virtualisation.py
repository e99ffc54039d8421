"""Virtual machines and containers by files of the kernel, as several systems lay them out."""

from pathlib import Path

import pytest

from paratune.hardware.virtualisation import describe_virtualisation

BARE = {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2 avx2\n"}
GUEST = {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2 hypervisor avx2\n"}
ARM = {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd bf16\n"}
DMI = "sys/class/dmi/id"
ROOT = "27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
LAYERED = "27 1 0:52 / / rw,relatime - overlay overlay rw,lowerdir=/l\n"
POD = "9 27 8:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
PLAIN = {"proc/self/mountinfo": ROOT}


def lay(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "hypervisor"),
    [
        (BARE, "none"),
        (GUEST, "other"),
        ({**GUEST, f"{DMI}/sys_vendor": "QEMU\n"}, "QEMU"),
        ({**GUEST, f"{DMI}/product_name": "KVM\n", f"{DMI}/sys_vendor": "Red Hat\n"}, "Red Hat KVM"),
        ({**GUEST, "sys/hypervisor/type": "xen\n"}, "xen"),
        # Whole machines of a cloud: the firmware has its name, and the processor no such flag.
        ({**BARE, f"{DMI}/sys_vendor": "Amazon EC2\n", f"{DMI}/product_name": "g4dn.metal\n"}, "none"),
        (ARM, None),
        ({}, None),
    ],
)
def test_the_hypervisor(tmp_path: Path, files, hypervisor):
    assert describe_virtualisation(lay(tmp_path, files))["hypervisor"] == hypervisor


@pytest.mark.parametrize(
    ("files", "container"),
    [
        (PLAIN, "none"),
        ({**PLAIN, ".dockerenv": ""}, "docker"),
        ({**PLAIN, "run/.containerenv": "engine=podman\n"}, "podman"),
        ({**PLAIN, "run/systemd/container": "lxc\n"}, "lxc"),
        ({**PLAIN, ".singularity.d/runscript": ""}, "apptainer"),
        ({**PLAIN, "proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"}, "wsl"),
        (
            {
                **PLAIN,
                "proc/self/mountinfo": LAYERED + "9 27 8:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 a",
            },
            "kubernetes",
        ),
        # A container, or a machine without disks.
        ({**PLAIN, "proc/self/mountinfo": LAYERED}, None),
        ({}, None),
    ],
)
def test_the_container(tmp_path: Path, files, container):
    assert describe_virtualisation(lay(tmp_path, files))["container"] == container
