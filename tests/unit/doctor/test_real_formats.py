"""Outputs of NVIDIA's tools that their users posted, read as the checks need them: no test machine has a GPU."""

import ctypes
import re

import pytest

from paratune.doctor import probe
from paratune.doctor.facts import MachineFacts
from paratune.hardware import gpus
from paratune.hardware.builds import build_for
from paratune.hardware.gpus import gpu_links

# nvidia-smi, from DataDog/datadog-agent#33120 and sgl-project/sglang#27487: the words changed with series 610.
HEADINGS = {
    "| NVIDIA-SMI 535.216.01             Driver Version: 535.216.01   CUDA Version: 12.2     |": "12.2",
    "| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |": "13.3",
    "| NVIDIA-SMI 331.62     Driver Version: 331.62         |": None,  # cBio/cbio-cluster#38
    "| NVIDIA-SMI 450.80.02    Driver Version: 450.80.02    CUDA Version: N/A      |": None,  # no libcuda inside
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.": None,
}


ROWS = "0, 4\n1, 71233\n2, [N/A]\n"
"""--query-gpu=index,memory.used --format=csv,noheader,nounits; a GB10 reports no memory."""


def probes(monkeypatch, tmp_path, heading="", used="", capabilities="", **environ):
    """Return the facts of a machine without torch, with these outputs of nvidia-smi."""

    def output(_name, *options):
        return {"index": used, "compute": capabilities}[re.split("[=,_]", options[0])[1]] if options else heading

    monkeypatch.setattr(probe.hardware, "command_output", output)
    return probe.gather(MachineFacts({"gpus": None}, {}, tmp_path / "run", tmp_path, environ))


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_newest_cuda_of_a_driver(heading, monkeypatch, tmp_path):
    shown = f"Sun Jun  7 08:16:57 2026\n+---+\n{heading}\n|---+"
    assert probes(monkeypatch, tmp_path, heading=shown).driver_cuda == HEADINGS[heading]


def test_rows_of_gpus(monkeypatch, tmp_path):
    assert probes(monkeypatch, tmp_path, used=ROWS).gpu_processes == {0: 4 * 2**20, 1: 71233 * 2**20}
    assert probes(monkeypatch, tmp_path, used=ROWS, CUDA_VISIBLE_DEVICES="1").gpu_processes == {}
    assert probes(monkeypatch, tmp_path, used="No devices were found\n").gpu_processes == {}


@pytest.mark.parametrize(
    ("output", "capabilities"),
    [
        ("8.9\n8.6\n12.0\n[N/A]\n", ("8.9", "8.6", "12.0")),  # ggml-org/llama.cpp#22519
        ('Field "compute_cap" is not a valid field to query.\n\n', ()),  # a driver of series 470 (candle#733)
    ],
)
def test_rows_of_compute_capabilities(output, capabilities, monkeypatch, tmp_path):
    # --query-gpu=compute_cap --format=csv,noheader
    assert probes(monkeypatch, tmp_path, capabilities=output).capabilities == capabilities


# The matrix of 2.11 (pytorch#175253). B300 is 10.3 and runs kernels for 10.0; Thor is 11.0; a K80 3.7.
@pytest.mark.parametrize(
    ("cuda", "capabilities", "name"),
    [
        (13, [], "cu130"),
        (12, [], "cu126"),
        (11, [], None),
        (13, [100], "cu130"),
        (12, [100], "cu128"),
        (12, [103], "cu128"),
        (12, [110], None),
        (13, [110], "cu130"),
        (13, [70, 70, 80], "cu126"),
        (12, [86, 120], "cu128"),
        (14, [37], None),
    ],
)
def test_the_build_of_torch_for_driver_and_gpus(cuda, capabilities, name):
    assert build_for(cuda, capabilities) == name


# NCCL_VERSION in nccl.h: (X) <= 2 && (Y) <= 8 ? X * 1000 + Y * 100 + Z : X * 10000 + Y * 100 + Z.
@pytest.mark.parametrize(("code", "version"), [(2408, "2.4.8"), (2708, "2.7.8"), (20908, "2.9.8"), (22707, "2.27.7")])
def test_the_number_of_an_nccl(code, version):
    assert gpus.nccl_version(code) == version


def test_the_loaded_nccl_returns_its_version(tmp_path, monkeypatch):
    class Library:
        def __init__(self, path):
            assert path == "/opt/nccl/lib/libnccl.so.2.18.3"

        def ncclGetVersion(self, number):  # noqa: N802
            number._obj.value = 21803
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    maps = tmp_path / "maps"
    at = "7f0000000000-7f0000001000 r-xp 00000000 08:01 131 "
    maps.write_text(f"{at} /usr/lib/libc.so.6\n{at} /opt/nccl/lib/libnccl-net.so\n{at} [heap]\n")
    assert gpus.loaded_nccl(maps) is None
    maps.write_text(f"{maps.read_text()}{at} /opt/nccl/lib/libnccl.so.2.18.3\n")
    assert gpus.loaded_nccl(maps) == "2.18.3"
    assert gpus.loaded_nccl(tmp_path / "none") is None


# nvidia-smi topo -m, with the heading underlined as in a terminal; two tabs before the last column.
EIGHT_H100 = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tPXB\tNODE\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tNODE\t0-55,112-167\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tNODE\t0-55,112-167\t0\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNODE\tNODE\t0-55,112-167\t0\t\tN/A
GPU4\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tSYS\tSYS\t56-111,168-223\t1\t\tN/A
GPU5\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tSYS\tSYS\t56-111,168-223\t1\t\tN/A
GPU6\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tSYS\tSYS\t56-111,168-223\t1\t\tN/A
GPU7\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tSYS\tSYS\t56-111,168-223\t1\t\tN/A
NIC0\tPXB\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tNODE\t\t\t\t
NIC1\tNODE\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tNODE\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
# Four A100 in two bridged pairs, on four NUMA nodes.
PAIRS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tSYS\tSYS\t0-23\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\t24-47\t1\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\t48-71\t2\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \t72-95\t3\t\tN/A
"""
# Without a GPU NUMA ID, tabs turned into spaces, as in NVIDIA/nccl#933; and the oldest, kubernetes/kubernetes#53497.
SPACES = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV8     NODE    0-47,96-143     0
GPU1    NV8      X      SYS     48-95,144-191   1
"""
OLDEST = """\
        GPU0    GPU1    mlx4_0  CPU Affinity
GPU0     X      PIX     PHB     0-9,20-29
GPU1    PIX      X      PHB     0-9,20-29
"""
# One P4 in a virtual machine: Project-HAMi/HAMi#99.
VIRTUAL = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t\tN/A\t\tN/A\n"


@pytest.mark.parametrize(
    ("text", "links"),
    [
        (EIGHT_H100, dict.fromkeys(range(8), "NV18")),
        (PAIRS, dict.fromkeys(range(4), "SYS+NV12")),
        (SPACES, dict.fromkeys(range(2), "NV8")),
        (OLDEST, dict.fromkeys(range(2), "PIX")),
        (VIRTUAL, {}),
        ("", {}),
    ],
    ids=["eight H100", "pairs of A100", "spaces", "oldest", "virtual", "nothing"],
)
def test_links_of_gpus_are_parsed(text, links):
    assert gpu_links(text) == links
