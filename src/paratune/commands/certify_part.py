"""One process's part of a certificate, as `paratune certify` starts it: `python -m ....certify_part JOB.json`."""

import sys
from pathlib import Path

from paratune.base.imports import without_collections
from paratune.console import stdout_for_results


def main(path: Path) -> int:
    """Do what the file says; return the exit code."""
    from paratune.engine.stop import StopRequest

    stop = StopRequest().install()  # before the seconds that importing torch takes
    with stdout_for_results():
        with without_collections():
            from paratune.train.certify import run_job

        return run_job(path, stop)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
