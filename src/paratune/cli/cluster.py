"""Commands about a cluster: submitting, looking, cancelling, and one to try things on."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from paratune.cli.options import Json, Overrides


def launch(
    config: Path,
    *,
    site: Annotated[Path, Parameter(help="file that describes the cluster, such as those in configs/sites")],
    set_: Overrides = None,
    nodes: Annotated[int | None, Parameter(help="number of nodes, instead of the site's")] = None,
    gpus_per_node: Annotated[
        int | None, Parameter(help="number of GPUs on each node, instead of the site's; 0: CPUs")
    ] = None,
    array: Annotated[
        bool, Parameter(negative=(), help="CONFIG is a matrix: submit its unfinished runs, each as a separate job")
    ] = False,
    max_at_once: Annotated[int | None, Parameter(help="maximum number of jobs of an array at the same time")] = None,
    only: Annotated[
        list[str] | None, Parameter(negative=(), help="only these runs of the matrix, as in paratune sweep --only")
    ] = None,
    retry_failed: Annotated[bool, Parameter(negative=(), help="with --array: also runs that failed before")] = False,
    after: Annotated[
        list[str] | None, Parameter(negative=(), help="start after this job ended with success; may be repeated")
    ] = None,
    wait: Annotated[
        bool,
        Parameter(negative=(), help="wait for the end of the job, print what happens, and exit with its exit code"),
    ] = False,
    dry_run: Annotated[bool, Parameter(negative=(), help="print the batch script; submit and write nothing")] = False,
    json: Json = False,
) -> int:
    """Submit CONFIG to Slurm, on one node or several; the job saves, is queued again and resumes by itself.

    The batch script and the output of the nodes are in slurm/ in the run folder. Repeat the command to resume a run.
    """
    from paratune.commands.launch import launch_command

    return launch_command(
        config,
        set_ or [],
        site_path=site,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        is_array=array,
        max_at_once=max_at_once,
        only_words=only or [],
        retry_failed=retry_failed,
        after=after or [],
        wait=wait,
        dry_run=dry_run,
        as_json=json,
    )


def jobs(
    *paths: Path,
    all_: Annotated[bool, Parameter(name="--all", negative=(), help="also jobs that ended long ago")] = False,
    json: Json = False,
) -> int:
    """Show the submitted jobs of runs and matrices, and their state; without PATHS, of all runs below runs/."""
    from paratune.commands.jobs import jobs_command

    return jobs_command(paths, show_all=all_, as_json=json)


def cancel(*jobs: Annotated[str, Parameter(required=True)], json: Json = False) -> int:
    """Cancel JOBS, given by number or by run folder; a running job saves a checkpoint first."""
    from paratune.commands.jobs import cancel_command

    return cancel_command(jobs, as_json=json)


def toy_cluster(
    action: Literal["start", "stop", "status"],
    *,
    nodes: Annotated[int, Parameter(help="number of nodes")] = 3,
    folder: Annotated[
        Path | None, Parameter(help="folder for keys, logs and configuration; default: /tmp/paratune-toy-USER")
    ] = None,
    json: Json = False,
) -> int:
    """Start or stop a Slurm cluster on this machine, to try jobs on.

    eval "$(paratune toy-cluster start)" sets the variable with which Slurm's commands and paratune launch use it.
    """
    from paratune.commands.toy_cluster import toy_cluster_command

    return toy_cluster_command(action, folder=folder, num_nodes=nodes, as_json=json)
