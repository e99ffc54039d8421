"""`paratune certify`: the same few steps under several strategies, beside one process."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.config.baseline_sections import refuse_baseline
from paratune.config.candidates import StrategyCandidate, all_candidates, candidate, common_values, names_of
from paratune.config.check import check
from paratune.config.feasibility.rules import why_not
from paratune.config.feasibility.target import Ranks
from paratune.config.feasibility.words import CERTIFY, refuse
from paratune.config.load import LoadedConfig, load_config
from paratune.config.sections import Config, run_path
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import traits_of
from paratune.console import print_json, print_result, set_up_logging
from paratune.errors import (
    EXIT_DIFFERS,
    EXIT_FAILED,
    EXIT_OK,
    EXIT_STOPPED,
    CheckpointError,
    ConfigError,
    LaunchError,
    ParatuneError,
    Stopped,
    os_error_as,
)
from paratune.launch.local import launch
from paratune.processes.place import place_from_environment
from paratune.records import certificate
from paratune.records.certificate import TOLERANCES, TRAINED_TOLERANCES, StrategyDifference, TrainedDifference
from paratune.records.run_folder import trained_fingerprint

PROGRAM = (sys.executable, "-P", "-m", "paratune.commands.certify_part")
EXIT_CODES = {"holds": EXIT_OK, "differs": EXIT_DIFFERS, "incomplete": EXIT_FAILED}
log = logging.getLogger(__name__)


def certify_command(
    path: Path, overrides: Sequence[str], *, strategies: str, num_processes: int, num_steps: int, as_json: bool
) -> int:
    """Run the command; return its exit code.

    Raises:
        ParatuneError: The configuration or the command line is wrong, or not even one process can train it.
    """
    too_few = [f"{name} {value}" for name, value in (("--nproc", num_processes), ("--steps", num_steps)) if value < 1]
    if too_few:
        raise ConfigError(f"{', '.join(too_few)}: at least 1 is needed", code="cli.out_of_range", options=too_few)
    if place_from_environment().world_size > 1:
        raise LaunchError(
            "paratune certify starts its processes itself; leave out torchrun", code="launch.started_twice"
        )
    loaded = load_config(path, overrides)
    refuse_baseline(loaded.config.baseline, "paratune certify compares")
    common, notes = common_values(loaded, num_processes, num_steps)
    reference = candidate(loaded, common, "single", num_processes)
    candidates = all_candidates(loaded, common, names_of(strategies), num_processes)
    set_up_logging(speaks=True)
    log.info("%s", "; ".join(notes))
    with _own_folder(certificate.folder_beside(run_path(loaded.config))) as folder:
        with scratch_folder(folder, prefix=".parts-") as scratch:
            record = _try_all(loaded, reference, candidates, num_steps, scratch)
        record["notes"] = notes + record["notes"]
        records.write_json(folder / certificate.FILE, record)
    if as_json:
        print_json(record)
    else:
        _show(record, folder / certificate.FILE)
    return EXIT_CODES[record["verdict"]]


@contextmanager
def _own_folder(folder: Path) -> Iterator[Path]:
    """Make a folder for the block, and take away what is still empty after it.

    Raises:
        CheckpointError: It cannot be made.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with os_error_as(
        CheckpointError, f"{folder} cannot be made", "change run.folder", code="run.not_writable", folder=folder
    ):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _try_all(
    loaded: LoadedConfig,
    reference: StrategyCandidate,
    candidates: Sequence[StrategyCandidate],
    num_steps: int,
    scratch: Path,
) -> dict[str, Any]:
    """Run the reference and all strategies, and return the record.

    Raises:
        ParatuneError: The reference cannot be run, or a signal came.
    """
    base = _run(loaded, reference, num_steps, scratch / "reference", None)
    about = records.read_json(scratch / "reference" / certificate.rank_file(0))["about"]
    precision = _trained_precision(loaded.config.precision, base.precision, str(about["device"]))
    trial = _Trial(loaded, base, num_steps, precision, scratch)
    one_process, notes = None, []
    if precision is not None:
        try:
            one_process = trial.trained(reference, "reference-trained", refuses=True)
        except ConfigError as error:  # such as fp16 on a CPU: the device refuses it, and no strategy
            notes.append(f"not certified in {precision}, which cannot run here: {error}")
            trial = replace(trial, precision=None)
    findings = [trial.finding(each, f"part{number}") for number, each in enumerate(candidates)]
    less_exact = [each for each in findings if each.precision not in (None, base.precision)]
    return {
        "schema_version": certificate.SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": certificate.verdict([*findings, *([one_process] if one_process else [])]),
        "command": sys.argv,
        "run": loaded.config.run.name,
        "config": loaded.values,
        "config_fingerprint": trained_fingerprint(loaded.values),
        "config_used": reference.values,
        "notes": notes + [_less_exact(finding) for finding in less_exact],
        "seed": loaded.config.run.seed,
        **{key: about[key] for key in ("data", "model", "global_batch_size", "device", "versions", "code", "hardware")},
        "num_steps": num_steps,
        "tolerance": {
            name: asdict(TOLERANCES[name])
            for name in dict.fromkeys([base.precision, *(each.precision for each in less_exact if each.precision)])
        },
        "trained_tolerance": {each: asdict(TRAINED_TOLERANCES[each]) for each in (trial.precision,) if each},
        "reference": {
            "strategy": "single",
            "precision": base.precision,
            "order_fingerprint": certificate.order_fingerprint(base),
            "weights_fingerprint": certificate.weights_fingerprint(base),
            "losses": base.losses,
            "grad_norms": base.grad_norms,
            "trained": asdict(one_process) if one_process else None,
        },
        "strategies": [finding.as_dict() for finding in findings],
    }


