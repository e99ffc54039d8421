"""The checks are functions of plain values: a machine is described, and the finding is read."""

import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paratune import doctor
from paratune.config.feasibility.words import CODES
from paratune.doctor import checkup, devices, installation, processes, storage
from paratune.doctor.feasible import FINDING_CODES
from paratune.doctor.files import CODES_OF_ERRORS
from paratune.doctor.finding import Finding, MachineFacts

NODE = {
    "hostname": "node7",
    "cpu_model": "AMD EPYC",
    "cpu_flags": ["avx2"],
    "num_logical_cores": 8,
    "num_usable_cores": 8,
    "ram_bytes": 2**35,
    "ram_limit_bytes": None,
    "gpus": [],
    "python": "3.11.7",
}
GPU = {"name": "H200", "memory_bytes": 2**37, "capability": "9.0", "link": None}


@pytest.fixture
def machine(tmp_path):
    return MachineFacts(
        node=NODE,
        versions={"paratune": "0.1.0", "torch": "2.13.0"},
        out_folder=tmp_path / "runs",
        cache_folder=tmp_path / "cache",
        environ={},
        home=tmp_path,
    )


def with_node(machine, **values):
    return replace(machine, node={**machine.node, **values})


def levels(findings):
    return [(finding.code, finding.level) for finding in findings]


# ---- examine


def test_examine_covers_every_check_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    findings = doctor.examine(tmp_path / "runs")
    codes = {finding.code for finding in findings}
    assert {"python", "torch", "cores", "memory", "gpu", "loopback", "run_disk", "cache_disk", "hub"} <= codes
    assert codes & {"bf16_cpu", "bf16_gpu"}
    assert "check" not in codes
    assert list(tmp_path.iterdir()) == []
    for finding in findings:
        assert finding.level == "ok" or finding.why or finding.code == "gpu"


def test_a_check_that_fails_does_not_hide_the_others(machine, monkeypatch):
    def check_broken(_machine):
        raise OSError("sensor gone")

    monkeypatch.setattr(checkup, "CHECKS", (check_broken, lambda _: [Finding("last", "ok", "x")]))
    first, last = checkup.judge(machine)
    assert (first.level, last.code) == ("warning", "last")
    assert "broken could not be checked: OSError: sensor gone" in first.fact


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("warning", 0), ("problem", 1)])
def test_run_fails_only_when_there_is_a_problem(machine, monkeypatch, capsys, level, code):
    monkeypatch.setattr(checkup, "describe_machine", lambda _folder: machine)
    finding = Finding("disk", level, "[bold]a disk[/bold] of " + "x" * 100, "it is why", "do this", "a.yaml:3", "a: b")
    monkeypatch.setattr(checkup, "CHECKS", (lambda _: [finding],))
    assert doctor.run() == code
    text = capsys.readouterr().out
    assert level in text
    assert "[bold]a disk[/bold]" in text  # shown as it is, never read as markup
    assert "it is why" in text
    assert "a.yaml:3: [bold]" in text
    assert "-> a: b   (do this)" in text
    assert doctor.run(json=True) == code
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is (code == 0)
    assert result["findings"] == [vars(finding)]
    assert result["node"]["hostname"] == "node7"


def test_the_page_lists_every_code():
    page = (Path(__file__).parents[3] / "docs" / "howto" / "doctor.md").read_text()
    tables = page.partition("## Findings about a machine")[2]  # before it is the table of the fields of a finding
    documented = set(re.findall(r"^\| `([\w.]+)` \|", tables, re.MULTILINE))
    folder = Path(doctor.__file__).parent
    sources = "".join(path.read_text() for path in folder.glob("*.py"))
    used = set(re.findall(r'(?:Finding\(\s*|code, fact = )"(\w+)"', sources)) | set(CODES_OF_ERRORS.values())
    used |= {"torch", "transformers", "run_disk", "cache_disk"}
    # The file decides on the first, nodes have equal numbers of processes, and `device: cpu` hides GPUs.
    elsewhere = {"strategy.excluded", "ranks.uneven_nodes", "device.is_gpu"}
    used |= {FINDING_CODES.get(code, code) for code in CODES - elsewhere}
    assert documented == used


# ---- installation


@pytest.mark.parametrize(
    ("version", "wanted", "met"),
    [
        ("2.13.0+cpu", ">=2.11", True),
        ("2.11.0+cu130", "<=2.11", True),
        ("2.9.1", ">=2.11", False),
        ("5.0.0", ">=5", True),
        ("5", ">=5.0", True),
        ("6.1", ">=5,<6", False),
        ("0.1.0", "==0.1.0", True),
        ("0.1.1", "==0.1.0", False),
        ("0.1.1", "!=0.1.0", True),
        ("1.0", "", True),
    ],
)
def test_meets(version, wanted, met):
    assert installation.meets(version, wanted) is met


