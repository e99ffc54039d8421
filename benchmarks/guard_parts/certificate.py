"""A certificate of five strategies on a tiny model: the losses and gradients of each are those of one process."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tests")]

from soak_parts import worlds  # noqa: E402

STRATEGIES = "ddp,zero2,zero3,pipeline:2"
"""Compared with `single`."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        worlds.sentences(Path(folder))
        command = [sys.executable, "-m", "paratune", "certify", "c.yaml", "--strategies", STRATEGIES, "--json"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    if not done.stdout.startswith("{"):
        return done.returncode or 1
    record = json.loads(done.stdout)
    names = ", ".join(entry["strategy"] for entry in record["strategies"])
    print(f"{record['verdict']}: single, {names}; {record['num_steps']} steps")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
