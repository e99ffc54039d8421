"""Commands about a cluster: submitting, looking, cancelling, and one to try things on."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from paratune.cli.options import Json, Overrides


def launch(
    config: Path,
    *,
    site: Annotated[Path, Parameter(help="profile of the cluster, such as those in configs/sites")],
    set_: Overrides = None,
    nodes: Annotated[int | None, Parameter(help="nodes of a run, instead of the site's")] = None,
    gpus_per_node: Annotated[int | None, Parameter(help="GPUs on each node, instead of the site's; 0: CPUs")] = None,
    array: Annotated[
        bool, Parameter(negative=(), help="CONFIG is a matrix: submit what is left of it, each run by itself")
    ] = False,
    max_at_once: Annotated[int | None, Parameter(help="runs of an array at one time")] = None,
    only: Annotated[
        list[str] | None, Parameter(negative=(), help="runs of the matrix, as paratune sweep --only takes them")
    ] = None,
    retry_failed: Annotated[bool, Parameter(negative=(), help="of the matrix, also what failed before")] = False,
    after: Annotated[
        list[str] | None, Parameter(negative=(), help="number of a job that must end well first; may be repeated")
    ] = None,
    wait: Annotated[bool, Parameter(negative=(), help="say what happens until it is over; end as it ends")] = False,
    dry_run: Annotated[bool, Parameter(negative=(), help="print the batch script; submit and write nothing")] = False,
    json: Json = False,
) -> int:
    """Submit CONFIG to Slurm: a readable batch script, on one node or several, that saves and goes on by itself.

    It is kept in the run folder, in slurm/, with what the nodes print. The same command goes on with a run.
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
    all_: Annotated[bool, Parameter(name="--all", negative=(), help="also those that ended long ago")] = False,
    json: Json = False,
) -> int:
    """Show what was submitted for runs and matrices (those below runs, when no PATHS are given), and how it is."""
    from paratune.commands.jobs import jobs_command

    return jobs_command(paths, show_all=all_, as_json=json)


def cancel(*jobs: Annotated[str, Parameter(required=True)], json: Json = False) -> int:
    """Take JOBS - numbers, or folders of runs - out of Slurm; a run that is at work saves first."""
    from paratune.commands.jobs import cancel_command

    return cancel_command(jobs, as_json=json)


def toy_cluster(
    action: Literal["start", "stop", "status"],
    *,
    nodes: Annotated[int, Parameter(help="nodes to start")] = 3,
    folder: Annotated[
        Path | None, Parameter(help="for its keys, logs and configuration; /tmp/paratune-toy-USER when not given")
    ] = None,
    json: Json = False,
) -> int:
    """Run a Slurm cluster on this machine, to try scripts on; `start` prints the variable that leads to it.

    eval "$(paratune toy-cluster start)" makes Slurm's commands and paratune launch talk to it.
    """
    from paratune.commands.toy_cluster import toy_cluster_command

    return toy_cluster_command(action, folder=folder, num_nodes=nodes, as_json=json)