def test_requirements_are_read_from_the_metadata(monkeypatch):
    lines = [
        "torch>=2.11",
        "gt-demo==0.1.0 ; extra == 'demo'",
        'paratune[plots,datasets]; extra == "dev"',
        "x (<3,>=1)",
    ]
    monkeypatch.setattr(installation.metadata, "requires", lambda _package: lines)
    assert installation.requirements() == [
        ("torch", ">=2.11", None),
        ("gt-demo", "==0.1.0", "demo"),
        ("paratune", "", "dev"),
        ("x", "<3,>=1", None),
    ]


def test_packages_that_are_missing_or_old_are_problems(machine, monkeypatch):
    wanted = [("torch", ">=2.11", None), ("transformers", ">=5", None), ("rich", ">=14", None)]
    monkeypatch.setattr(installation, "requirements", lambda: wanted)
    monkeypatch.setattr(installation, "_installed", {"torch": "2.13.0", "transformers": "4.57.0"}.get)
    findings = list(installation.check_packages(machine))
    assert levels(findings) == [("python", "ok"), ("torch", "ok"), ("packages", "problem"), ("packages", "problem")]
    assert findings[2].fact == "transformers 4.57.0 is installed; transformers>=5 is needed"
    assert findings[3].fact == "rich is not installed"
    assert findings[3].line == "pip install 'rich>=14'"


def test_missing_extras_have_a_command_to_install_them(machine, monkeypatch):
    wanted = [("torch", ">=2", None), ("a", "", "plots"), ("b", ">=2", "plots"), ("c", "", "demo"), ("d", "", "dev")]
    monkeypatch.setattr(installation, "requirements", lambda: wanted)
    monkeypatch.setattr(installation, "_installed", {"a": "1", "b": "1", "c": "1"}.get)
    plots, demo = installation.check_extras(machine)
    assert (plots.level, demo.level) == ("note", "ok")
    assert "b>=2" in plots.fact
    assert plots.line == "pip install 'paratune[plots]'"


def test_the_demo_model_needs_its_file(machine, tmp_path, monkeypatch):
    (tmp_path / "demo_model" / "weights").mkdir(parents=True)
    (tmp_path / "demo_model" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installation, "DEMO_MODULE", "demo_model")
    assert levels(installation.check_demo(machine)) == [("demo", "note")]
    (tmp_path / "demo_model" / "weights" / "model.safetensors").touch()
    assert levels(installation.check_demo(machine)) == [("demo", "ok")]
    monkeypatch.setattr(installation, "DEMO_MODULE", "no_such_module_here")
    assert levels(installation.check_demo(machine)) == [("demo", "note")]


