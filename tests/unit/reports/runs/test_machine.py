"""Hardware, software and settings in words."""

from make_run import GIB, make_run

from paratune.reports.runs.machine import machine_kinds, software_facts
from paratune.reports.runs.read import read_runs
from paratune.reports.runs.sameness import all_differences, setting_text
from paratune.reports.systems.tables import hardware_facts


def _run(tmp_path, **changes):
    return read_runs([make_run(tmp_path / "a", run_changes=changes)]).runs[0]


def test_hardware_of_all_nodes_and_sessions_has_each_value_once(tmp_path):
    gpu = {"name": "Example GPU", "memory_bytes": 80 * GIB, "link": "NVLink"}
    storage = {"filesystem": "ext4", "kind": None, "free_bytes": 1, "total_bytes": 2 * GIB}
    node = {"hostname": "a", "gpus": [gpu, gpu], "storage": storage, "ram_bytes": 16 * GIB, "gpu_driver": None}
    node["virtualisation"] = {"hypervisor": "kvm", "container": None}
    facts = hardware_facts(_run(tmp_path, hardware=[node, {**node, "hostname": "b"}]).sessions)
    assert {name: text for name, text in facts.items() if text != "n/a"} == {
        "GPU model": "Example GPU",
        "GPUs per node": "2",
        "GPU memory": "80 GiB",
        "Link of GPUs": "NVLink",
        "Storage of the run": "filesystem ext4, total 2 GiB",
        "Virtualisation": "hypervisor kvm",
        "RAM": "16 GiB",
        "Nodes": "2",
        "Hosts": "a; b",
    }


def test_software_leaves_out_packages_that_are_not_installed(tmp_path):
    changes = {"versions": {"torch": "2.13.0", "deepspeed": None}, "code": {"git_commit": "abc", "git_dirty": True}}
    assert software_facts(_run(tmp_path, **changes)) == {"torch": "2.13.0", "git commit": "abc with changes"}


def test_setting_text_of_null_and_of_an_absent_setting_differ(tmp_path):
    changes = {"config.strategy": {"kind": "ddp", "bucket_cap_mb": None}}
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", run_changes=changes)
    found = {one.key: one for one in all_differences(read_runs([first, second]).runs)}
    texts = [setting_text(found["strategy.bucket_cap_mb"], run) for run in "ab"]
    assert texts == ["no such setting", "null"]


def test_libraries_of_the_gpu_are_shown_also_where_unknown(tmp_path):
    changes = {"versions": {"torch": "2.13.0", "cuda": "13.0", "cudnn": "9.13.0", "nccl": None}, "device": "cuda"}
    facts = software_facts(_run(tmp_path, **changes))
    assert facts == {"torch": "2.13.0", "CUDA": "13.0", "cuDNN": "9.13.0", "NCCL": "n/a"}


def test_driver_virtualisation_and_storage_make_no_other_machine(tmp_path):
    node = {"cpu_model": "EPYC", "ram_bytes": GIB, "gpus": [{"name": "A100", "memory_bytes": GIB, "link": None}]}
    more = {
        "virtualisation": {"hypervisor": "kvm"},
        "data_storage": {"kind": "nvme"},
        "storage": {"kind": "hdd"},
        "gpu_driver": "550.54.15",
    }
    folders = [
        make_run(tmp_path / name, run_changes={"hardware": [facts]})
        for name, facts in (("a", node), ("b", {**node, **more}))
    ]
    assert len(set(machine_kinds(read_runs(folders).runs))) == 1


def test_a_run_with_some_gpus_of_a_node_misses_some_links(tmp_path):
    # Pairs of an A100 PCIe node are bridged, and pairs reach each other by the processors.
    def kinds(*links):
        folders = []
        for number, of_gpus in enumerate(links):
            gpus = [{"name": "A100", "memory_bytes": GIB, "link": link} for link in of_gpus]
            changes = {"hardware": [{"cpu_model": "EPYC", "ram_bytes": GIB, "gpus": gpus}]}
            folders.append(make_run(tmp_path / f"{len(links)}-{number}", run_changes=changes))
        return len(set(machine_kinds(read_runs(folders).runs)))

    assert kinds([None], ["NV12"] * 2, ["SYS+NV12"] * 4) == 1
    assert kinds(["NV12"] * 2, ["PHB"] * 2) == 2


def test_unknown_hardware_is_not_none(tmp_path):
    facts = hardware_facts([_run(tmp_path, hardware=[])])
    assert {facts[name] for name in ("GPU model", "GPUs per node", "CPU", "RAM", "Nodes", "Hosts")} == {"n/a"}
    facts = hardware_facts([_run(tmp_path / "other", hardware=[{"cpu_model": "EPYC"}])])
    assert (facts["GPU model"], facts["GPUs per node"], facts["CPU"], facts["Nodes"]) == ("n/a", "n/a", "EPYC", "1")
