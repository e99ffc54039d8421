"""`paratune toy-cluster`: starts, stops and shows a Slurm cluster on this machine."""

import getpass
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Literal

from paratune.base.text import plain
from paratune.cluster import toy
from paratune.commands.options import Json
from paratune.console import print_json
from paratune.errors import EXIT_FAILED, EXIT_OK


def toy_cluster(
    action: Literal["start", "stop", "status"], *, nodes: int = 3, folder: Path | None = None, json: Json = False
) -> int:
    """Start or stop a Slurm cluster on this machine, to try jobs on.

    eval "$(paratune toy-cluster start)" sets the variable with which Slurm's commands and paratune launch use it.

    Args:
        nodes: number of nodes
        folder: folder for keys, logs and configuration; default: /tmp/paratune-toy-USER
    """
    folder = folder or Path(tempfile.gettempdir(), f"paratune-toy-{getpass.getuser()}")  # sockets need short paths
    cluster = toy.ToyCluster(folder.absolute())
    if action == "start":
        cluster = toy.start(folder, nodes)
    ended = toy.stop(cluster) if action == "stop" else []
    pids = cluster.pids()
    resumed = toy.resume_nodes(cluster) if pids and action == "status" else []
    node_states = toy.node_states(cluster) if pids else {}
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
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()))  # noqa: T201
    return EXIT_OK if action != "status" or pids else EXIT_FAILED
