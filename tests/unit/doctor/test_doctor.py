"""The checks are functions of plain values: a machine is described, and the finding is read."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from error_codes import TEXTS, finding_codes

from paratune.doctor import checkup
from paratune.doctor import machine as checks
from paratune.doctor.facts import Finding, MachineFacts

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
    )


def with_node(machine, **values):
    return replace(machine, node={**machine.node, **values})


def pretend_installed(monkeypatch, requires, versions):
    """Pretend that paratune has these requirements, and that only these packages are installed."""

    def version(name):
        if name not in versions:
            raise checks.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(checks.metadata, "requires", lambda _package: requires)
    monkeypatch.setattr(checks.metadata, "version", version)


def levels(findings):
    return [(finding.code, finding.level) for finding in findings]


# ---- checkup


def test_the_machine_is_checked_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    described = checkup.describe_machine(tmp_path / "runs")
    findings = checkup.judge(checkup.CHECKS + checkup.NODE_CHECKS, described)
    assert "check" not in {finding.code for finding in findings}
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_fails_does_not_hide_the_others(machine):
    def check_broken(_machine):
        raise OSError("sensor gone")

    first, last = checkup.judge((check_broken, lambda _: [Finding("last", "note", "x")]), machine)
    assert (first.level, last.code) == ("warning", "last")
    assert "broken could not be checked: OSError: sensor gone" in first.fact


@pytest.mark.parametrize(("level", "code"), [("note", 0), ("warning", 0), ("problem", 1)])
def test_only_a_problem_fails(machine, capsys, level, code):
    finding = Finding("disk", level, "[bold]a disk[/bold] of " + "x" * 100, "it is why", "do this", "a.yaml:3", "a: b")
    assert checkup.print_findings([finding], machine, None, all_=True, as_json=False) == code
    text = capsys.readouterr().out
    assert level in text
    assert "a.yaml:3: [bold]a disk[/bold]" in text  # shown as it is, never read as markup
    assert "it is why" in text.replace("\n", " ")
    assert "-> a: b   (do this)" in " ".join(text.splitlines())
    assert checkup.print_findings([finding], machine, None, all_=True, as_json=True) == code
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is (code == 0)
    assert result["findings"] == [vars(finding)]
    assert result["node"]["hostname"] == "node7"


def test_three_lines_without_a_problem(machine, monkeypatch, capsys):
    """Also where no extra is installed."""
    pretend_installed(monkeypatch, ['optuna>=4.2; extra == "search"'], {})
    assert checkup.print_findings([*checks.check_extras()], machine, None, all_=True, as_json=False) == 0
    first, *_ = lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 3
    assert first == "no problems: torch 2.13.0, 8 cores, 32 GiB of memory, no GPU"


def test_many_findings_are_one_screen(machine, capsys):
    findings = [Finding(f"disk-{number}", "warning", f"disk {number} is full") for number in range(60)]
    checkup.print_findings(findings, machine, None, all_=False, as_json=False)
    first, *_, last = lines = capsys.readouterr().out.splitlines()
    assert (len(lines), last) == (40, "... and 22 more lines: --all")  # of 61, 39 are shown
    assert first.startswith("60 warnings")
    checkup.print_findings(findings, machine, None, all_=True, as_json=False)
    assert len(capsys.readouterr().out.splitlines()) == 61


@pytest.mark.parametrize(
    ("gpus", "shown"), [(None, "GPUs n/a"), ([GPU, GPU, {**GPU, "name": "T4"}], "2 x H200, 1 x T4")]
)
def test_the_gpus_of_the_machine_are_shown(machine, capsys, gpus, shown):
    checkup.print_findings([], with_node(machine, gpus=gpus), None, all_=True, as_json=False)
    assert capsys.readouterr().out.replace("\n", " ").rstrip().endswith(f", {shown}")


def test_each_finding_of_the_source_is_described_and_no_other():
    described = [code for texts in TEXTS["findings"].values() for code in texts]
    assert sorted(described) == sorted(finding_codes())


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
    assert checks.meets(version, wanted) is met


def test_requirements_are_read_from_the_metadata(monkeypatch):
    lines = [
        "torch>=2.11",
        "numpy>=2",
        "gt-demo==0.1.0 ; extra == 'demo'",
        'paratune[plots,hub]; extra == "dev"',
        "x (<3,>=1)",
    ]
    pretend_installed(monkeypatch, lines, {"numpy": "2.0", "x": "3.0"})
    assert list(checks.unmet_requirements()) == [
        ("torch", None, ">=2.11", None),
        ("gt-demo", None, "==0.1.0", "demo"),
        ("paratune", None, "", "dev"),
        ("x", "3.0", "<3,>=1", None),
    ]


def test_packages_that_are_missing_or_old_are_problems(machine, monkeypatch):
    wanted = ["torch>=2.11", "transformers>=5", "rich>=14", 'optuna>=4; extra == "search"']
    pretend_installed(monkeypatch, wanted, {"torch": "2.13.0", "transformers": "4.57.0"})
    findings = list(checks.check_packages(machine))
    assert levels(findings) == [("packages", "problem"), ("packages", "problem")]
    assert findings[0].fact == "transformers 4.57.0 is installed; >=5 is needed"
    assert findings[1].fact == "rich is not installed"
    assert findings[1].line == "pip install 'rich>=14'"


def test_missing_extras_are_one_note(monkeypatch):
    wanted = [
        *("torch>=2", "a; extra == 'plots'", "b>=2; extra == 'plots'", "e; extra == 'peft'"),
        *("c; extra == 'demo'", "d; extra == 'dev'"),
    ]
    pretend_installed(monkeypatch, wanted, {"a": "1", "b": "1", "c": "1"})
    (note,) = checks.check_extras()
    assert (note.level, note.fact) == ("note", "missing extras: plots, peft")
    pretend_installed(monkeypatch, wanted[-2:], {"c": "1"})
    assert list(checks.check_extras()) == []


# ---- devices


@pytest.mark.parametrize(
    ("threads", "usable", "shown"),
    [
        (None, 8, None),
        (None, 2.5, "2.5 of 8 cores"),
        (None, None, None),
        ("8", 8, None),
        ("16", 8, "OMP_NUM_THREADS=16, and 8 cores"),
        ("1", 0.5, None),
        ("4,2", 8, None),
        ("4", 2.5, "OMP_NUM_THREADS=4, and 2.5 cores"),
        ("2", 2.5, None),
    ],
)
def test_more_threads_than_cores(machine, threads, usable, shown):
    environ = {} if threads is None else {"OMP_NUM_THREADS": threads}
    described = replace(with_node(machine, num_usable_cores=usable), environ=environ, num_affine_cores=8)
    findings = list(checks.check_cores(described))
    assert levels(findings) == ([] if shown is None else [("cores", "warning")])
    if shown is not None:
        assert shown in findings[0].fact
        assert findings[0].line == f"export OMP_NUM_THREADS={int(usable)}"


@pytest.mark.parametrize(
    ("values", "num_notes"),
    [
        ({"cpu_flags": ["avx2", "amx_bf16"]}, 1),
        ({"cpu_flags": ["avx2", "avx512_bf16"]}, 0),
        ({"cpu_flags": None}, 0),
        ({"cpu_flags": ["amx_bf16"], "gpus": [GPU]}, 0),
    ],
)
def test_units_for_bf16_of_a_cpu_are_a_note(machine, values, num_notes):
    findings = list(checks.check_cores(with_node(machine, **values)))
    assert levels(findings) == [("amx_bf16", "note")] * num_notes
    assert all("--set precision=bf16" in finding.fact for finding in findings)


def test_a_small_container_has_little_memory(machine):
    (finding,) = checks.check_memory(with_node(machine, ram_limit_bytes=2**30))
    assert finding.level == "warning"
    assert "1 GiB" in finding.fact


def test_small_shared_memory(machine, monkeypatch):
    monkeypatch.setattr(checks.hardware, "describe_storage", lambda _folder: {"total_bytes": 64 * 2**20})
    findings = list(checks.check_memory(machine))
    assert levels(findings) == ([("shared_memory", "warning")] if Path("/dev/shm").is_dir() else [])


def test_torch_that_cannot_be_imported_is_a_problem(machine):
    described = with_node(machine, gpus=None)
    assert levels(checks.check_torch(described)) == [("torch_import", "problem")]
    assert list(checks.check_gpus(described)) == []


def test_a_driver_without_a_gpu_is_a_problem_unless_gpus_are_hidden(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "NVIDIA_DRIVER", tmp_path / "version")
    assert list(checks.check_gpus(machine)) == []
    (tmp_path / "version").touch()
    (finding,) = checks.check_gpus(machine)
    assert finding.level == "problem"
    assert "torch 2.13.0 finds no GPU" in finding.fact
    (hidden,) = checks.check_gpus(replace(machine, environ={"CUDA_VISIBLE_DEVICES": "-1"}))
    assert hidden.level == "note"
    assert "CUDA_VISIBLE_DEVICES=-1" in hidden.fact


# ---- processes


def test_several_gpus_need_nccl(machine, monkeypatch):
    import torch.distributed as dist

    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert levels(checks.check_torch(with_node(machine, gpus=[GPU, GPU]))) == [("nccl", "problem")]
    assert levels(checks.check_torch(with_node(machine, gpus=[GPU]))) == []
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert levels(checks.check_torch(machine)) == [("gloo", "problem")]


# ---- storage

ROOMY = {"filesystem": "ext4", "kind": "ssd", "free_bytes": 2**40, "total_bytes": 2**41}


@pytest.mark.parametrize(
    ("code", "facts", "problem", "level", "message"),
    [
        ("run_disk", {}, None, None, ""),
        ("run_disk", {"free_bytes": 2**29}, None, "problem", "512 MiB free"),
        ("run_disk", {"free_bytes": 2**32}, None, "warning", "4 GiB free"),
        ("run_disk", {"kind": "memory"}, None, "warning", "on memory"),
        ("run_disk", {"kind": None, "free_bytes": 2**32}, None, "warning", "on ext4"),
        ("run_disk", {}, "Read-only file system", "problem", "cannot be written: Read-only file system"),
        ("cache_disk", {"free_bytes": 2**32}, None, None, ""),
        ("cache_disk", {"free_bytes": 2**29}, None, "problem", "512 MiB free"),
        ("run_disk", {"free_bytes": None, "kind": "memory"}, None, "warning", "n/a free"),
    ],
)
def test_disks(machine, monkeypatch, code, facts, problem, level, message):
    """The other folder has no problem."""
    is_judged = lambda folder: folder == Path("/data/x")  # noqa: E731
    monkeypatch.setattr(
        checks.hardware, "describe_storage", lambda path: {**ROOMY, **(facts if is_judged(path) else {})}
    )
    monkeypatch.setattr(checks, "write_problem", lambda path: problem if is_judged(path) else None)
    folder = {"run_disk": "out_folder", "cache_disk": "cache_folder"}[code]
    findings = list(checks.check_disks(replace(machine, **{folder: Path("/data/x")})))
    assert levels(findings) == ([] if level is None else [(code, level)])
    for finding in findings:
        assert message in finding.fact
        assert "/data/x" in finding.fact
        assert finding.remedy


def test_the_disk_probe_leaves_no_file_and_returns_its_error(tmp_path, monkeypatch):
    assert checks.write_problem(tmp_path / "not" / "there") is None
    assert list(tmp_path.iterdir()) == []

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert checks.write_problem(tmp_path) == "No space left on device"