def _less_exact(finding: StrategyDifference) -> str:
    """Return what a strategy computed in, and what is allowed to it."""
    assert finding.precision is not None
    tolerance = TOLERANCES[finding.precision]
    allowed = f"gradients {tolerance.gradients:.0e}, losses {tolerance.losses:.0e}"
    return f"{finding.strategy} in {finding.precision} ({allowed})"


def _trained_precision(configured: str, exact: str, device: str) -> str | None:
    """Return the precision that trains, where it has to be certified beside the exact one, else None.

    On a CPU fp32 runs what fp64 runs; on a GPU it has kernels of its own.
    """
    if configured == exact or (configured == "fp32" and device == "cpu"):
        return None
    return configured if configured in TRAINED_TOLERANCES else None


@dataclass(frozen=True)
class _Trial:
    """What all strategies are compared with, and how."""

    loaded: LoadedConfig
    base: certificate.Part
    """What the reference did."""
    num_steps: int
    precision: str | None
    """The one that trains; None where it is not certified by itself."""
    scratch: Path

    def finding(self, each: StrategyCandidate, folder: str) -> StrategyDifference:
        """Run one strategy, exactly and then as it trains; what keeps it from running is a finding too.

        One that can compute in nothing but the precision that trains runs once.

        Raises:
            Stopped: A signal came.
        """
        finding = _try(self.loaded, each, self.base, self.num_steps, self.scratch / folder)
        if self.precision in (None, finding.precision) or finding.status == "cannot run":
            return finding
        return certificate.with_trained(finding, self.trained(each, f"{folder}-trained"))

    def trained(self, each: StrategyCandidate, folder: str, *, refuses: bool = False) -> TrainedDifference:
        """Run one strategy in the precision that trains.

        Args:
            each: The strategy.
            folder: Name of its folder.
            refuses: Whether to raise what the configuration or the device does not allow.

        Raises:
            Stopped: A signal came.
            ConfigError: See `refuses`.
        """
        assert self.precision is not None
        config = each.config.model_copy(update={"precision": self.precision})
        path = self.scratch / folder
        try:
            _check(config, each.world_size, ("strategy", "precision"))
            part = _run(self.loaded, each, self.num_steps, path, self.scratch / "reference", self.precision)
        except Stopped:
            raise
        except ParatuneError as error:
            if refuses and isinstance(error, ConfigError):
                raise
            return TrainedDifference(self.precision, "cannot run", str(error))
        return certificate.compare_trained(self.base, part, self.precision)


def _try(
    loaded: LoadedConfig, each: StrategyCandidate, base: certificate.Part, num_steps: int, folder: Path
) -> StrategyDifference:
    """Run one strategy and hold it to the reference; what keeps it from running is a finding too.

    Raises:
        Stopped: A signal came.
    """
    strategy = each.config.strategy
    finding = StrategyDifference(
        strategy=each.name,
        kind=strategy.kind,
        options=strategy_options(strategy),
        world_size=each.world_size,
        precision=None,
        status="cannot run",
    )
    try:
        if getattr(strategy, "param_dtype", None) == "fp16":
            raise ConfigError(
                "strategy.param_dtype: fp16 skips steps until its loss scale fits, which one process does not; certify "
                "param_dtype: bf16 instead, which takes the same way",
                code="certify.unsupported",
                key="strategy.param_dtype",
            )
        _check(each.config, each.world_size, ("strategy",))
        part = _run(loaded, each, num_steps, folder, folder.with_name("reference"))
    except Stopped:
        raise
    except ParatuneError as error:
        return replace(finding, reason=str(error))
    return replace(finding, **certificate.compare(base, part))


