"""A short round of `speed.py`: paratune against Trainer's best settings must not be slower than on a busy machine.

python benchmarks/guard_parts/speed_ratio.py FOLDER      # of the data sets IMDB and MRPC
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SPEED = Path(__file__).parents[1] / "speed.py"
STEPS = 4
RATIOS = {"imdb": (1.3, 1.79), "mrpc": (1.0, 1.31)}
"""Speed divided by that of Trainer's best settings, by CPU seconds: the smallest ratio that passes, and the recorded
one (speed_cpu_202611.md). Other programs on the machine made the recorded ones 0.1 smaller; the rest is reserve."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        out = Path(folder) / "speed.jsonl"
        words = ["--data", sys.argv[1], "--work", folder, "--out", out, "--rounds", 1, "--steps", STEPS]
        words += ["--cases", *RATIOS, "--sides", "paratune", "grouped"]
        done = subprocess.run([sys.executable, str(SPEED), *map(str, words)])
        if done.returncode:
            return done.returncode
        measured = ratios(json.loads(line) for line in out.read_text().splitlines())
    print(
        "; ".join(
            f"{case} {measured[case]:.2f} (at least {low}, recorded {known})" for case, (low, known) in RATIOS.items()
        )
    )
    return int(any(measured[case] < low for case, (low, _) in RATIOS.items()))


def ratios(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return, by case, the CPU seconds per row of Trainer divided by those of paratune."""
    cost = {(row["case"], row["side"]): row["cpu_s"] / row["num_samples"] for row in rows}
    return {case: cost[case, "grouped"] / cost[case, "paratune"] for case in RATIOS}


if __name__ == "__main__":
    sys.exit(main())
