"""Changes of a set-up that several modules of the gallery use."""

import json
import shutil
from pathlib import Path

from set_ups import SetUp, in_slurm, with_gpus


def edit_json(path: Path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def slurm(**values):
    def change(set_up):
        in_slurm(set_up, **values)

    return change


def with_environ(gpus=2, nodes=1, **environ):
    def change(set_up):
        in_slurm(set_up, nodes=nodes, gpus=gpus) if nodes > 1 else with_gpus(set_up, gpus)
        set_up.environ |= environ

    return change


def with_probes(gpus=0, **values):
    def change(set_up):
        if gpus:
            with_gpus(set_up, gpus)
        set_up.node["gpu_driver"] = values.get("driver", set_up.node["gpu_driver"])
        set_up.probes |= {name: value for name, value in values.items() if name != "driver"}

    return change


def restore(set_up: SetUp) -> None:
    """Replace a broken model by an intact one: the remedy needs more than one line."""
    shutil.rmtree(set_up.model)
    shutil.copytree(set_up.folder.parent / "whole_model", set_up.model)