def _check(config: Config, world_size: int, sections: tuple[str, ...]) -> None:
    """Check a strategy before its processes start.

    Raises:
        ParatuneError: It cannot be run; of the problems of a configuration, those of these sections count.
    """
    problems = [problem for problem in check(config) if any(key.startswith(sections) for key in problem.keys)]
    if problems:
        raise ConfigError("; ".join(problem.message for problem in problems), code=problems[0].code)
    traits = traits_of(config.strategy.kind, strategy_options(config.strategy))
    refuse(why_not(config, traits, None, Ranks(world_size)), CERTIFY)


def _run(
    loaded: LoadedConfig,
    each: StrategyCandidate,
    num_steps: int,
    folder: Path,
    reference: Path | None,
    precision: str | None = None,
) -> certificate.Part:
    """Start the processes of a strategy, wait for them, and return what they did.

    Args:
        loaded: The user's configuration.
        each: The strategy.
        num_steps: Optimizer steps.
        folder: Is made, for what the processes write.
        reference: Folder of the reference; None in the reference itself.
        precision: The one that trains; None for the most exact one.

    Raises:
        ParatuneError: They could not do it, or a signal came.
    """
    folder.mkdir()
    processes = f"{each.world_size} process{'es' * (each.world_size > 1)}"
    name = f"reference ({each.name})" if reference is None else each.name
    log.info("%s: %s%s", name, processes, f" in {precision}" if precision else "")
    traits = traits_of(each.config.strategy.kind, strategy_options(each.config.strategy))
    job = {
        "name": each.name,
        "values": each.values,
        "source": str(loaded.source),
        "num_steps": num_steps,
        "exact": each.config.precision == "fp32" and (traits is None or "precision=fp64" not in traits.excludes),
        "folder": str(folder),
        "reference": str(reference) if reference else None,
        "precision": precision,
    }
    records.write_json(folder / "job.json", job)
    code = launch([str(folder / "job.json")], each.world_size, program=PROGRAM)
    if code != EXIT_OK:
        raise _error(folder, each.world_size, code)
    return certificate.read_part(folder, each.world_size)


def _error(folder: Path, world_size: int, code: int) -> ParatuneError:
    """Return why the processes of a strategy could not: what the first of them wrote that is not a consequence."""
    if code == EXIT_STOPPED:
        return Stopped("stopped by a signal; no certificate was written", code="stopped.signal")
    paths = [folder / certificate.error_file(rank) for rank in range(world_size)]
    errors = [records.read_json(path) for path in paths if path.exists()]
    # Who lost another rank says LaunchError.
    errors.sort(key=lambda error: error["kind"] == "LaunchError")
    if not errors:
        return LaunchError(
            f"its processes ended with exit code {code} without a word", code="launch.process_died", exit_code=code
        )
    kind = {each.__name__: each for each in ParatuneError.__subclasses__()}.get(errors[0]["kind"], LaunchError)
    message = errors[0]["message"]
    return kind(message if errors[0]["known"] else f"{errors[0]['kind']}: {message}", code=errors[0]["code"])


def _one_process(trained: Mapping[str, Any]) -> str:
    difference = trained["gradient_difference"]
    figure = "" if difference is None else f"{difference:.1e}, "
    return f"{figure}{trained['status']}" + (f" ({trained['reason']})" if trained["reason"] else "")


def _show(record: Mapping[str, Any], path: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    reference = record["reference"]
    tolerance = record["tolerance"][reference["precision"]]
    notes = ", ".join(record["notes"])
    lines = [
        f"{record['run']}: {record['num_steps']} steps of {record['global_batch_size']} samples on "
        f"{'a GPU' if record['device'] == 'cuda' else 'the CPU'} in {reference['precision']}; {notes}.",
        "Beside one process (single): same samples, same order, same initial weights, and the largest relative "
        f"differences (allowed: gradients {tolerance['gradients']:.0e}, losses {tolerance['losses']:.0e}).",
    ]
    if words := certificate.trained_words(record["trained_tolerance"]):
        lines.append(f"{words}; one process itself: {_one_process(reference['trained'])}.")
    for line in lines:
        print_result(Text(plain(line)))
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("strategy", overflow="fold")
    for name in certificate.COLUMNS[1:-1]:
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for each in record["strategies"]:
        table.add_row(
            Text(plain(each["strategy"])),
            str(each["world_size"]),
            *certificate.cells(StrategyDifference(**each)),
            each["status"],
        )
    print_result(table)
    for each in record["strategies"]:
        if each["reason"]:
            print_result(Text(plain(f"{each['strategy']}: {each['status']}: {each['reason']}")))
    print_result(Text(plain(f"verdict: {record['verdict']}   {path}")))
