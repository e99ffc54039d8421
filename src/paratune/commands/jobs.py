"""`paratune jobs` and `paratune toy-cluster`: the submitted Slurm jobs, and a Slurm cluster on this machine."""

import getpass
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Literal

from paratune.base.text import plain
from paratune.commands.options import Json
from paratune.console import print_json, print_table, print_warning
from paratune.errors import EXIT_FAILED, EXIT_OK

NUM_ENDED_SHOWN = 20
"""Number of the latest ended jobs that are shown."""


def jobs(*paths: Path, json: Json = False) -> None:
    """Show the submitted jobs of runs and matrices, and their state; without PATHS, of all runs below runs/."""
    from paratune.cluster import jobs as cluster_jobs  # --help needs no pydantic

    submitted = cluster_jobs.submissions(paths or [Path("runs")])
    queued = cluster_jobs.queue() if submitted else []
    statuses = [cluster_jobs.status(job, queued) for job in submitted]
    if json:
        print_json([cluster_jobs.as_dict(status) for status in statuses], indent=1)
        return
    first_shown = len(statuses) - NUM_ENDED_SHOWN
    rows = []
    for number, status in enumerate(statuses):
        if status.is_over and number < first_shown:
            continue
        job = status.submitted
        states = ", ".join(f"{n} {state}" if job.is_array else state for state, n in status.states.items())
        reason = f" ({status.reason})" if status.reason else ""
        num_requeued = "n/a" if status.num_requeued is None else status.num_requeued
        folder = Path(job.folder)
        folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        rows.append((job.job, job.name, states + reason, status.nodes, status.elapsed, num_requeued, folder))
    if not rows:
        print("no submitted jobs here; submit one: paratune launch CONFIG --site SITE.yaml", file=sys.stderr)  # noqa: T201
        return
    print_table(("job", "name", "state", "nodes", "time", "queued again", "folder"), rows)
    if stalled := [status.submitted.job for status in statuses if cluster_jobs.NO_PROGRESS in status.states]:
        message = f"{' '.join(stalled)}: not queued again, because a run made no checkpoint in the time of its job; "
        message += "set a longer time: in the site file, or save more often (checkpoint.every), and submit again"
        print_warning(message, "slurm.no_progress")


def toy_cluster(
    action: Literal["start", "stop", "status"], /, *, nodes: int = 3, folder: Path | None = None, json: Json = False
) -> int:
    """Start or stop a Slurm cluster on this machine, to try jobs on.

    eval "$(paratune toy-cluster start)" sets the variable with which Slurm's commands and paratune launch use it.

    Args:
        nodes: number of nodes
        folder: folder for keys, logs and configuration; default: /tmp/paratune-toy-USER
    """
    from paratune.cluster import toy

    folder = folder or Path(tempfile.gettempdir(), f"paratune-toy-{getpass.getuser()}")  # sockets need short paths
    cluster = toy.ToyCluster(folder.absolute())
    if action == "start":
        cluster = toy.start(folder, nodes)
    ended = toy.stop(cluster) if action == "stop" else []
    pids = cluster.pids()
    resumed = toy.resume_nodes(cluster) if pids and action == "status" else []
    # The controller notices a node that ended only after minutes.
    answers = toy.node_states(cluster) if pids else {}
    node_states = {name: answers.get(name, "unknown") if name in pids else "ended" for name in cluster.node_names()}
    ended_daemons = [name for name in ("munged", "slurmctld", *node_states) if name not in pids] if pids else []
    if json:
        about = {"folder": str(cluster.folder), "environment": cluster.environment}
        print_json({**about, "daemons": pids, "nodes": node_states, "resumed": resumed}, indent=1)
    elif action == "stop":
        print(f"ended: {', '.join(ended)}" if ended else plain(f"no toy cluster runs in {cluster.folder}"))  # noqa: T201
    elif not pids:
        print(plain(f"no toy cluster runs in {cluster.folder}"))  # noqa: T201
    else:
        states = ", ".join(f"{name} {state}" for name, state in node_states.items())
        print(f"# nodes: {states}", file=sys.stderr)  # noqa: T201
        if resumed:
            print(f"# resumed: {', '.join(resumed)}, which did not answer for a while", file=sys.stderr)  # noqa: T201
        if ended_daemons:
            print(f"# ended: {', '.join(ended_daemons)}; stop and start the cluster", file=sys.stderr)  # noqa: T201
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()))  # noqa: T201
    return EXIT_OK if action != "status" or (pids and not ended_daemons) else EXIT_FAILED