def test_the_hub_offline_with_and_without_models(machine, tmp_path):
    (online,) = installation.check_hub(machine)
    assert online.level == "ok"
    assert str(tmp_path / ".cache" / "huggingface" / "hub") in online.fact
    offline = replace(machine, environ={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")})
    (empty,) = installation.check_hub(offline)
    assert empty.level == "note"
    assert "do not work" in empty.why
    (tmp_path / "hf" / "hub" / "models--bert-base-uncased").mkdir(parents=True)
    (filled,) = installation.check_hub(offline)
    assert "1 model" in filled.fact


def test_stale_locks_are_distinguished_from_active_locks(machine, tmp_path):
    locks = [tmp_path / "ext" / "py311_cpu" / name / "lock" for name in ("killed_op", "new_op")]
    for lock in locks:
        lock.parent.mkdir(parents=True)
        lock.touch()
        two_hours_ago = time.time() - 7200
        os.utime(lock, (two_hours_ago, two_hours_ago))
    with locks[1].open():
        killed, in_use = installation.check_extension_locks(
            replace(machine, environ={"TORCH_EXTENSIONS_DIR": str(tmp_path / "ext")})
        )
    assert (killed.level, killed.fact) == ("warning", f"{locks[0]} is 7200 s old, and no process has it open")
    assert killed.line == f"rm {locks[0]}"
    assert (in_use.level, in_use.fact) == ("note", f"{locks[1]} is 7200 s old, and process {os.getpid()} has it open")
    assert list(installation.check_extension_locks(machine)) == []


def test_deepspeed_is_shown_with_its_compiled_parts(machine, tmp_path):
    assert list(installation.check_deepspeed(replace(machine, versions={"deepspeed": None}))) == []
    there = replace(machine, versions={"deepspeed": "0.19.8"}, environ={"TORCH_EXTENSIONS_DIR": str(tmp_path / "ext")})
    (finding,) = installation.check_deepspeed(there)
    assert finding.fact == "DeepSpeed 0.19.8; its cpu_adam is not compiled; only strategy.cpu_adam needs it"
    (tmp_path / "ext" / "cpu_adam").mkdir(parents=True)
    (tmp_path / "ext" / "cpu_adam" / "cpu_adam.so").touch()
    (finding,) = installation.check_deepspeed(there)
    assert finding.fact == "DeepSpeed 0.19.8; its cpu_adam is compiled"


# ---- devices


def test_a_quota_below_the_cores_suggests_omp_num_threads(machine):
    (finding,) = devices.check_cores(with_node(machine, num_usable_cores=2.5))
    assert finding.level == "warning"
    assert "2.5 of 8" in finding.fact
    assert finding.line == "export OMP_NUM_THREADS=2"


@pytest.mark.parametrize(
    ("threads", "usable", "level"),
    [
        ("4", 8, "ok"),
        ("8", 8, "ok"),
        ("16", 8, "warning"),
        ("1", 8, "note"),
        ("1", 1, "ok"),
        ("1", 0.5, "ok"),
        ("many", 8, "warning"),
        ("0", 8, "warning"),
        ("", 8, "warning"),
        ("4,2", 8, "ok"),
        ("4", None, "ok"),
    ],
)
def test_number_of_threads(machine, threads, usable, level):
    described = replace(with_node(machine, num_usable_cores=usable), environ={"OMP_NUM_THREADS": threads})
    finding = list(devices.check_cores(described))[-1]
    assert (finding.code, finding.level) == ("threads", level)
    assert f"OMP_NUM_THREADS={threads}" in finding.fact


def test_a_small_container_has_little_memory(machine):
    (finding,) = devices.check_memory(with_node(machine, ram_limit_bytes=2**30))
    assert finding.level == "warning"
    assert "may use 1 GiB" in finding.fact


def test_small_shared_memory(machine, monkeypatch):
    monkeypatch.setattr(devices.hardware, "describe_storage", lambda _folder: {"total_bytes": 64 * 2**20})
    findings = list(devices.check_shared_memory(machine))
    assert levels(findings) == ([("shared_memory", "warning")] if Path("/dev/shm").is_dir() else [])


def test_gpus_and_their_links(machine):
    fast = {**GPU, "link": "NV18"}
    assert levels(devices.check_gpus(with_node(machine, gpus=[fast, fast]))) == [("gpu", "ok"), ("gpu", "ok")]
    slow = {**GPU, "link": "SYS+NV18"}
    findings = list(devices.check_gpus(with_node(machine, gpus=[fast, slow])))
    assert levels(findings) == [("gpu", "ok"), ("gpu", "ok"), ("gpu_link", "note")]
    assert findings[0].fact == "GPU 0: H200, 128 GiB, capability 9.0, link NV18"


def test_torch_that_cannot_be_imported_is_a_problem(machine):
    described = with_node(machine, gpus=None)
    assert levels(devices.check_torch(described)) == [("torch_import", "problem")]
    assert list(devices.check_gpus(described)) == []
    assert list(processes.check_distributed(described)) == []


def test_a_driver_without_a_gpu_is_a_problem_unless_gpus_are_hidden(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", tmp_path / "version")
    assert levels(devices.check_gpus(machine)) == [("gpu", "note")]
    (tmp_path / "version").touch()
    (finding,) = devices.check_gpus(machine)
    assert finding.level == "problem"
    assert "torch 2.13.0 finds no GPU" in finding.fact
    (hidden,) = devices.check_gpus(replace(machine, environ={"CUDA_VISIBLE_DEVICES": "-1"}))
    assert hidden.level == "note"
    assert "CUDA_VISIBLE_DEVICES=-1" in hidden.fact


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"cpu_flags": ["avx2", "avx512f"]}, ("bf16_cpu", "note")),
        ({"cpu_flags": ["avx2", "avx512_bf16"]}, ("bf16_cpu", "ok")),
        ({"cpu_flags": ["amx_bf16"]}, ("bf16_cpu", "ok")),
        ({"cpu_flags": ["bf16"]}, ("bf16_cpu", "ok")),
        ({"cpu_flags": None}, ("bf16_cpu", "note")),
        ({"gpus": [GPU]}, ("bf16_gpu", "ok")),
        ({"gpus": [GPU, {**GPU, "name": "T4", "capability": "7.5"}]}, ("bf16_gpu", "note")),
        ({"gpus": [{**GPU, "capability": "10.0"}]}, ("bf16_gpu", "ok")),
    ],
)
def test_which_precision_is_fast(machine, node, expected):
    assert levels(devices.check_precision(with_node(machine, **node))) == [expected]


