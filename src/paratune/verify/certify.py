"""Runs the same few steps under several strategies, and compares them with one process: `paratune certify`.

`paratune publish` and `verify` start such steps, too.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paratune import records
from paratune.base.units import utc_now
from paratune.config.candidates import StrategyCandidate
from paratune.config.check import check
from paratune.config.feasibility import Ranks, reasons_against
from paratune.config.load import LoadedConfig
from paratune.config.permission import is_trusted
from paratune.config.problems import refuse
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
_REFERENCE = "reference"
"""Folder of the reference, below the scratch folder."""


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
    base = run_part(loaded, reference, num_steps, scratch / _REFERENCE, reference=None)
    about = records.read_json(scratch / _REFERENCE / records.rank_file("outcome", 0))["about"]
    precision = _trained_precision(loaded.config.precision, base.precision, str(about["device"]))
    trial = _Trial(loaded, base, num_steps, precision, scratch)
    one_process, notes = None, [f"{base.batch_layout} rows"]
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
    statuses = [*(finding.status for finding in findings), *([one_process["status"]] if one_process else [])]
    trained = {} if trial.precision is None else {trial.precision: asdict(TRAINED_TOLERANCES[trial.precision])}
    return {
        "schema_version": records.SCHEMA_VERSION,
        "created": utc_now(),
        # One that could not run is no difference, and shows no equality.
        "verdict": "differs" if "differs" in statuses else "incomplete" if "cannot run" in statuses else "holds",
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
        "trained_tolerance": trained,
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
    """Return the precision of training if it needs a certificate in addition to the exact one, else None."""
    # On a CPU fp32 uses the same kernels as fp64; on a GPU it has its own.
    is_exact = configured == exact or (configured == "fp32" and device == "cpu")
    return configured if not is_exact and configured in TRAINED_TOLERANCES else None


@dataclass(frozen=True)
class _Trial:
    loaded: LoadedConfig
    base: certificate.Part
    """Result of the reference."""
    num_steps: int
    precision: str | None
    """Precision of training; None if it is not certified separately."""
    scratch: Path

    def _part(self, strategy: StrategyCandidate, folder: str, precision: str | None) -> certificate.Part:
        reference = str(self.scratch / _REFERENCE)
        return run_part(self.loaded, strategy, self.num_steps, self.scratch / folder, precision, reference=reference)

    def finding(self, strategy: StrategyCandidate, folder: str) -> StrategyDifference:
        """Run one strategy in the exact precision and in that of training; a failure is a finding, but for a signal.

        A strategy that supports only the precision of training runs once.
        """
        section, world_size = strategy.config.strategy, strategy.world_size
        options = strategy_options(section)
        finding = StrategyDifference(strategy.name, section.kind, options, world_size, None, "cannot run")
        try:
            if getattr(section, "param_dtype", None) == "fp16":
                message = "strategy.param_dtype: fp16 skips steps until its loss scale fits, which one process does "
                message += "not; certify param_dtype: bf16 instead, which uses the same code"
                raise ConfigError(message, code="certify.unsupported", key="strategy.param_dtype")
            part = self._part(strategy, folder, None)
        except Stopped:
            raise
        except ParatuneError as error:
            return replace(finding, reason=str(error))
        if strategy.layout and part.batch_layout == self.base.batch_layout:
            return replace(finding, reason=f"the reference has {part.batch_layout} rows, too: nothing is compared")
        finding = replace(finding, **certificate.compare(self.base, part))
        if self.precision in (None, finding.precision):
            return finding
        trained = self.trained(strategy, f"{folder}-trained")
        # The worse status of both precisions counts.
        status = max(finding.status, trained["status"], key=("holds", "cannot run", "differs").index)
        reasons = [finding.reason, trained["reason"] and f"in {trained['precision']}: {trained['reason']}"]
        return replace(finding, status=status, reason="; ".join(filter(None, reasons)) or None, trained=trained)

    def trained(self, strategy: StrategyCandidate, folder: str, *, refuses: bool = False) -> dict[str, Any]:
        """Run one strategy in the precision of training; errors of configuration or device are raised if `refuses`."""
        assert self.precision is not None
        try:
            part = self._part(strategy, folder, self.precision)
        except Stopped:
            raise
        except ParatuneError as error:
            if refuses and isinstance(error, ConfigError):
                raise
            known = {"precision": self.precision, "status": "cannot run", "reason": str(error)}
            return {**known, "gradient_difference": None}
        return certificate.compare(self.base, part, trained=self.precision)


def run_part(
    loaded: LoadedConfig,
    strategy: StrategyCandidate,
    num_steps: int,
    folder: Path,
    precision: str | None = None,
    *,
    reference: str | None,
    code: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> certificate.Part:
    """Start the processes of a strategy, unless it cannot run, wait for them, and return their result.

    Args:
        folder: New folder for their files.
        precision: Precision of training; None for the exact one.
        reference: Folder of the reference, None in the reference itself, "" where only norms are compared.
        code: Of a record: as in `FirstStepsJob`; None for a configuration of the user.
        environment: Variables of the processes.

    Raises:
        ParatuneError: It cannot run here, or a signal came.
    """
    world_size = strategy.world_size
    config = strategy.config.model_copy(update={"precision": precision} if precision else {})
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    if reference is not None:
        sections = ("strategy", "batch.layout", *(["precision"] if precision else []))
        if problems := [found for found in check(config) if any(key.startswith(sections) for key in found.keys)]:
            raise ConfigError("; ".join(problem.message for problem in problems), code=problems[0].code)
        refuse(reasons_against(config, traits, None, Ranks(world_size)))
    name = f"reference ({strategy.name})" if reference is None else strategy.name
    processes = f"{world_size} process{'es' * (world_size > 1)}"
    log.info("%s: %s%s", name, processes, f" in {precision}" if precision else "")
    job = {
        "name": strategy.name,
        "values": strategy.values,
        "source": str(loaded.source),
        "num_steps": num_steps,
        "exact": strategy.config.precision == "fp32" and (traits is None or "precision=fp64" not in traits.excludes),
        "folder": str(folder),
        "reference": reference,
        "precision": precision,
        "run_code": is_trusted(loaded.config.model.name) if code is None else code == "models",
        "is_own": code != "",
    }
    start_job(folder, job, world_size, environment)
    return certificate.read_part(folder, world_size)


def start_job(
    folder: Path, job: Mapping[str, Any], world_size: int, environment: Mapping[str, str] | None = None
) -> None:
    """Run a job of `paratune.training.certify` in its processes, with its files in a new folder.

    Raises:
        ParatuneError: The error of the first process that did not fail because of another process.
    """
    folder.mkdir()
    records.write_json(folder / "job.json", job)
    code = launch([str(folder / "job.json")], world_size, program=PROGRAM, environment=environment)
    if code == EXIT_STOPPED:
        raise Stopped("stopped by a signal; nothing was written", code="stopped.signal")
    if code == EXIT_OK:
        return
    paths = [folder / records.rank_file("error", rank) for rank in range(world_size)]
    errors = [records.read_json(path) for path in paths if path.exists()]
    # A LaunchError is the loss of another rank.
    errors.sort(key=lambda error: error["kind"] == "LaunchError")
    if not errors:
        message = f"its processes ended with exit code {code}, no output"
        raise LaunchError(message, code="launch.rank_lost", exit_code=code)
    kind = {error.__name__: error for error in ParatuneError.__subclasses__()}.get(errors[0]["kind"], LaunchError)
    message = errors[0]["message"]
    raise kind(message if errors[0]["known"] else f"{errors[0]['kind']}: {message}", code=errors[0]["code"])


def show(record: Mapping[str, Any], path: Path) -> None:
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
        print_result(line)
    figures = certificate.COLUMNS[1:-1]
    rows = (
        (one["strategy"], one["world_size"], *certificate.cells(StrategyDifference(**one)), one["status"])
        for one in record["strategies"]
    )
    print_table(("strategy", *figures, "verdict"), rows, right=figures, gap=1)
    for strategy in record["strategies"]:
        if strategy["reason"]:
            print_result(f"{strategy['strategy']}: {strategy['status']}: {strategy['reason']}")
    print_result(f"verdict: {record['verdict']}   {path}")
