"""How runs were made and how to make them again: commands, configurations, matrix file, batch scripts, versions, data.

All of it comes from records; what a record does not hold is shown as n/a.
"""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.base.secrets import hide_in_words, hide_secrets
from paratune.base.units import NOT_AVAILABLE
from paratune.config.differences import differences
from paratune.config.plain import one_line, yaml_lines
from paratune.records.run_folder import SLURM_FOLDER
from paratune.records.sweep import SweepRecord
from paratune.report.listing import Listing
from paratune.report.machine import software_facts, written
from paratune.report.read import RunRecord
from paratune.report.section import Part
from paratune.report.tabular import Table, table_of_texts
from paratune.report.text import some_names

HEADING = "Reproduce"
FOLDER = "reproduce"
"""Of the configurations and the matrix file, below the folder of a report."""
MAX_CONFIGURATIONS = 24
"""Configurations that are listed; report.json and the records have all."""
_MAX_SCRIPTS, _MAX_VALUES = 8, 6
_OWN_TO_A_RUN = ("run.name", "run.folder", "data.cache_dir")
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class ReproducedRun:
    """A run, as it stands for its configuration."""

    name: str
    """Of the configuration, or of the run where each stands for itself."""
    run: RunRecord


def reproduction(
    shown: Sequence[ReproducedRun],
    runs: Sequence[RunRecord],
    sweeps: Sequence[SweepRecord] = (),
    folders: Sequence[Path] = (),
) -> tuple[Part, ...]:
    """Return the parts of the section: a table of facts, then listings.

    Args:
        shown: The configurations, the baseline first; each is listed by its difference from the first.
        runs: All runs; their commands and dates are shown.
        sweeps: The matrices that they are of, if they are of any.
        folders: Of the matrices, whose batch scripts are listed.
    """
    shown = _with_configuration(shown)
    parts: list[Part] = [_facts(runs, sweeps)]
    parts.append(Listing("Commands that were used", "\n".join(_commands(runs, sweeps))))
    if shown:
        parts.append(Listing("Commands to run it again", "\n".join(_again(shown, sweeps))))
    parts += [Listing(f"Matrix file: {one.matrix}", one.matrix_text) for one in sweeps if one.matrix_text is not None]
    if shown:
        first = shown[0]
        parts.append(Listing(f"Resolved configuration of {first.name}", resolved(first.run)))
        if len(shown) > 1:
            parts.append(Listing(f"Differences from {first.name}", "\n".join(_differing(shown))))
    parts += _scripts([*folders, *(run.folder for run in runs)])
    if runs:
        parts.append(Listing("Package versions", "\n".join(_versions(runs))))
    return tuple(parts)


def reproduction_files(shown: Sequence[ReproducedRun], sweeps: Sequence[SweepRecord] = ()) -> dict[str, str]:
    """Return the resolved configurations and the matrix files by their names below the folder of a report."""
    shown = _with_configuration(shown)
    files = {f"{FOLDER}/{name}": resolved(each.run) for name, each in zip(_files(shown), shown, strict=False)}
    for number, sweep in enumerate(sweeps, start=1):
        if sweep.matrix_text is not None:
            files[f"{FOLDER}/matrix{'' if len(sweeps) == 1 else f'-{number}'}.yaml"] = sweep.matrix_text
    return files


def _with_configuration(shown: Sequence[ReproducedRun]) -> list[ReproducedRun]:
    return [each for each in shown if _config(each.run)]


def _files(shown: Sequence[ReproducedRun]) -> list[str]:
    """Return the name of the file of each configuration that is listed, no two alike."""
    files: list[str] = []
    for each in shown[:MAX_CONFIGURATIONS]:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", each.name).strip("-.") or "run"
        if re.fullmatch(r"matrix(-\d+)?", stem, re.IGNORECASE):  # the names of the matrix files
            stem = f"run-{stem}"
        # Some file systems do not tell capitals from small letters.
        taken = {name.lower() for name in files}
        names = (f"{stem}{'' if number == 1 else f'-{number}'}.yaml" for number in itertools.count(1))
        files.append(next(name for name in names if name.lower() not in taken))
    return files


def resolved(run: RunRecord) -> str:
    """Return the resolved configuration of a run's last session as YAML, each value with where it came from."""
    session = run.sessions[-1]
    lines = yaml_lines(_config(run), lambda key: written(session.get(("run", "config_origin", key))))
    return hide_secrets("\n".join(lines)) + "\n"


def command_line(words: Any) -> str:
    """Return a recorded command as a shell takes it; the path of the program is shortened to its name."""
    if not isinstance(words, Sequence) or isinstance(words, str) or not words:
        return hide_secrets(written(words or None))
    program, *others = map(str, words)
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([name, *hide_in_words(others)])


def code_text(version: Any, code: Any) -> str:
    """Return the version of paratune with its commit, and whether files differed from it."""
    code = code if isinstance(code, Mapping) else {}
    commit, dirty = code.get("git_commit"), code.get("git_dirty")
    changes = {True: ", with uncommitted changes", False: ""}.get(dirty, ", changes unknown")
    return f"paratune {written(version)}" + (f", commit {commit}{changes}" if commit else ", commit n/a")