# ---- processes


def test_several_gpus_need_nccl(machine, monkeypatch):
    import torch.distributed as dist

    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert levels(processes.check_distributed(with_node(machine, gpus=[GPU, GPU])))[-1] == ("nccl", "problem")
    assert levels(processes.check_distributed(with_node(machine, gpus=[GPU])))[-1] == ("nccl", "note")
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert levels(processes.check_distributed(machine)) == [("gloo", "problem")]


@pytest.mark.parametrize(
    ("addresses", "level", "message"),
    [
        ([], "warning", "node7, does not resolve"),
        (["192.0.2.1"], "warning", "192.0.2.1, which is not this machine"),  # RFC 5737: never anyone's own
        (["192.0.2.1", "127.0.0.1"], "ok", "node7"),
    ],
)
def test_the_host_name_must_resolve_to_this_machine(machine, monkeypatch, addresses, level, message):
    monkeypatch.setattr(processes, "resolve", lambda _name: addresses)
    (finding,) = processes.check_hostname(machine)
    assert finding.level == level
    assert message in finding.fact


def test_resolving_a_name_has_a_timeout(monkeypatch):
    is_over = threading.Event()

    def slow(*_arguments):
        is_over.wait()  # were it waited for, this test would not end
        return [(0, 0, 0, "", ("10.0.0.7", 0))]

    monkeypatch.setattr(processes.socket, "getaddrinfo", slow)
    assert processes.resolve("node7", timeout_s=0.05) == []
    is_over.set()


def test_a_name_that_does_not_resolve_has_no_address(monkeypatch):
    def fail(*_arguments):
        raise processes.socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(processes.socket, "getaddrinfo", fail)
    assert processes.resolve("node7") == []


def test_a_blocked_loopback_is_a_problem(machine, monkeypatch):
    assert levels(processes.check_loopback(machine)) == [("loopback", "ok")]

    def refuse(*_arguments, **_options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(processes.socket, "create_server", refuse)
    assert levels(processes.check_loopback(machine)) == [("loopback", "problem")]


# ---- storage

ROOMY = {"filesystem": "ext4", "kind": "ssd", "free_bytes": 2**40, "total_bytes": 2**41}


@pytest.mark.parametrize(
    ("code", "facts", "bytes_per_s", "level", "message"),
    [
        ("run_disk", {}, 500e6, "ok", "1 TiB free on ssd, writes 500 MB/s"),
        ("run_disk", {"free_bytes": 2**29}, 500e6, "problem", "512 MiB free"),
        ("run_disk", {"free_bytes": 2**32}, 500e6, "warning", "4 GiB free"),
        ("run_disk", {"kind": "memory"}, 500e6, "warning", "on memory"),
        ("run_disk", {"kind": None}, 500e6, "ok", "on ext4"),
        ("run_disk", {}, 5e6, "warning", "writes 5 MB/s"),
        ("run_disk", {}, "Read-only file system", "problem", "cannot be written: Read-only file system"),
        ("cache_disk", {"free_bytes": 2**32}, 5e6, "ok", "4 GiB free"),
        ("cache_disk", {"free_bytes": 2**29}, 500e6, "problem", "512 MiB free"),
        ("run_disk", {"free_bytes": None}, 500e6, "ok", "n/a free"),
    ],
)
def test_disks(code, facts, bytes_per_s, level, message):
    finding = storage.judge_disk(code, Path("/data/x"), {**ROOMY, **facts}, bytes_per_s)
    assert (finding.code, finding.level) == (code, level)
    assert message in finding.fact
    assert "/data/x" in finding.fact
    assert bool(finding.remedy) == (level != "ok")


def test_a_slow_disk_gives_the_time_of_a_checkpoint():
    # 1.3e9 bytes at 5e6 a second.
    assert "260 s" in storage.judge_disk("run_disk", Path("x"), ROOMY, 5e6).why


def test_the_disk_probe_leaves_no_file_and_returns_its_error(tmp_path, monkeypatch):
    assert storage.probe_write(tmp_path / "not" / "there", 2**20) > 0
    assert list(tmp_path.iterdir()) == []

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert storage.probe_write(tmp_path, 2**20) == "No space left on device"
