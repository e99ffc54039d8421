"""The launcher of a process, from the variables of Slurm 22.05, torchrun and accelerate."""

import socket

import pytest

from paratune.processes.launcher import (
    FIRST_PORT,
    NUM_PORTS,
    first_host,
    has_own_gpu,
    idle_tasks_warning,
    is_srun,
    job_facts,
    launch_problem,
    launcher,
    srun_rendezvous,
    sweep_problem,
    tasks_on_node,
)

BATCH = {
    "SLURM_JOB_ID": "41007",
    "SLURM_NNODES": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_PARTITION": "toy",
    "SLURM_CLUSTER_NAME": "toy",
}
"""Of the batch script itself."""
STEP = {
    **BATCH,
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}
"""Of the last task of `srun --ntasks-per-node=2` on two nodes."""
TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "41007",
}
ACCELERATE = {**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, None),
        (BATCH, None),
        (STEP, "srun"),
        (TORCHRUN, "torchrun"),
        ({**STEP, **TORCHRUN}, "torchrun"),
        (ACCELERATE, "accelerate"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, "variables"),
        ({**TORCHRUN, "PARATUNE_RENDEZVOUS": "file:///x"}, "paratune"),
    ],
)
def test_the_launcher_of_a_process(environ: dict[str, str], name: str | None):
    assert launcher(environ) == name
    assert is_srun(environ) == (name == "srun")