def _facts(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> Table:
    rows = []
    for sweep in sweeps:
        rows += [
            ("Matrix file", sweep.matrix),
            ("Command of the matrix", command_line(sweep.command)),
            ("Working directory", written(sweep.directory)),
            ("Matrix started", written(sweep.created)),
        ]
    sessions = [session for run in runs for session in run.sessions]
    rows += [
        ("Runs began", _span([session.get("run.began") or session.get("run.created") for session in sessions])),
        ("Runs finished", _span([run.get("summary.finished") for run in runs])),
        ("Code", _distinct(code_text(one.get("run.versions.paratune"), one.get("run.code")) for one in sessions)),
        *([] if sweeps else [("Working directory", _distinct(written(one.get("run.directory")) for one in sessions))]),
        ("Started by", _distinct(_started(one) for one in sessions)),
    ]
    for split in _SPLITS:
        texts = _distinct(_data(run, split) for run in runs if run.get(f"run.data.{split}") is not None)
        rows += [(f"Data: {split}", texts)] * bool(texts)
    return table_of_texts("reproduce", "How it was made", ("", "As recorded"), rows, 2)


def _span(dates: Sequence[Any]) -> str:
    known = sorted(str(date) for date in dates if date)
    return " to ".join(dict.fromkeys([known[0], known[-1]])) if known else NOT_AVAILABLE


def _distinct(texts: Iterator[str]) -> str:
    found = list(dict.fromkeys(texts))
    more = [f"{len(found) - _MAX_VALUES} more"] if len(found) > _MAX_VALUES else []
    return "; ".join([*found[:_MAX_VALUES], *more])


def _started(session: RunRecord) -> str:
    job = session.get("run.job")
    within = f" in Slurm job {job.get('array_id') or job.get('id')}" if isinstance(job, Mapping) else ""
    return f"{written(session.get('run.launcher') or 'a plain command')}{within}"


def _data(run: RunRecord, split: str) -> str:
    source, fingerprint = (run.get(f"run.data.{split}.{key}") for key in ("source", "fingerprint"))
    rows = run.number(f"run.data.{split}.num_rows")
    count = NOT_AVAILABLE if rows is None else f"{rows:,.0f}"
    return f"{written(source)} ({count} rows, SHA-256 {written(fingerprint)})"


def _commands(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> Iterator[str]:
    yield from (command_line(sweep.command) for sweep in sweeps)
    for run in runs:
        yield f"# {run.name}"
        for session in run.sessions:
            variables = session.get("run.environment")
            if isinstance(variables, Mapping) and variables:
                given = shlex.join(f"{name}={value}" for name, value in variables.items())
                yield f"#   variables: {hide_secrets(given)}"
            yield command_line(session.get("run.command"))


def _again(shown: Sequence[ReproducedRun], sweeps: Sequence[SweepRecord]) -> Iterator[str]:
    places = [*(sweep.directory for sweep in sweeps), *(each.run.get("run.directory") for each in shown)]
    directory = next((str(place) for place in places if place), NOT_AVAILABLE)
    yield f"# in the working directory of the runs ({directory}), where relative paths start;"
    yield "# REPORT is the folder of this report; new runs are written to reproduced/"
    if sweeps:
        yield "# all runs:"
        yield from dict.fromkeys(shlex.join(["paratune", "sweep", sweep.matrix]) for sweep in sweeps)
        yield "# one run of a configuration:"
    for name, each in zip(_files(shown), shown, strict=False):
        size = int(each.run.number("run.world_size") or 1)
        words = ["paratune", "train", f"REPORT/{FOLDER}/{name}", "--set", "run.folder=reproduced"]
        line = shlex.join([*words, *(["--nproc", str(size)] if size > 1 else [])])
        nodes = each.run.get("run.hardware")
        num_nodes = len(nodes) if isinstance(nodes, list) else 1
        yield line if num_nodes <= 1 else f"{line}  # on {num_nodes} nodes: paratune launch --nodes {num_nodes}"


def _differing(shown: Sequence[ReproducedRun]) -> Iterator[str]:
    first, *others = shown
    base = _config(first.run)
    for each in others[: MAX_CONFIGURATIONS - 1]:
        yield f"# {each.name}"
        found = [one for one in differences(base, _config(each.run)) if one[0] not in _OWN_TO_A_RUN]
        before_size, size = (int(one.run.number("run.world_size") or 1) for one in (first, each))
        if before_size != size:
            found.append(("nproc", before_size, size))
        for key, before, now in found:
            yield hide_secrets(f"  {key}: {one_line(now)}  # {first.name}: {one_line(before)}")
        if not found:
            yield "  # the same configuration"
    if len(shown) > MAX_CONFIGURATIONS:
        yield f"# and {len(shown) - MAX_CONFIGURATIONS} more, whose run.json has the configuration"


def _config(run: RunRecord) -> Mapping[str, Any]:
    config = run.sessions[-1].get("run.config")
    return config if isinstance(config, Mapping) else {}


def _scripts(folders: Sequence[Path]) -> Iterator[Listing]:
    """Yield the batch scripts in the folders of runs and matrices; of many the first."""
    places = dict.fromkeys(folder / SLURM_FOLDER for folder in folders)
    files = [path for place in places if place.is_dir() for path in sorted(place.glob("*.sh"))]
    for path in files[:_MAX_SCRIPTS]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            text = f"# cannot be read: {error.strerror}"
        yield Listing(f"Batch script: {path}", hide_secrets(text))


def _versions(runs: Sequence[RunRecord]) -> Iterator[str]:
    of: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        of.setdefault(tuple(software_facts(run).items()), []).append(run.name)
    for facts, names in of.items():
        if len(of) > 1:
            yield f"# {some_names(names, 8)}"
        yield from (f"{name}: {version}" for name, version in facts)
