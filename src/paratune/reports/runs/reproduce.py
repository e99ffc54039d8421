"""How to reproduce runs: commands, configurations, matrix file, batch scripts, versions, data.

All facts come from records; missing ones are shown as n/a.
"""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.secrets import hide_in_words, hide_secrets
from paratune.base.units import NOT_AVAILABLE
from paratune.config.differences import differences
from paratune.config.plain import one_line, yaml_lines
from paratune.records.finished import RunRecord
from paratune.records.run_folder import SLURM_FOLDER
from paratune.records.sweep import SweepRecord
from paratune.reports.document import Listing, Part, Statement
from paratune.reports.runs.machine import software_facts, value_text
from paratune.reports.tables.table import Table, make_table
from paratune.reports.text import some_names

HEADING = "Reproduce"
KEY = "reproduce"
"""Configurations and matrix files in report.json."""
MAX_CONFIGURATIONS = 24
"""Number of listed configurations; report.json and the records have all."""
_MAX_SCRIPTS, _MAX_VALUES = 8, 6
_RUN_SPECIFIC = ("run.name", "run.folder", "data.cache_dir")
_SPLITS = ("train", "validation", "test")


def reproduction(
    shown: Sequence[RunRecord], runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord] = (),
    folders: Sequence[Path] = (),
) -> tuple[Part, ...]:  # fmt: skip
    """Return the parts of the section: a table of facts, then listings.

    Args:
        shown: A run of each configuration under its name, the baseline first; others by their difference from it.
        runs: All runs; their commands and dates are shown.
        sweeps: Their matrices, if any.
        folders: Folders of the matrices, whose batch scripts are listed.
    """
    shown = list(filter(_config, shown))
    parts: list[Part] = [_facts(runs, sweeps)]
    parts.append(Listing("Original commands", "\n".join(_commands(runs, sweeps))))
    if shown:
        parts.append(Listing("Commands to reproduce the runs", "\n".join(_again(shown, sweeps))))
    parts += [
        Listing(f"Matrix file: {sweep.matrix}", sweep.matrix_text) for sweep in sweeps if sweep.matrix_text is not None
    ]
    if shown:
        first = shown[0]
        parts.append(Listing(f"Resolved configuration of {first.name}", resolved(first)))
        if len(shown) > 1:
            parts.append(Listing(f"Differences from {first.name}", "\n".join(_differing(shown))))
    parts += itertools.islice(_scripts([*folders, *(run.folder for run in runs)], runs), _MAX_SCRIPTS)
    if runs:
        parts.append(Listing("Package versions", "\n".join(_versions(runs))))
    return tuple(parts)


