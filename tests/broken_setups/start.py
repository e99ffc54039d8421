"""Set-ups with a wrong start: processes, GPUs, srun, ranks, addresses, ports, the site."""

from broken_setups.changes import slurm, with_environ, with_tool
from set_ups import Case, in_slurm, on_site, with_gpus


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


def srun_forgotten(set_up):
    in_slurm(set_up, nodes=2)
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        del set_up.environ[name]
    set_up.probes["batch_script"] = "#!/bin/bash\n#SBATCH --nodes=2\n# no srun here\nparatune train run.yaml\n"


def srun_forgotten_below(set_up):
    srun_forgotten(set_up)
    set_up.probes["batch_script"] = "#!/bin/bash\n#SBATCH --nodes=2\nbash train.sh\n"
    set_up.probes["called_scripts"] = {"train.sh": "cd run\npython -m paratune train run.yaml\n"}


def under_torchrun(set_up):
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    with_environ(TORCHELASTIC_RUN_ID="abc", **environ)(set_up)
    set_up.nproc = None


def no_srun(set_up):
    in_slurm(set_up, nodes=2)
    set_up.probes["tools"] = {name: path for name, path in set_up.probes["tools"].items() if name != "srun"}


def taken_port(set_up):
    with_environ(MASTER_ADDR="127.0.0.1", MASTER_PORT="29777")(set_up)
    set_up.probes["port_is_free"] = lambda port: port != 29777


def wrong_site(kind, option, line):
    def change(set_up):
        on_site(set_up, unfit=((kind, option, "it is not there", line),))

    return change


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
        "srun_forgotten",
        "accelerate#2816: I forgot srun",
        srun_forgotten,
        level="problem",
    ),
    Case(
        "srun_forgotten",
        "accelerate#2816: forgotten in a script that the batch script calls",
        srun_forgotten_below,
        level="problem",
    ),
    Case(
        "node_rank",
        "accelerate#2816: $SLURM_NODEID was 0 on every node",
        lambda s: in_slurm(s, nodes=2, SLURM_NODEID="1", SLURM_PROCID="1", NODE_RANK="0"),
        after=lambda s: s.environ.update(NODE_RANK="1"),
    ),
    Case(
        "node_rank",
        "accelerate#2816: --machine_rank $SLURM_NODEID in the batch script, without single quotes",
        lambda s: (
            in_slurm(s, nodes=2),
            s.probes.update(
                batch_script="#!/bin/bash\n#SBATCH --nodes=2\nsrun accelerate launch \\\n"
                "  --machine_rank $SLURM_NODEID -m paratune train run.yaml\n"
            ),
        ),
        line="srun bash -c 'accelerate launch --machine_rank $SLURM_NODEID -m paratune train run.yaml'",
    ),
    Case("no_srun", "accelerate#1239: started outside Slurm", no_srun),
    Case(
        "rank_differs",
        "accelerate#1489: two processes with the same rank",
        slurm(
            gpus=1,
            nodes=2,
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="2",
            SLURM_PROCID="1",
            LOCAL_WORLD_SIZE="1",
            SLURM_NODEID="1",
        ),
        line="unset RANK LOCAL_RANK WORLD_SIZE",
    ),
    Case("launcher_variables", "RANK was left over in the shell", lambda s: s.environ.update(RANK="3")),
    Case(
        "interface",
        "Lightning#17228: NCCL_SOCKET_IFNAME of another cluster",
        with_environ(NCCL_SOCKET_IFNAME="bond0"),
        line="export NCCL_SOCKET_IFNAME=eth0",
    ),
    Case("interface", "gloo: Unable to find address for: eno1", with_environ(GLOO_SOCKET_IFNAME="eno1")),
    Case(
        "master_is_local",
        "accelerate#1645: MASTER_ADDR=localhost on two nodes",
        with_environ(nodes=2, MASTER_ADDR="localhost", MASTER_PORT="31234"),
    ),
    Case(
        "master_unknown",
        "DeepSpeed#2025: the head node's name did not resolve",
        lambda s: (
            with_environ(nodes=2, MASTER_ADDR="gpu[01-02]", MASTER_PORT="31234")(s),
            s.probes.update(resolve=lambda name: ["10.0.0.1"] if name == "node1" else []),
        ),
    ),
    Case("port_taken", "EADDRINUSE: another job's port", taken_port),
    Case("port_wrong", "MASTER_PORT=auto", with_environ(MASTER_ADDR="127.0.0.1", MASTER_PORT="auto")),
    Case(
        "port_shared",
        "accelerate#647: two jobs on one node used port 29500",
        with_environ(nodes=2, MASTER_ADDR="node1", MASTER_PORT="29500"),
    ),
    Case(
        "nccl_switched_off",
        "a workaround for a hang disabled NVLink",
        with_environ(NCCL_P2P_DISABLE="1"),
    ),
    Case("launch_blocking", "CUDA_LAUNCH_BLOCKING was left on: 3 times slower", with_environ(CUDA_LAUNCH_BLOCKING="1")),
    Case(
        "site_partition",
        "sbatch: invalid partition specified",
        wrong_site("partition", "partition", "partition: gpu"),
        line="partition: gpu",
        after=on_site,
    ),
    Case(
        "site_folder",
        "the job failed in its first second: no such virtual environment",
        wrong_site("folder", "venv", ""),
        after=on_site,
    ),
    Case(
        "no_srun",
        "accelerate#1239: queued from a machine without Slurm",
        lambda s: (on_site(s), s.probes.update(tools={})),
        after=with_tool("srun"),
    ),
]
