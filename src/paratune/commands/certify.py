"""`paratune certify`: runs the same few steps under several strategies, and compares them with one process."""

import logging
from contextlib import suppress
from pathlib import Path

from paratune import records
from paratune.base.scratch import scratch_folder
from paratune.commands.options import Json, Overrides
from paratune.console import print_json, set_up_logging
from paratune.errors import EXIT_DIFFERS, EXIT_FAILED, EXIT_OK, CheckpointError, ConfigError, LaunchError, os_error_as
from paratune.records import certificate

EXIT_CODES = {"holds": EXIT_OK, "differs": EXIT_DIFFERS, "incomplete": EXIT_FAILED}
log = logging.getLogger(__name__)


def certify(
    config: Path,
    /,
    *,
    strategies: str = "",
    layouts: str = "",
    set_: Overrides = (),
    nproc: int = 2,
    steps: int = 4,
    run_code: bool = False,
    json: Json = False,
) -> int:
    """Check that strategies and layouts train the same: compare a few steps of CONFIG with one process.

    Dropout is off. The run itself is not changed; the certificate is written to RUN.certificate.

    Args:
        strategies: strategies, comma-separated, such as ddp,zero3,hsdp:2 (a value sets the first option)
        layouts: values of batch.layout, comma-separated: one process with each of them is compared too
        nproc: number of processes of each strategy
        steps: number of steps to compare
        run_code: also run code that the folders of model and teachers name; that of CONFIG always runs
    """
    from paratune.config.candidates import common_values, strategy_candidate, strategy_candidates, strategy_names
    from paratune.config.load import allow_code, load_config
    from paratune.config.optional_sections import refuse_baseline
    from paratune.config.sections import run_path
    from paratune.processes.place import place_from_environment
    from paratune.verify.certify import show, try_all

    too_few = [f"{name} {value}" for name, value in (("--nproc", nproc), ("--steps", steps)) if value < 1]
    if too_few:
        raise ConfigError(f"{', '.join(too_few)}: at least 1 is needed", code="cli.invalid_value", options=too_few)
    if place_from_environment().world_size > 1:
        message = "paratune certify starts its processes itself; leave out torchrun"
        raise LaunchError(message, code="launch.started_twice")
    loaded = load_config(config, set_)
    allow_code(loaded, with_models=run_code)
    refuse_baseline(loaded.config.baseline, "paratune certify compares")
    common, notes = common_values(loaded, nproc, steps)
    reference = strategy_candidate(loaded, common, "single", nproc)
    names = strategy_names(strategies) if strategies or not layouts.strip(" ,") else []
    candidates = strategy_candidates(loaded, common, names, nproc)
    for layout in dict.fromkeys(filter(None, map(str.strip, layouts.split(",")))):
        candidates.append(strategy_candidate(loaded, common, "single", nproc, layout))
    set_up_logging(speaks=True)
    log.info("%s", "; ".join(notes))
    run = run_path(loaded.config)
    folder = run.with_name(run.name + certificate.SUFFIX)
    if folder.exists() and not (folder.is_dir() and not (folder / records.RUN_FILE).exists()):
        message = f"{folder} exists and is not a certificate; change run.name or run.folder"
        raise CheckpointError(message, code="output.foreign", folder=folder)
    failure, facts = f"{folder} cannot be created", {"folder": folder}
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    with os_error_as(CheckpointError, failure, "change run.folder", code="output.not_writable", **facts):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with scratch_folder(folder, prefix=".parts-") as scratch:
            record = try_all(loaded, reference, candidates, steps, scratch)
        record["notes"] = notes + record["notes"]
        records.write_json(folder / certificate.FILE, record)
    finally:
        with suppress(OSError):  # a folder with a certificate stays
            for path in created:
                path.rmdir()
    if json:
        print_json(record)
    else:
        show(record, folder / certificate.FILE)
    return EXIT_CODES[record["verdict"]]
