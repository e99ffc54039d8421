"""One process of `paratune certify`: `python -m paratune.commands.certify_part JOB.json`."""

import sys
from pathlib import Path

from paratune.base.imports import collector_off_for_imports
from paratune.console import stdout_for_results

if __name__ == "__main__":
    from paratune.engine.stop import StopRequest

    stop = StopRequest().install()  # before the import of torch, which takes seconds
    with stdout_for_results():
        with collector_off_for_imports():
            from paratune.training.certify import run_job

        code = run_job(Path(sys.argv[1]), stop)
    sys.exit(code)
