"""`paratune toy-cluster`: start, stop and look at a Slurm cluster on this machine."""

import getpass
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Literal

from paratune.base.text import plain
from paratune.cluster import toy
from paratune.console import print_json
from paratune.errors import EXIT_FAILED, EXIT_OK

Action = Literal["start", "stop", "status"]


def toy_cluster_command(action: Action, *, folder: Path | None, num_nodes: int, as_json: bool) -> int:
    """Run the command; return its exit code: of status, 1 when none runs.

    Raises:
        ParatuneError: It cannot be started.
    """
    folder = folder or Path(tempfile.gettempdir(), f"paratune-toy-{getpass.getuser()}")  # sockets want a short path
    cluster = toy.ToyCluster(folder.absolute())
    if action == "start":
        cluster = toy.start(folder, num_nodes)
    ended = toy.stop(cluster) if action == "stop" else []
    pids = cluster.pids()
    back = toy.resume_nodes(cluster) if pids and action == "status" else []
    nodes = toy.node_states(cluster) if pids else {}
    if as_json:
        print_json(
            {
                "folder": str(cluster.folder),
                "environment": cluster.environment,
                "daemons": pids,
                "nodes": nodes,
                "resumed": back,
            },
            indent=1,
        )
    elif action == "stop":
        print(f"ended: {', '.join(ended)}" if ended else plain(f"no toy cluster runs in {cluster.folder}"))  # noqa: T201
    elif not pids:
        print(plain(f"no toy cluster runs in {cluster.folder}"))  # noqa: T201
    else:
        states = ", ".join(f"{name} {state}" for name, state in nodes.items())
        print(f"# nodes: {states}", file=sys.stderr)  # noqa: T201
        if back:
            print(f"# brought back: {', '.join(back)}, which did not answer for a while", file=sys.stderr)  # noqa: T201
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()))  # noqa: T201
    return EXIT_OK if action != "status" or pids else EXIT_FAILED
