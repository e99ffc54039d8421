"""Set-ups with a wrong start: processes, GPUs, the site."""

from broken_setups.changes import slurm, with_environ
from set_ups import Case, on_site, with_gpus


def pipeline_of_three(set_up):
    with_gpus(set_up, 3)
    set_up.set("strategy", {"kind": "pipeline", "stages": 2})


def odd_batch(set_up):
    with_gpus(set_up, 3)
    set_up.set("batch.global", 32)


def two_processes_of_single(set_up):
    set_up.nproc = 2


def cuda_on_cpu(set_up):
    set_up.set("device", "cuda")


def under_torchrun(set_up):
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    with_environ(TORCHELASTIC_RUN_ID="abc", **environ)(set_up)
    set_up.nproc = None


CASES = [
    Case("world_size", "transformers#37129: a pipeline of two stages on three ranks", pipeline_of_three),
    Case(
        "world_size",
        "two processes that both trained the whole run",
        two_processes_of_single,
        line="strategy.kind: ddp",
    ),
    Case("batch_share", "Lightning#3953: a batch that three GPUs do not divide", odd_batch, line="batch.global: 33"),
    Case("no_gpu", "No CUDA GPUs are available on the login node's configuration", cuda_on_cpu, line="device: auto"),
    Case(
        "tasks_over_gpus",
        "NCCL: Duplicate GPU detected: --ntasks-per-node=8 on 4 GPUs",
        slurm(SLURM_NTASKS_PER_NODE="8", SLURM_NTASKS="8"),
        line="#SBATCH --ntasks-per-node=4",
    ),
    Case(
        "gpus_idle",
        "mila-docs#414: three of four GPUs were idle",
        slurm(SLURM_NTASKS_PER_NODE="2", SLURM_NTASKS="2"),
        line="#SBATCH --ntasks-per-node=4",
    ),
    Case(
        "tasks_over_gpus",
        "NCCL: Duplicate GPU detected: torchrun --nproc-per-node=4 on 2 GPUs",
        under_torchrun,
        after=lambda s: s.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2"),
    ),
    Case(
        "visible_too_few",
        "invalid device ordinal: CUDA_VISIBLE_DEVICES left over from an earlier test",
        with_environ(CUDA_VISIBLE_DEVICES="0"),
    ),
    Case(
        "visible_twice",
        "CUDA_VISIBLE_DEVICES=0,0 shows no GPU",
        with_environ(CUDA_VISIBLE_DEVICES="0,0"),
    ),
    Case(
        "site_folder",
        "the job failed in its first second: no such virtual environment",
        lambda s: on_site(s, missing_folders=(("venv", s.folder / "venv", ""),)),
        after=on_site,
    ),
]