def reproduction_statements(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> tuple[Statement, ...]:
    """Return date, command, matrix file, version and data of a matrix, for the top of its report."""
    sessions = [session for run in runs for session in run.sessions]
    texts = {
        "Date": _span([str(session.run.began or session.run.created or "")[:10] for session in sessions]),
        "Command": _distinct(command_line(sweep.command) for sweep in sweeps),
        "Matrix file": _distinct(
            f"{sweep.matrix} (its text is below)" if sweep.matrix_text else sweep.matrix for sweep in sweeps
        ),
        "Version": _distinct(code_text(item.run.versions.get("paratune"), item.run.code) for item in sessions),
        "Data": _distinct(
            f"{split}: {_data(run, split)}" for split in _SPLITS for run in runs if run.run.data.get(split) is not None
        ),
    }
    known = {label: text for label, text in texts.items() if text}
    return tuple(
        Statement(label, text, None, "reproduce" if number == len(known) else "")
        for number, (label, text) in enumerate(known.items(), start=1)
    )


def reproduction_texts(shown: Sequence[RunRecord], sweeps: Sequence[SweepRecord] = ()) -> dict[str, str]:
    """Return the resolved configurations and matrix files by the names of files that they can be written to."""
    shown = list(filter(_config, shown))
    files = {name: resolved(run) for name, run in zip(_files(shown), shown, strict=False)}
    for number, sweep in enumerate(sweeps, start=1):
        if sweep.matrix_text is not None:
            files[f"matrix{'' if len(sweeps) == 1 else f'-{number}'}.yaml"] = sweep.matrix_text
    return files


def _files(shown: Sequence[RunRecord]) -> list[str]:
    """Return a unique file name for each listed configuration."""
    files: list[str] = []
    for run in shown[:MAX_CONFIGURATIONS]:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
        if re.fullmatch(r"matrix(-\d+)?", stem, re.IGNORECASE):  # the names of the matrix files
            stem = f"run-{stem}"
        # Some file systems ignore case.
        taken = {name.lower() for name in files}
        names = (f"{stem}{'' if number == 1 else f'-{number}'}.yaml" for number in itertools.count(1))
        files.append(next(name for name in names if name.lower() not in taken))
    return files


def resolved(run: RunRecord) -> str:
    """Return the resolved configuration of a run's last session as YAML, with the origin of each value."""
    session = run.sessions[-1]
    lines = yaml_lines(_config(run), lambda key: value_text(session.run.config_origin.get(key)))
    return hide_secrets("\n".join(lines)) + "\n"


def command_line(words: Any) -> str:
    """Return a recorded command for a shell, with the name of the program instead of its path."""
    if not isinstance(words, Sequence) or isinstance(words, str) or not words:
        return hide_secrets(value_text(words or None))
    program, *others = map(str, words)
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([name, *hide_in_words(others)])


def code_text(version: Any, code: Any) -> str:
    """Return the version of paratune with its commit, and whether the checkout had changes."""
    code = code if isinstance(code, Mapping) else {}
    commit, dirty = code.get("git_commit"), code.get("git_dirty")
    changes = {True: ", with uncommitted changes", False: ""}.get(dirty, ", changes unknown")
    return f"paratune {value_text(version)}" + (f", commit {commit}{changes}" if commit else ", commit n/a")


def _facts(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> Table:
    rows = []
    for sweep in sweeps:
        rows += [
            ("Matrix file", sweep.matrix),
            ("Command of the matrix", command_line(sweep.command)),
            ("Working directory", value_text(sweep.directory)),
            ("Matrix started", value_text(sweep.created)),
        ]
    sessions = [session for run in runs for session in run.sessions]
    rows += [
        ("Runs began", _span([session.run.began or session.run.created for session in sessions])),
        ("Runs finished", _span([run.summary.finished for run in runs])),
        ("Code", _distinct(code_text(item.run.versions.get("paratune"), item.run.code) for item in sessions)),
        ("Started by", _distinct(_started(item) for item in sessions)),
    ]
    if not sweeps:
        directories = _distinct(value_text(session.run.directory) for session in sessions)
        rows.append(("Working directory", directories))
    for split in _SPLITS:
        texts = _distinct(_data(run, split) for run in runs if run.run.data.get(split) is not None)
        rows += [(f"Data: {split}", texts)] * bool(texts)
    return make_table("reproduce", "Origin of the runs", ("", "Recorded value"), rows, 2)


def _span(dates: Sequence[Any]) -> str:
    known = sorted(str(date) for date in dates if date)
    return " to ".join(dict.fromkeys([known[0], known[-1]])) if known else NOT_AVAILABLE


def _distinct(texts: Iterator[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    more = [f"{len(distinct) - _MAX_VALUES} more"] if len(distinct) > _MAX_VALUES else []
    return "; ".join([*distinct[:_MAX_VALUES], *more])


def _started(session: RunRecord) -> str:
    job = session.run.job
    within = f" in Slurm job {job.get('array_id') or job.get('id')}" if job else ""
    return f"{value_text(session.run.launcher or 'a plain command')}{within}"


def _data(run: RunRecord, split: str) -> str:
    data = run.data(split)
    source, fingerprint, rows = data.source, data.fingerprint, data.num_rows
    count = NOT_AVAILABLE if rows is None else f"{rows:,.0f}"
    return f"{value_text(source)} ({count} rows, SHA-256 {value_text(fingerprint)})"


def _commands(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> Iterator[str]:
    yield from (command_line(sweep.command) for sweep in sweeps)
    for run in runs:
        yield f"# {run.name}"
        for session in run.sessions:
            if variables := session.run.environment:
                given = shlex.join(f"{name}={value}" for name, value in variables.items())
                yield f"#   variables: {hide_secrets(given)}"
            yield command_line(session.run.command)


def _again(shown: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> Iterator[str]:
    places = [*(sweep.directory for sweep in sweeps), *(run.run.directory for run in shown)]
    directory = next((str(place) for place in places if place), NOT_AVAILABLE)
    yield f"# in the working directory of the runs ({directory}), where relative paths start;"
    yield "# REPORT is the folder of this report; this writes the configurations, and new runs are in reproduced/:"
    yield (
        f"for name in $(jq -r '.{KEY} | keys[]' REPORT/report.json); do "
        f'jq -rj --arg name "$name" \'.{KEY}[$name]\' REPORT/report.json > "$name"; done'
    )
    if sweeps:
        yield "# all runs:"
        yield from dict.fromkeys(shlex.join(["paratune", "sweep", sweep.matrix]) for sweep in sweeps)
        yield "# one run of a configuration:"
    for name, run in zip(_files(shown), shown, strict=False):
        size = int(run.run.world_size or 1)
        words = ["paratune", "train", name, "--set", "run.folder=reproduced"]
        line = shlex.join([*words, *(["--nproc", str(size)] if size > 1 else [])])
        nodes = run.run.hardware
        num_nodes = len(nodes) if isinstance(nodes, list) else 1
        yield line if num_nodes <= 1 else f"{line}  # on {num_nodes} nodes: paratune launch --nodes {num_nodes}"


def _differing(shown: Sequence[RunRecord]) -> Iterator[str]:
    first, *others = shown
    base = _config(first)
    for run in others[: MAX_CONFIGURATIONS - 1]:
        yield f"# {run.name}"
        changes = [change for change in differences(base, _config(run)) if change[0] not in _RUN_SPECIFIC]
        before_size, size = (int(member.run.world_size or 1) for member in (first, run))
        if before_size != size:
            changes.append(("nproc", before_size, size))
        for key, before, now in changes:
            yield hide_secrets(f"  {key}: {one_line(now)}  # {first.name}: {one_line(before)}")
        if not changes:
            yield "  # the same configuration"
    if len(shown) > MAX_CONFIGURATIONS:
        yield f"# and {len(shown) - MAX_CONFIGURATIONS} more, whose run.json has the configuration"


def _config(run: RunRecord) -> Mapping[str, Any]:
    return run.sessions[-1].run.config


def _scripts(folders: Sequence[Path], runs: Sequence[RunRecord]) -> Iterator[Listing]:
    """Yield the batch scripts in the folders of runs and matrices, then the scripts that only runs recorded."""
    places = dict.fromkeys(folder / SLURM_FOLDER for folder in folders)
    files = [path for place in places if place.is_dir() for path in sorted(place.glob("*.sh"))]
    shown: set[str] = set()
    for path in files:
        try:
            text = hide_secrets(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            text = f"# cannot be read: {error.strerror}"
        shown.add(text.rstrip())
        yield Listing(f"Batch script: {path}", text)
    for session in (session for run in runs for session in run.sessions):
        script = session.run.job.get("batch_script")
        if isinstance(script, str) and script.rstrip() not in shown:
            shown.add(script.rstrip())
            yield Listing(f"Batch script of Slurm job {value_text(session.run.job.get('id'))}", script)


def _versions(runs: Sequence[RunRecord]) -> Iterator[str]:
    names_by_versions = grouped((tuple(software_facts(run).items()), run.name) for run in runs)
    for facts, names in names_by_versions.items():
        if len(names_by_versions) > 1:
            yield f"# {some_names(names, 8)}"
        yield from (f"{name}: {version}" for name, version in facts)
