"""`paratune doctor`: checks this machine, and a run before it is queued."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from paratune.commands.options import All, Json, Overrides
from paratune.console import set_up_logging, stdout_for_results
from paratune.errors import ConfigError, require_at_least


def doctor(
    config: Path | None = None,
    /,
    *,
    set_: Overrides = (),
    site: Path | None = None,
    nproc: int | None = None,
    folder: Path = Path("runs"),
    run_code: bool = False,
    all_: All = False,
    json: Json = False,
) -> int:
    """Find problems of this machine and of the run in CONFIG, with reasons and lines that repair them.

    Checks of CONFIG: options, files, labels, model, precision, processes and GPUs, disk space for checkpoints, build of
    torch. Nothing is trained, downloaded or changed.

    Args:
        site: file that describes the cluster of the run
        nproc: number of processes of the run on this machine
        folder: folder for runs, without CONFIG
        run_code: also import the Python code that CONFIG names, and read its data sets
    """
    from rich.console import Console

    from paratune.cluster.site import read_site
    from paratune.commands.doctor_run import queued_run, site_environment, start_on
    from paratune.config.load import allow_code, check_layer
    from paratune.config.overrides import read_layers
    from paratune.config.sections import run_path
    from paratune.doctor.checkup import CHECKS, NODE_CHECKS, SETUP_CHECKS, describe_machine, judge, print_findings
    from paratune.doctor.machine import check_extras

    if config is None and (set_ or site or nproc is not None):
        message = "--set, --site and --nproc describe a run: name its CONFIG"
        raise ConfigError(message, code="cli.no_effect", option="--set")
    if site is not None and nproc is not None:
        message = "--nproc describes this machine and --site a cluster; use one of them"
        raise ConfigError(message, code="cli.conflict", options=("--nproc", "--site"))
    require_at_least("--nproc", nproc)
    set_up_logging(speaks=False)
    setup = None
    status = nullcontext() if json else Console(highlight=False).status(f"Checking {config or 'this machine'}")
    with status, stdout_for_results():
        if config is None:
            machine = describe_machine(folder)
            findings = [*judge(CHECKS + NODE_CHECKS, machine), *check_extras()]
        else:
            loaded, problems = check_layer(read_layers(config, set_), config)
            machine = describe_machine(run_path(loaded.config) if loaded is not None else Path("runs"))
            start = None
            if site is not None:
                cluster = read_site(site)
                start = start_on(cluster, site)
                machine = replace(machine, environ={**machine.environ, **site_environment(cluster)})
            if loaded is not None and run_code:
                allow_code(loaded)
            setup = queued_run(config, loaded, problems, machine, num_processes=nproc, start=start)
            findings = judge(CHECKS if start is not None else CHECKS + NODE_CHECKS, machine)
            findings += judge(SETUP_CHECKS if loaded is not None else SETUP_CHECKS[:1], setup)
    return print_findings(findings, machine, setup, all_=all_, as_json=json)
