"""Healthy set-ups, and our own configurations with files that fit them: the doctor raises no alarm."""

from pathlib import Path

import pytest
from broken_setups.changes import edit_json, slurm, with_environ, with_probes
from broken_setups.data import only_train
from broken_setups.model import other_tokenizer
from broken_setups.options import unfinished_run
from set_ups import T4, in_slurm, is_run, make_files, on_site, rows, with_gpus
from tiny import tiny_model

from paratune.config.load import load_config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits

OLD_TORCH = {"torch_cuda": "12.9", "torch_archs": ("sm_80", "sm_90")}


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
    "a task a GPU, each of which sees its own": slurm(
        SLURM_NTASKS_PER_NODE="4",
        SLURM_NTASKS="4",
        SLURM_STEP_NUM_TASKS="4",
        SLURM_GPUS_PER_TASK="1",
        CUDA_VISIBLE_DEVICES="0",
    ),
    "a build for ROCm": with_probes(gpus=2, torch_archs=("gfx90a", "gfx942"), torch_cuda=None, driver=None),
    "a K80, for which no torch has kernels": with_probes(driver="470.1", driver_cuda="11.4", capabilities=("3.7",)),
    "a driver of another series for the same CUDA": with_probes(
        gpus=1, driver="570.1", driver_cuda="12.8", **OLD_TORCH
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_set_up_raises_no_alarm(set_up, name):
    HEALTHY[name](set_up)
    assert [(finding.code, finding.fact) for finding in set_up.alarms()] == []


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
    overrides = [f"model.name={set_up.model}", "model.tokenizer=null", "model.overrides={}", "model.revision=null"]
    assert [(finding.code, finding.fact) for finding in set_up.alarms_of(path, overrides)] == []


def test_resources_of_the_login_node_do_not_matter_for_a_site(set_up, monkeypatch):
    """A login node: no GPU, little memory, and limits on cores."""
    on_site(set_up)
    set_up.machine_checks = True
    set_up.node |= {"num_usable_cores": 2.0, "ram_limit_bytes": 2**30}
    own = {"run_disk", "cache_disk", "packages"}  # those of this machine
    assert [finding.code for finding in set_up.alarms() if finding.code not in own] == []
    set_up.site = None
    set_up.nproc = 2
    assert {"cores", "memory"} <= {finding.code for finding in set_up.alarms()}
