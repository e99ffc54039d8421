import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from paratune import hardware
from paratune.hardware import gpus

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9654 96-Core Processor
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 fsrm

processor\t: 1
model name\t: another
flags\t\t: fpu
"""

ARM_CPUINFO = "processor\t: 0\nFeatures\t: fp asimd bf16\n\nModel\t\t: Raspberry Pi 5\n"


def make_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_first_processor_counts(tmp_path):
    make_files(tmp_path, {"cpuinfo": CPUINFO})
    assert hardware.cpu_model(tmp_path) == "AMD EPYC 9654 96-Core Processor"
    assert hardware.cpu_flags(tmp_path) == ["avx2", "avx512f", "avx512_bf16"]


def test_arm_has_other_names_for_it(tmp_path):
    make_files(tmp_path, {"cpuinfo": ARM_CPUINFO})
    assert hardware.cpu_model(tmp_path) == "Raspberry Pi 5"
    assert hardware.cpu_flags(tmp_path) == ["bf16"]


def test_flags_are_unknown_without_cpuinfo(tmp_path):
    assert hardware.cpu_flags(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        # cgroup v2: the tightest level counts, "max" is none.
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        # In a container the path is the host's, and the container's own group is at the top.
        ({"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        # cgroup v1, where -1 is none, in a folder of both controllers' names or of one.
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/job\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        (
            {
                "proc/self/cgroup": "0::/../outside\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
                "sys/fs/outside/cpu.max": "100000 100000\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_core_quota(tmp_path, files, cores):
    make_files(tmp_path, files)
    assert hardware.core_quota(tmp_path / "proc", tmp_path / "sys") == cores


def test_usable_cores_are_the_affinity_or_the_quota_if_less(tmp_path, monkeypatch):
    make_files(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2}, raising=False)
    assert hardware.usable_cores(tmp_path / "proc", tmp_path / "sys") == 1.5
    assert hardware.usable_cores(tmp_path / "proc", tmp_path / "nothing") == 3


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1073741824\n"}, 2**30),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, None),
        (
            {
                "proc/self/cgroup": "3:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2147483648\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            2**31,
        ),
        ({"proc/self/cgroup": "3:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}"}, None),
    ],
)
def test_memory_limit(tmp_path, files, limit):
    make_files(tmp_path, files)
    assert hardware.memory_limit_bytes(tmp_path / "proc", tmp_path / "sys") == limit


def storage_of(tmp_path: Path, lines: str, queues: dict[str, str] | None = None, folder: str = "data") -> dict:
    target = tmp_path / folder
    target.mkdir(exist_ok=True)
    make_files(tmp_path, {"proc/self/mountinfo": lines.replace("TMP", str(tmp_path).replace(" ", "\\040"))})
    make_files(tmp_path / "sys" / "dev" / "block", queues or {})
    return hardware.describe_storage(target, tmp_path / "proc", tmp_path / "sys")


ROOT = "27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


def test_storage_is_that_of_the_innermost_mount(tmp_path):
    storage = storage_of(tmp_path, "29 27 0:50 / TMP/data rw - nfs4 server:/x rw\n" + ROOT)
    assert (storage["filesystem"], storage["kind"]) == ("nfs4", "network")
    assert 0 < storage["free_bytes"] <= storage["total_bytes"]


def test_storage_of_a_later_mount_hides_the_earlier(tmp_path):
    twice = "29 27 0:50 / TMP/data rw - nfs4 server:/x rw\n30 29 0:51 / TMP/data rw - tmpfs tmpfs rw\n"
    assert storage_of(tmp_path, ROOT + twice)["kind"] == "memory"


def test_a_mount_point_with_a_space(tmp_path):
    lines = ROOT + "29 27 0:50 / TMP/my\\040data rw - tmpfs tmpfs rw\n"
    assert storage_of(tmp_path, lines, folder="my data")["kind"] == "memory"


def test_a_name_that_only_begins_like_a_mount_point_is_not_on_it(tmp_path):
    lines = ROOT + "29 27 0:50 / TMP/dat rw - tmpfs tmpfs rw\n"
    assert storage_of(tmp_path, lines)["filesystem"] == "ext4"


@pytest.mark.parametrize(("rotational", "kind"), [("1\n", "hdd"), ("0\n", "ssd")])
def test_the_kind_of_a_disk_depends_on_its_rotational_flag(tmp_path, rotational, kind):
    assert storage_of(tmp_path, ROOT, {"8:1/queue/rotational": rotational})["kind"] == kind


def test_a_partition_has_the_kind_of_its_disk(tmp_path):
    disk = make_files(tmp_path / "sys" / "devices" / "sda", {"queue/rotational": "1\n", "sda1/partition": "1\n"})
    (tmp_path / "sys" / "dev" / "block").mkdir(parents=True)
    (tmp_path / "sys" / "dev" / "block" / "8:1").symlink_to(disk / "sda1")
    assert storage_of(tmp_path, ROOT)["kind"] == "hdd"


def test_the_kind_of_a_virtual_disk_is_unknown(tmp_path):
    disk = make_files(tmp_path / "sys" / "devices" / "vda", {"queue/rotational": "1\n"})
    (tmp_path / "sys" / "dev" / "block").mkdir(parents=True)
    (tmp_path / "sys" / "dev" / "block" / "8:1").symlink_to(disk)
    assert storage_of(tmp_path, ROOT)["kind"] is None


def disk(tmp_path: Path, name: str, files: dict[str, str]) -> Path:
    """Make a disk in /sys; return its folder."""
    (tmp_path / "sys" / "dev" / "block").mkdir(parents=True, exist_ok=True)
    return make_files(tmp_path / "sys" / "devices" / name, files)


@pytest.mark.parametrize(
    ("model", "kind"),
    [("SAMSUNG MZWLJ3T8HBLS-00007\n", "nvme"), ("Amazon Elastic Block Store\n", None), ("nvme_card-pd\n", None)],
)
def test_local_nvme_differs_from_other_disks_and_network_disks(tmp_path, model, kind):
    block = disk(tmp_path, "nvme0n1", {"queue/rotational": "0\n", "device/model": model, "nvme0n1p1/partition": "1\n"})
    (tmp_path / "sys" / "dev" / "block" / "8:1").symlink_to(block / "nvme0n1p1")
    assert storage_of(tmp_path, ROOT)["kind"] == kind


@pytest.mark.parametrize(("others", "kind"), [("0\n", "ssd"), ("1\n", "hdd")])
def test_a_volume_has_the_kind_of_its_slowest_disk(tmp_path, others, kind):
    fast = disk(tmp_path, "nvme0n1", {"queue/rotational": "0\n"})
    slow = disk(tmp_path, "sda", {"queue/rotational": others})
    volume = disk(tmp_path, "dm-0", {"queue/rotational": "0\n", "slaves/.keep": ""})
    (volume / "slaves" / ".keep").unlink()
    for order in (fast, slow):
        (volume / "slaves" / order.name).symlink_to(order)
    (tmp_path / "sys" / "dev" / "block" / "8:1").symlink_to(volume)
    assert storage_of(tmp_path, ROOT)["kind"] == kind


def test_the_disk_of_btrfs_comes_from_its_source(tmp_path):
    block = disk(tmp_path, "nvme1n1", {"queue/rotational": "0\n"})
    (tmp_path / "sys" / "class" / "block").mkdir(parents=True)
    (tmp_path / "sys" / "class" / "block" / "nvme1n1").symlink_to(block)
    assert storage_of(tmp_path, "27 1 0:31 / / rw - btrfs /dev/nvme1n1 rw\n")["kind"] == "nvme"


def test_storage_is_unknown_without_proc_and_sys(tmp_path):
    storage = hardware.describe_storage(tmp_path, tmp_path / "proc", tmp_path / "sys")
    assert (storage["filesystem"], storage["kind"]) == (None, None)
    assert storage["free_bytes"] > 0


def test_nearest_existing(tmp_path):
    assert hardware.nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert hardware.nearest_existing(tmp_path) == tmp_path


TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-31\t0
GPU1\tNV18\t X \tSYS\tNODE\t0-31\t0
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1
NIC0\tPIX\tNODE\tSYS\t X

Legend:
  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""


def test_gpu_links_are_between_gpus_slowest_first():
    assert gpus.gpu_links(TOPOLOGY) == {0: "SYS+NV18", 1: "SYS+NV18", 2: "SYS"}


def test_a_single_gpu_has_no_link():
    assert gpus.gpu_links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-31\n") == {}
    assert gpus.gpu_links(None) == {}


def test_node_has_all_that_a_record_wants(tmp_path):
    node = hardware.describe_node(tmp_path / "runs", tmp_path / "cache")
    assert set(node) == {
        "hostname",
        "os",
        "kernel",
        "cpu_model",
        "cpu_flags",
        "num_physical_cores",
        "num_logical_cores",
        "num_usable_cores",
        "ram_bytes",
        "ram_limit_bytes",
        "virtualisation",
        "storage",
        "data_storage",
        "gpus",
        "gpu_driver",
        "python",
    }
    assert node["num_usable_cores"] <= node["num_logical_cores"]
    assert node["ram_bytes"] > 2**28
    assert node["data_storage"]["filesystem"] == node["storage"]["filesystem"]
    assert hardware.describe_node()["data_storage"] is None
    assert not (tmp_path / "runs").exists()


def test_package_versions_are_those_that_the_packages_say():
    import numpy
    import torch

    versions = hardware.package_versions()
    assert versions["torch"] == torch.__version__
    assert versions["numpy"] == numpy.__version__
    assert versions["python"] == "{}.{}.{}".format(*sys.version_info)


def test_a_package_that_is_not_installed_is_null(monkeypatch):
    monkeypatch.setattr(hardware, "PACKAGES", ("no-such-package-here",))
    assert hardware.package_versions()["no-such-package-here"] is None


def test_peak_memory_grows_with_allocated_memory():
    code = (
        "from paratune.hardware import peak_memory_bytes\n"
        "before = peak_memory_bytes()\n"
        "block = bytearray(b'x') * 2**26\n"
        "del block\n"
        "grown = peak_memory_bytes() - before\n"
        "assert 0.9 * 2**26 < grown < 1.5 * 2**26, grown\n"
        "assert before < 2**27, before\n"
    )
    # Held while the child starts: the peak must be the child's own.
    block = bytearray(b"x") * 2**28
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
    del block


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*words):
        settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *settings, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    make_files(tmp_path, {"src/code.py": "x = 1\n", ".gitignore": "ignored/\n", "ignored/installed.py": "\n"})
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return tmp_path, git


def test_code_version_is_the_commit(repository):
    folder, git = repository
    assert hardware.code_version(folder / "src") == {"git_commit": git("rev-parse", "HEAD"), "git_dirty": False}


@pytest.mark.parametrize("name", ["src/code.py", "src/new.py"])
def test_code_version_sees_changed_and_new_files(repository, name):
    folder, _ = repository
    (folder / name).write_text("x = 2\n")
    assert hardware.code_version(folder / "src")["git_dirty"] is True


def test_a_change_outside_the_code_does_not_make_it_dirty(repository):
    folder, _ = repository
    (folder / "notes.txt").write_text("x")
    assert hardware.code_version(folder / "src")["git_dirty"] is False


def test_a_package_installed_inside_a_checkout_is_not_of_its_commit(repository):
    folder, _ = repository
    assert hardware.code_version(folder / "ignored") == {"git_commit": None, "git_dirty": None}


def test_code_version_is_not_led_astray_by_a_git_hook(repository, monkeypatch):
    folder, git = repository
    monkeypatch.setenv("GIT_DIR", str(folder / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(folder / "elsewhere"))
    commit = hardware.code_version(folder / "src")["git_commit"]
    monkeypatch.undo()
    assert commit == git("rev-parse", "HEAD")


def test_without_git_the_code_version_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.code_version() == {"git_commit": None, "git_dirty": None}


def test_a_command_that_fails_or_hangs_has_no_output(monkeypatch):
    assert hardware.command_output(sys.executable, "-c", "print('x')") == "x"
    assert hardware.command_output(sys.executable, "-c", "raise SystemExit(1)") is None
    assert hardware.command_output("no-such-command-here") is None

    def too_long(words, **_):
        raise subprocess.TimeoutExpired(words, 10)

    monkeypatch.setattr(subprocess, "run", too_long)
    assert hardware.command_output("anything") is None


def test_memory_that_is_left_minds_the_containers_limit(tmp_path):
    proc, sys_root = tmp_path / "proc", tmp_path / "sys"
    folder = sys_root / "fs" / "cgroup" / "job"
    (proc / "self").mkdir(parents=True)
    folder.mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job\n")
    assert hardware.available_memory_bytes(proc, sys_root) > 10 * 2**20
    (folder / "memory.max").write_text("5000000\n")
    (folder / "memory.current").write_text("4000000\n")
    (folder / "memory.stat").write_text("anon 3000000\ninactive_file 700000\n")
    # 1,000,000 are free, and 700,000 more are files that need not stay.
    assert hardware.available_memory_bytes(proc, sys_root) == 1_700_000


def test_the_peak_can_begin_anew():
    if not hardware.reset_peak_memory():
        pytest.skip("this system cannot")
    before = hardware.peak_memory_bytes()
    block = bytearray(200 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    high = hardware.peak_memory_bytes()
    assert high >= before + 150 * 2**20
    del block
    assert hardware.peak_memory_bytes() == pytest.approx(high, abs=2**22)  # counters of threads are added up late
    hardware.reset_peak_memory()
    assert hardware.peak_memory_bytes() <= high - 150 * 2**20
    assert hardware.resident_memory_bytes() <= hardware.peak_memory_bytes()
    assert hardware.total_memory_bytes() > hardware.available_memory_bytes() > 0


def test_resetting_the_peak_returns_false_where_it_is_impossible(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "_PROC", tmp_path / "none")
    assert hardware.reset_peak_memory() is False
