"""`paratune launch`: writes and submits the batch script of a run or a matrix, and waits with --wait."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from paratune.commands import EXAMPLES
from paratune.commands.options import Json, Overrides
from paratune.console import print_json, set_up_logging
from paratune.errors import EXIT_OK, ConfigError, require_at_least


def launch(
    config: Path,
    /,
    *,
    site: Path | None = None,
    set_: Overrides = (),
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    array: bool = False,
    max_at_once: int | None = None,
    only: Sequence[str] = (),
    retry_failed: bool = False,
    after: Sequence[str] = (),
    wait: bool = False,
    dry_run: bool = False,
    run_code: bool = False,
    json: Json = False,
) -> int:
    """Submit CONFIG to Slurm, on one node or several; the job saves, is queued again and resumes by itself.

    The batch script and the output of the nodes are in slurm/ in the run folder. Repeat the command to resume a run.

    Args:
        site: file that describes the cluster, such as those in configs/sites; a dry run without it takes the site of
            configs/sites/plain.yaml
        nodes: number of nodes, instead of the site's
        gpus_per_node: number of GPUs on each node, instead of the site's; 0: CPUs
        array: CONFIG is a matrix: submit its unfinished runs, each as a separate job
        max_at_once: maximum number of jobs of the matrix at the same time; its arrays then follow each other
        only: only these runs of the matrix, as in paratune sweep --only
        retry_failed: with --array: also submit runs that failed before
        after: start after this job ended with success; may be repeated
        wait: wait for the end of the job, print what happens, and exit with its exit code
        dry_run: print the batch script; submit and write nothing
        run_code: paratune train --run-code in the job
    """
    from paratune.cluster.jobs import check_job_id
    from paratune.cluster.script import script_text
    from paratune.cluster.site import PLAIN, read_site, with_size
    from paratune.commands.launch_jobs import array_jobs, run_jobs, submit_jobs, wait_for_jobs

    if site is None and not dry_run:
        message = f"--site is missing; for example: {EXAMPLES['launch']}; only --dry-run needs none"
        raise ConfigError(message, code="cli.required", option="--site")
    require_at_least("--nodes", nodes)
    require_at_least("--gpus-per-node", gpus_per_node, 0)
    require_at_least("--max-at-once", max_at_once)
    for job_id in after:
        check_job_id(job_id, "--after")
    if not array and (max_at_once is not None or only or retry_failed):
        message = "--max-at-once, --only and --retry-failed select runs of a matrix: add --array"
        raise ConfigError(message, code="cli.required", option="--array")
    sized_site = with_size(PLAIN if site is None else read_site(site), nodes=nodes, gpus_per_node=gpus_per_node)
    with ExitStack() as launch_lock:
        if array:
            set_up_logging(speaks=True)
            jobs = array_jobs(
                config, set_, sized_site, only,
                nodes=nodes, retry_failed=retry_failed, max_at_once=max_at_once, dry_run=dry_run,
            )  # fmt: skip
        else:
            jobs = run_jobs(config, set_, sized_site, after, None if dry_run else launch_lock)
        jobs = [(replace(job, run_code=run_code), folder) for job, folder in jobs]
        if dry_run:
            if json:
                print_json([{"name": job.name, "script": script_text(job)} for job, _ in jobs], indent=1)
            for job, _ in () if json else jobs:
                print(script_text(job), end="")  # noqa: T201
            if site is None:
                print("no --site: the script is for the site of configs/sites/plain.yaml", file=sys.stderr)  # noqa: T201
            return EXIT_OK
        assert site is not None
        submitted = submit_jobs(jobs, site, after)
    if not wait:
        if json:
            print_json([job.__dict__ for job in submitted], indent=1)
        return EXIT_OK
    return wait_for_jobs(submitted, as_json=json)