def test_a_single_task_is_a_plain_process():
    assert not is_srun({**STEP, "SLURM_STEP_NUM_TASKS": "1"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n[1-3,5]", "n1"), ("gpu[003-5,9]-ib,cpu1", "gpu003-ib"), ("a,b", "a"), ("", "")],
)
def test_the_first_node_of_a_list(nodes: str, first: str):
    assert first_host(nodes) == first


def test_tasks_of_this_node():
    assert tasks_on_node({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4(x3),1", "SLURM_NODEID": "2"}) == 4
    assert tasks_on_node({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4(x3),1", "SLURM_NODEID": "3"}) == 1
    assert tasks_on_node({}) == 1
    # A list of a million million nodes is not written out.
    assert tasks_on_node({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4,2(x9999999999)", "SLURM_NODEID": "9"}) == 2


def test_a_number_of_5000_digits_counts_as_none():
    environ = {"SLURM_JOB_ID": "1", "SLURM_NNODES": "9" * 5000, "SLURM_RESTART_COUNT": "9" * 5000}
    assert launch_problem(1, environ) is None
    assert (job_facts(environ) or {})["num_requeued"] == 0


def test_where_tasks_of_srun_meet():
    # A name that does not resolve: the node on which srun runs.
    two = {**STEP, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "no-such-host.invalid"}
    assert srun_rendezvous(two).host == "127.0.0.1"
    assert srun_rendezvous({**two, "SLURM_STEP_NODELIST": "localhost"}).host == "localhost"
    given = srun_rendezvous({**two, "MASTER_ADDR": "head", "MASTER_PORT": "29500"})
    assert (given.host, given.port, given.is_one_machine) == ("head", 29500, False)
    first = srun_rendezvous({**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu7"})
    assert (first.host, first.is_one_machine) == ("127.0.0.1", True)


def test_the_port_depends_on_the_step_and_not_only_on_the_job(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])  # 0.2 s of each call without a network
    steps = [{**STEP, "SLURM_SRUN_COMM_PORT": str(port)} for port in range(40_000, 40_040)]
    meetings = [srun_rendezvous(step) for step in steps]
    assert [srun_rendezvous({**step, "SLURM_PROCID": "3", "SLURM_NODEID": "1"}) for step in steps] == meetings
    assert all(FIRST_PORT <= meeting.port < FIRST_PORT + NUM_PORTS for meeting in meetings)
    # Of 40 draws out of 20,000 a pair is equal with a probability of 4%.
    assert len({meeting.port for meeting in meetings}) > 38
    assert len({meeting.name for meeting in meetings}) == 40
    again = srun_rendezvous({**steps[0], "SLURM_RESTART_COUNT": "1"})
    assert (again.port, again.name) != (meetings[0].port, meetings[0].name)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "port", "9" * 5000, "29500.0"])
def test_a_port_that_is_none_is_refused(port: str):
    with pytest.raises(ValueError, match=r"MASTER_PORT is .*allowed: 1 to 65535"):
        srun_rendezvous({**STEP, "MASTER_PORT": port})


def test_gpus_that_are_a_tasks_own():
    assert has_own_gpu({**STEP, "SLURM_GPUS_PER_TASK": "1"})
    assert not has_own_gpu(STEP)


def test_job_facts_of_a_record():
    assert job_facts({}) is None
    assert job_facts({**BATCH, "SLURM_RESTART_COUNT": "2"}) == {
        "scheduler": "slurm",
        "id": "41007",
        "array_id": None,
        "cluster": "toy",
        "partition": "toy",
        "nodes": "n[1-2]",
        "num_requeued": 2,
    }
    array = {**BATCH, "SLURM_ARRAY_JOB_ID": "41000", "SLURM_ARRAY_TASK_ID": "7"}
    assert (job_facts(array) or {})["array_id"] == "41000_7"


@pytest.mark.parametrize(
    "environ", [{}, BATCH, STEP, TORCHRUN, ACCELERATE, {**STEP, **TORCHRUN, "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}]
)
def test_healthy_starts_raise_no_alarm(environ: dict[str, str]):
    assert launch_problem(1, environ) is None
    assert idle_tasks_warning(1, environ) is None


@pytest.mark.parametrize(
    ("environ", "num_processes", "message"),
    [
        ({**BATCH, "SLURM_NNODES": "2"}, 1, "srun paratune train"),
        ({**BATCH, "SLURM_NNODES": "2"}, 4, "--nproc 4"),
        (
            {**BATCH, **TORCHRUN, "SLURM_NNODES": "2", "GROUP_WORLD_SIZE": "1"},
            1,
            "srun --ntasks-per-node=1 torchrun --nnodes=2",
        ),
        ({**STEP, **TORCHRUN}, 1, "torchrun 2 times"),
        ({**STEP, **TORCHRUN}, 1, "#SBATCH --ntasks-per-node=1"),
        ({**STEP, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}, 1, "task 3 of srun"),
        ({**ACCELERATE, "ACCELERATE_MIXED_PRECISION": "bf16"}, 1, "precision: bf16"),
        (
            {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "True", "MASTER_PORT": "29500"},
            1,
            "--nproc-per-node=N",
        ),
        ({**ACCELERATE, "ACCELERATE_USE_FSDP": "true"}, 1, "FSDP"),
        ({**ACCELERATE, "ACCELERATE_USE_DEEPSPEED": "true"}, 1, "strategy: deepspeed"),
        ({**ACCELERATE, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, 1, "batch: {grad_accum_steps: 4}"),
    ],
)
def test_a_wrong_start_is_named_with_the_line_to_change(environ: dict[str, str], num_processes: int, message: str):
    assert message in (launch_problem(num_processes, environ) or "")
    assert launch_problem(num_processes, {**environ, "PARATUNE_RENDEZVOUS": "file:///x"}) is None


def test_tasks_without_srun_give_a_warning():
    environ = {**BATCH, "SLURM_NTASKS": "4"}
    assert "4 tasks" in (idle_tasks_warning(1, environ) or "")
    assert idle_tasks_warning(4, environ) is None
    assert idle_tasks_warning(1, {**STEP, "SLURM_NTASKS": "4"}) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, None),
        (BATCH, None),
        # One task of srun on one node of two: it uses all of its tasks.
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        (
            {**BATCH, "SLURM_NNODES": "2"},
            "#SBATCH --nodes=1",
        ),
        (STEP, "paratune sweep 4 times"),
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, "leave out torchrun"),
    ],
)
def test_a_matrix_is_run_from_one_process_of_one_machine(environ: dict[str, str], message: str | None):
    result = sweep_problem(environ)
    assert result is None if message is None else message in str(result)
