"""Healthy set-ups, and our own configurations with files that fit them: the doctor raises no alarm."""

from pathlib import Path

import pytest
from broken_setups.changes import edit_json, slurm, with_environ, with_probes
from broken_setups.data import only_train
from broken_setups.machine import MIXED_TOPOLOGY, whole_compilation
from broken_setups.model import other_tokenizer
from broken_setups.options import unfinished_run
from set_ups import T4, in_slurm, is_run, make_files, on_site, rows, with_gpus
from tiny import tiny_model

from paratune.config.load import load_config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.doctor import processes

NVLINK_TOPOLOGY = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\t0-31\t0
GPU1\tNV18\t X \t0-31\t0
"""
# Both cells are empty in some virtual machines.
VIRTUAL_TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\t\t\t\tN/A
GPU1\tPHB\t X \t\t\t\tN/A
"""
RANK_0_OF_TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "TORCHELASTIC_RUN_ID": "4711",
}
OLD_TORCH = {"torch_cuda": "12.9", "torch_archs": ("sm_80", "sm_90")}
SRUN_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
paratune doctor run.yaml
srun bash -c 'torchrun --node_rank=$SLURM_NODEID --nnodes=2 --no-python paratune train run.yaml'
srun bash -c "torchrun --node_rank=\\$SLURM_NODEID --nnodes=2 --no-python paratune train run.yaml"
"""


def in_batch_step(set_up):
    in_slurm(set_up, nodes=2)
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        del set_up.environ[name]


HEALTHY = {
    "one process on a processor": lambda s: None,
    "two processes on a processor": lambda s: (s.set("strategy.kind", "ddp"), setattr(s, "nproc", 2)),
    "one GPU in bf16": lambda s: (with_gpus(s, 1), s.set("precision", "bf16")),
    "four GPUs with ZeRO-3": lambda s: (with_gpus(s, 4), s.set("strategy.kind", "zero3")),
    "a pipeline of two": lambda s: (with_gpus(s, 2), s.set("strategy", {"kind": "pipeline", "stages": 2})),
    "two nodes of Slurm": lambda s: in_slurm(s, nodes=2),
    "a task a GPU": slurm(SLURM_NTASKS_PER_NODE="4", SLURM_NTASKS="4"),
    "under torchrun": with_environ(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="31000"
    ),
    "a cut validation set": lambda s: (only_train(s), s.set("data.split", {"validation": 0.2})),
    "numbers as targets": lambda s: (
        only_train(s),
        s.config.update(task={"kind": "regression"}),
        s.csv("train.csv", [{**row, "label": n * 37 % 80 / 8} for n, row in enumerate(rows(80))]),
    ),
    "from scratch": lambda s: s.set("model.from_scratch", True),
    "from scratch with another tokenizer": lambda s: (
        other_tokenizer(s),
        s.set("model.from_scratch", True),
        s.set("model.tokenizer", str(s.model)),
    ),
    "loaders": lambda s: s.set("data.num_workers", 2),
    "fp16 with a BERT": lambda s: (with_gpus(s, 1, T4), s.set("precision", "fp16")),
    "two nodes of a site": on_site,
    "a site without a network": lambda s: on_site(s, no_network=True),
    "an unfinished run on a site": lambda s: (unfinished_run(s), on_site(s)),  # paratune launch resumes it
    "NVLink between all": with_probes(gpus=2, topology=NVLINK_TOPOLOGY),
    "a task a GPU, each of which sees its own": slurm(
        SLURM_NTASKS_PER_NODE="4",
        SLURM_NTASKS="4",
        SLURM_STEP_NUM_TASKS="4",
        SLURM_GPUS_PER_TASK="1",
        CUDA_VISIBLE_DEVICES="0",
    ),
    "torchrun has the port already": lambda s: (
        with_environ(
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="2",
            LOCAL_WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="31000",
            TORCHELASTIC_RUN_ID="abc",
        )(s),
        s.probes.update(port_is_free=lambda _: False),
    ),
    "a port of the first node, seen from another": lambda s: (
        with_environ(nodes=2, MASTER_ADDR="node1", MASTER_PORT="31000")(s),
        s.probes.update(port_is_free=lambda _: False, resolve=lambda _: ["192.0.2.1"]),  # RFC 5737: nobody's own
    ),
    "torchrun that orders nodes in its own way": lambda s: (
        in_slurm(s, nodes=2, gpus=1, SLURM_PROCID="1", SLURM_NODEID="1", **RANK_0_OF_TORCHRUN),
        s.set("strategy.kind", "ddp"),
    ),
    "in a batch script, before srun": lambda s: (in_batch_step(s), s.probes.update(batch_script=SRUN_SCRIPT)),
    "in a batch script that calls one with srun": lambda s: (
        in_batch_step(s),
        s.probes.update(
            batch_script="#!/bin/bash\nbash b.sh\n", called_scripts={"b.sh": "srun paratune train run.yaml"}
        ),
    ),
    "in a batch script that calls what cannot be read": lambda s: (
        in_batch_step(s),
        s.probes.update(batch_script="#!/bin/bash\nbash $DIR/b.sh\n"),
    ),
    "in a shell of salloc": lambda s: in_batch_step(s),
    "a build for ROCm": with_probes(gpus=2, torch_archs=("gfx90a", "gfx942"), torch_cuda=None, driver=None),
    "a K80, for which no torch has kernels": with_probes(driver="470.1", driver_cuda="11.4", capabilities=("3.7",)),
    "a site that loads its compilers": lambda s: (
        on_site(s, brings_software=True),
        s.set("strategy", {"kind": "deepspeed", "offload_optimizer": True, "cpu_adam": True}),
        s.probes.update(tools={"srun": "/usr/bin/srun"}),
    ),
    "an interface that only the nodes have": lambda s: (on_site(s), s.environ.update(NCCL_SOCKET_IFNAME="hsn0")),
    "processes on processors in a container": lambda s: (
        s.set("strategy.kind", "ddp"),
        setattr(s, "nproc", 2),
        s.probes.update(shm_bytes=64 * 2**20),
    ),
    "two GPUs of a machine without NVLink, in a virtual machine": with_probes(gpus=2, topology=VIRTUAL_TOPOLOGY),
    "a driver of another series for the same CUDA": with_probes(
        gpus=1, driver="570.1", driver_cuda="12.8", **OLD_TORCH
    ),
    "GPUs chosen by their UUIDs": lambda s: (
        with_probes(gpus=2, topology=MIXED_TOPOLOGY)(s),
        s.environ.update(CUDA_VISIBLE_DEVICES="GPU-1d3c8f,GPU-55aa01"),
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_set_up_raises_no_alarm(set_up, name):
    HEALTHY[name](set_up)
    assert [(finding.code, finding.fact) for finding in set_up.alarms()] == []


def test_intact_libraries_of_torch_compile_raise_no_alarm(set_up):
    whole_compilation(set_up)
    codes = [finding.code for finding in set_up.findings()]  # other alarms may be this machine's own
    assert "extras" in codes
    assert "compiled_torn" not in codes


ROOT = Path(__file__).parents[3]
RUNS = [path for path in sorted((ROOT / "configs").rglob("*.yaml")) if is_run(path)]


def test_there_are_configurations_to_look_at():
    assert len(RUNS) >= 25


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_our_own_configurations_raise_no_alarm(set_up, path, monkeypatch):
    """With files that hold what they name, a model that is there, and the machine that they are for."""
    monkeypatch.chdir(set_up.folder)
    tiny_model(set_up.model, max_length=512)
    edit_json(set_up.model / "config.json", num_hidden_layers=12)  # stages of a pipeline are held to it
    loaded = load_config(path)
    make_files(loaded.config, set_up.folder)
    strategy = loaded.config.strategy
    traits = strategy_traits(strategy.kind, strategy_options(strategy))
    if (
        loaded.config.precision in ("bf16", "fp16", "tf32")
        or loaded.config.device == "cuda"
        or traits.needs_accelerator
    ):
        with_gpus(set_up, max(2, traits.min_world_size) if strategy.kind != "single" else 1)
    else:
        set_up.nproc = traits.min_world_size
    set_up.versions["deepspeed"] = "0.19.8"
    overrides = [f"model.name={set_up.model}", "model.tokenizer=null", "model.overrides={}", "model.revision=null"]
    assert [(finding.code, finding.fact) for finding in set_up.alarms_of(path, overrides)] == []


def test_resources_of_the_login_node_do_not_matter_for_a_site(set_up, monkeypatch):
    """A login node: no GPU, little memory, a host name that does not resolve, and limits on cores."""
    on_site(set_up)
    set_up.machine_checks = True
    set_up.node |= {"num_usable_cores": 2.0, "ram_limit_bytes": 2**30, "hostname": "login7.invalid"}
    own = {"run_disk", "cache_disk", "packages", "extension_lock", "compiled_torn"}  # those of this machine
    assert [finding.code for finding in set_up.alarms() if finding.code not in own] == []
    set_up.site = None
    set_up.nproc = 2
    assert {"cores", "memory", "hostname"} <= {finding.code for finding in set_up.alarms()}


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (None, None, None),
        ("train.deterministic", False, "train.deterministic: true"),
        ("batch.layout", "padded", ""),
        ("batch.layout", "bucketed", ""),
        ("batch.layout", "packed", None),
    ],
)
def test_gradients_of_a_gpu_that_may_differ_are_noted(set_up, key, value, line):
    with_gpus(set_up, 1)
    if key is not None:
        set_up.set(key, value)
    result = [finding for finding in set_up.findings() if finding.code == "order_of_sums"]
    assert [(finding.level, finding.line) for finding in result] == ([] if line is None else [("note", line)])


def test_fp16_on_gpus_without_bf16_is_no_alarm_of_the_machine(set_up):
    with_gpus(set_up, 1, T4).set("precision", "fp16")
    set_up.machine_checks = True
    assert "bf16_gpu" not in [finding.code for finding in set_up.alarms()]


def test_a_run_of_one_process_needs_no_loopback_and_no_name(set_up, monkeypatch):
    monkeypatch.setattr(processes, "loopback_works", lambda: False)
    set_up.node["hostname"] = "node7.invalid"
    set_up.machine_checks = True
    codes = {"loopback", "hostname"}
    assert codes & {finding.code for finding in set_up.alarms()} == set()
    set_up.set("strategy.kind", "ddp")
    set_up.nproc = 2
    assert codes & {finding.code for finding in set_up.alarms()} == codes
