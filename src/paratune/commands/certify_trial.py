"""Runs the same few steps under several strategies for `paratune certify`, and compares them with one process."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.config.candidates import StrategyCandidate
from paratune.config.check import check
from paratune.config.feasibility import Ranks, reasons_against
from paratune.config.load import LoadedConfig
from paratune.config.permission import is_trusted
from paratune.config.problems import refuse
from paratune.config.sections import Config
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.console import print_result, print_table
from paratune.errors import EXIT_OK, EXIT_STOPPED, ConfigError, LaunchError, ParatuneError, Stopped
from paratune.processes.local import launch
from paratune.records import certificate
from paratune.records.certificate import TOLERANCES, TRAINED_TOLERANCES, StrategyDifference
from paratune.records.run_folder import trained_fingerprint

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "paratune.commands.certify_part")


def try_all(
    loaded: LoadedConfig,
    reference: StrategyCandidate,
    candidates: Sequence[StrategyCandidate],
    num_steps: int,
    scratch: Path,
) -> dict[str, Any]:
    """Run the reference and all strategies, and return the record.

    Raises:
        ParatuneError: The reference cannot run, or a signal arrived.
    """
    base = _run(loaded, reference, num_steps, scratch / "reference", None)
    about = records.read_json(scratch / "reference" / certificate.rank_file(0))["about"]
    precision = _trained_precision(loaded.config.precision, base.precision, str(about["device"]))
    trial = _Trial(loaded, base, num_steps, precision, scratch)
    one_process, notes = None, []
    if precision is not None:
        try:
            one_process = trial.trained(reference, "reference-trained", refuses=True)
        except ConfigError as error:  # such as fp16 on a CPU: the device, not a strategy, excludes it
            notes.append(f"not certified in {precision}, which cannot run here: {error}")
            trial = replace(trial, precision=None)
    findings = [trial.finding(strategy, f"part{number}") for number, strategy in enumerate(candidates)]
    tolerances = {base.precision: asdict(TOLERANCES[base.precision])}
    for finding in findings:
        if finding.precision is not None and finding.precision != base.precision:
            tolerance = TOLERANCES[finding.precision]
            tolerances[finding.precision] = asdict(tolerance)
            allowed = f"gradients {tolerance.gradients:.0e}, losses {tolerance.losses:.0e}"
            notes.append(f"{finding.strategy} in {finding.precision} ({allowed})")
    return {
        "schema_version": records.SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": certificate.verdict(
            [finding.status for finding in findings] + ([one_process["status"]] if one_process else [])
        ),
        "command": sys.argv,
        "run": loaded.config.run.name,
        "config": loaded.values,
        "config_fingerprint": trained_fingerprint(loaded.values),
        "config_used": reference.values,
        "notes": notes,
        "seed": loaded.config.run.seed,
        **{key: about[key] for key in ("data", "model", "global_batch_size", "device", "versions", "code", "hardware")},
        "num_steps": num_steps,
        "tolerance": tolerances,
        "trained_tolerance": (
            {trial.precision: asdict(TRAINED_TOLERANCES[trial.precision])} if trial.precision else {}
        ),
        "reference": {
            "strategy": "single",
            "precision": base.precision,
            "losses": base.losses,
            "grad_norms": base.grad_norms,
            "trained": one_process,
        },
        "strategies": [asdict(finding) for finding in findings],
    }


def _trained_precision(configured: str, exact: str, device: str) -> str | None:
    """Return the precision of training if it needs a certificate in addition to the exact one, else None.

    On a CPU fp32 uses the same kernels as fp64; on a GPU it has its own kernels.
    """
    if configured == exact or (configured == "fp32" and device == "cpu"):
        return None
    return configured if configured in TRAINED_TOLERANCES else None


@dataclass(frozen=True)
class _Trial:
    """The reference of a comparison, and its settings."""

    loaded: LoadedConfig
    base: certificate.Part
    """Result of the reference."""
    num_steps: int
    precision: str | None
    """Precision of training; None if it is not certified separately."""
    scratch: Path

    def finding(self, strategy: StrategyCandidate, folder: str) -> StrategyDifference:
        """Run one strategy in the exact precision and in that of training; a failure is a finding too.

        A strategy that supports only the precision of training runs once.

        Raises:
            Stopped: A signal arrived.
        """
        finding = _try(self.loaded, strategy, self.base, self.num_steps, self.scratch / folder)
        if self.precision in (None, finding.precision) or finding.status == "cannot run":
            return finding
        return certificate.with_trained(finding, self.trained(strategy, f"{folder}-trained"))

    def trained(self, strategy: StrategyCandidate, folder: str, *, refuses: bool = False) -> dict[str, Any]:
        """Run one strategy in the precision of training.

        Args:
            refuses: Whether to raise errors of the configuration or the device.

        Raises:
            Stopped: A signal arrived.
            ConfigError: See `refuses`.
        """
        assert self.precision is not None
        config = strategy.config.model_copy(update={"precision": self.precision})
        path = self.scratch / folder
        try:
            _check(config, strategy.world_size, ("strategy", "precision"))
            part = _run(self.loaded, strategy, self.num_steps, path, self.scratch / "reference", self.precision)
        except Stopped:
            raise
        except ParatuneError as error:
            if refuses and isinstance(error, ConfigError):
                raise
            return certificate.cannot_train(self.precision, str(error))
        return certificate.compare(self.base, part, trained=self.precision)


def _try(
    loaded: LoadedConfig, strategy: StrategyCandidate, base: certificate.Part, num_steps: int, folder: Path
) -> StrategyDifference:
    """Run one strategy and compare it with the reference; a failure is a finding too.

    Raises:
        Stopped: A signal arrived.
    """
    options = strategy.config.strategy
    finding = StrategyDifference(
        strategy=strategy.name,
        kind=options.kind,
        options=strategy_options(options),
        world_size=strategy.world_size,
        precision=None,
        status="cannot run",
    )
    try:
        if getattr(options, "param_dtype", None) == "fp16":
            message = (
                "strategy.param_dtype: fp16 skips steps until its loss scale fits, which one process does not; certify "
                "param_dtype: bf16 instead, which uses the same code"
            )
            raise ConfigError(message, code="certify.unsupported", key="strategy.param_dtype")
        _check(strategy.config, strategy.world_size, ("strategy",))
        part = _run(loaded, strategy, num_steps, folder, folder.with_name("reference"))
    except Stopped:
        raise
    except ParatuneError as error:
        return replace(finding, reason=str(error))
    return replace(finding, **certificate.compare(base, part))


def _check(config: Config, world_size: int, sections: tuple[str, ...]) -> None:
    """Check a strategy before its processes start.

    Raises:
        ParatuneError: The strategy cannot run, because of a problem in these sections.
    """
    problems = [problem for problem in check(config) if any(key.startswith(sections) for key in problem.keys)]
    if problems:
        raise ConfigError("; ".join(problem.message for problem in problems), code=problems[0].code)
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    refuse(reasons_against(config, traits, None, Ranks(world_size)))


def _run(
    loaded: LoadedConfig,
    strategy: StrategyCandidate,
    num_steps: int,
    folder: Path,
    reference: Path | None,
    precision: str | None = None,
) -> certificate.Part:
    """Start the processes of a strategy, wait for them, and return their result.

    Args:
        reference: Folder of the reference; None in the reference itself.
        precision: Precision of training; None for the exact one.

    Raises:
        ParatuneError: The processes failed, or a signal arrived.
    """
    folder.mkdir()
    processes = f"{strategy.world_size} process{'es' * (strategy.world_size > 1)}"
    name = f"reference ({strategy.name})" if reference is None else strategy.name
    log.info("%s: %s%s", name, processes, f" in {precision}" if precision else "")
    traits = strategy_traits(strategy.config.strategy.kind, strategy_options(strategy.config.strategy))
    job = {
        "name": strategy.name,
        "values": strategy.values,
        "source": str(loaded.source),
        "num_steps": num_steps,
        "exact": strategy.config.precision == "fp32" and (traits is None or "precision=fp64" not in traits.excludes),
        "folder": str(folder),
        "reference": str(reference) if reference else None,
        "precision": precision,
        "run_code": is_trusted(loaded.config.model.name),
    }
    records.write_json(folder / "job.json", job)
    code = launch([str(folder / "job.json")], strategy.world_size, program=PROGRAM)
    if code != EXIT_OK:
        raise _error(folder, strategy.world_size, code)
    return certificate.read_part(folder, strategy.world_size)


def _error(folder: Path, world_size: int, code: int) -> ParatuneError:
    """Return the error of the first process that did not fail because of another process."""
    if code == EXIT_STOPPED:
        return Stopped("stopped by a signal; no certificate was written", code="stopped.signal")
    paths = [folder / certificate.error_file(rank) for rank in range(world_size)]
    errors = [records.read_json(path) for path in paths if path.exists()]
    # A LaunchError is the loss of another rank.
    errors.sort(key=lambda error: error["kind"] == "LaunchError")
    if not errors:
        return LaunchError(
            f"its processes ended with exit code {code}, no output", code="launch.process_died", exit_code=code
        )
    kind = {error.__name__: error for error in ParatuneError.__subclasses__()}.get(errors[0]["kind"], LaunchError)
    message = errors[0]["message"]
    return kind(message if errors[0]["known"] else f"{errors[0]['kind']}: {message}", code=errors[0]["code"])


def show(record: Mapping[str, Any], path: Path) -> None:
    from rich.text import Text

    reference = record["reference"]
    tolerance = record["tolerance"][reference["precision"]]
    notes = ", ".join(record["notes"])
    lines = [
        f"{record['run']}: {record['num_steps']} steps of {record['global_batch_size']} samples on "
        f"{'a GPU' if record['device'] == 'cuda' else 'the CPU'} in {reference['precision']}; {notes}.",
        "Compared with one process (single): same samples, same order, same initial weights, and the largest relative "
        f"differences (allowed: gradients {tolerance['gradients']:.0e}, losses {tolerance['losses']:.0e}).",
    ]
    if words := certificate.trained_words(record["trained_tolerance"]):
        trained = reference["trained"]
        difference = "" if trained["gradient_difference"] is None else f"{trained['gradient_difference']:.1e}, "
        reason = f" ({trained['reason']})" if trained["reason"] else ""
        lines.append(f"{words}; one process itself: {difference}{trained['status']}{reason}.")
    for line in lines:
        print_result(Text(plain(line)))
    figures = certificate.COLUMNS[1:-1]
    rows = (
        (one["strategy"], one["world_size"], *certificate.cells(StrategyDifference(**one)), one["status"])
        for one in record["strategies"]
    )
    print_table(("strategy", *figures, "verdict"), rows, right=figures, gap=1)
    for strategy in record["strategies"]:
        if strategy["reason"]:
            print_result(Text(plain(f"{strategy['strategy']}: {strategy['status']}: {strategy['reason']}")))
    print_result(Text(plain(f"verdict: {record['verdict']}   {path}")))
