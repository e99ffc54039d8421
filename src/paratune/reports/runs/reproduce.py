"""How to reproduce runs: commands, configurations, matrix file, batch scripts, versions, data.

All facts come from records; missing ones are shown as n/a.
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.base.secrets import hide_in_words, hide_secrets
from paratune.base.units import NOT_AVAILABLE, format_count
from paratune.config.plain import yaml_lines
from paratune.records.finished import RunRecord
from paratune.records.sweep import SweepRecord
from paratune.reports.document import Listing, Part
from paratune.reports.runs.machine import value_text
from paratune.reports.tables.table import make_table

HEADING = "Reproduce"
KEY = "reproduce"  # configurations and matrix files in report.json, and the section
MAX_CONFIGURATIONS = 24  # number of listed configurations; the records have all
_MAX_SCRIPTS, _MAX_VALUES = 8, 6
_SPLITS = ("train", "validation", "test")


def reproduction(
    shown: Sequence[RunRecord], runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord] = ()
) -> tuple[Part, ...]:
    """Return the parts of the section: a table of facts, then listings.

    `shown` has a run of each configuration under its name, the baseline first.
    """
    facts = make_table(KEY, "Origin of the runs", ("", "Recorded value"), _facts(runs, sweeps).items(), 2)
    parts: list[Part] = [facts, Listing("Original commands", "\n".join(_commands(runs, sweeps)))]
    texts = reproduction_texts(shown, sweeps)
    configurations = dict(zip(texts, itertools.islice(filter(_config, shown), MAX_CONFIGURATIONS), strict=False))
    if configurations:
        parts.append(Listing("Commands to reproduce the runs", "\n".join(_again(configurations, sweeps))))
    parts += [Listing(f"Matrix file: {sweep.matrix}", sweep.matrix_text) for sweep in sweeps if sweep.matrix_text]
    if configurations:
        file, first = next(iter(configurations.items()))
        parts.append(Listing(f"Resolved configuration of {first.name}", texts[file]))
    first_jobs: dict[str, str] = {}  # by their batch scripts
    for session in (session for run in runs for session in run.sessions):
        if isinstance(script := session.run.job.get("batch_script"), str):
            first_jobs.setdefault(script, value_text(session.run.job.get("id")))
    scripts = (Listing(f"Batch script of Slurm job {job}", script) for script, job in first_jobs.items())
    return (*parts, *itertools.islice(scripts, _MAX_SCRIPTS))


def reproduction_texts(shown: Sequence[RunRecord], sweeps: Sequence[SweepRecord] = ()) -> dict[str, str]:
    """Return the resolved configurations, then the matrix files, by names of files that they can be written to."""
    files = {}
    for number, run in enumerate(itertools.islice(filter(_config, shown), MAX_CONFIGURATIONS), start=1):
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
        files[f"{number}-{stem}.yaml"] = _resolved(run)
    for number, sweep in enumerate(sweeps, start=1):
        if sweep.matrix_text is not None:
            files[f"matrix{'' if len(sweeps) == 1 else f'-{number}'}.yaml"] = sweep.matrix_text
    return files


def _resolved(run: RunRecord) -> str:
    """Return the resolved configuration of a run's last session as YAML, with the origin of each value."""
    origins = run.sessions[-1].run.config_origin
    return hide_secrets("\n".join(yaml_lines(_config(run), lambda key: value_text(origins.get(key))))) + "\n"


def _config(run: RunRecord) -> Mapping[str, Any]:
    return run.sessions[-1].run.config


def command_line(words: Sequence[str]) -> str:
    """Return a recorded command for a shell, with the name of the program instead of its path."""
    if not words:
        return NOT_AVAILABLE
    path = Path(words[0])
    name = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([name, *hide_in_words(words[1:])])


def _facts(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> dict[str, str]:
    """Return when, where, by what and on what data the runs were made."""
    sessions = [session for run in runs for session in run.sessions]
    places = [sweep.directory for sweep in sweeps] or [session.run.directory for session in sessions]
    facts = {
        "Matrix file": _distinct(sweep.matrix for sweep in sweeps),
        "Command of the matrix": _distinct(command_line(sweep.command) for sweep in sweeps),
        "Matrix started": _distinct(value_text(sweep.created) for sweep in sweeps),
        "Working directory": _distinct(map(value_text, places)),
        "Runs began": _span(session.run.began or session.run.created for session in sessions),
        "Runs finished": _span(run.summary.finished for run in runs),
        "Code": _distinct(map(_code, sessions)),
    }
    for split in _SPLITS:
        facts[f"Data: {split}"] = _distinct(_data(run, split) for run in runs if run.run.data.get(split) is not None)
    return {label: text for label, text in facts.items() if text}


def _span(dates: Iterable[str | None]) -> str:
    known = sorted(filter(None, dates))
    return " to ".join(dict.fromkeys([known[0], known[-1]])) if known else NOT_AVAILABLE


def _distinct(texts: Iterable[str]) -> str:
    different = list(dict.fromkeys(texts))
    more = len(different) - _MAX_VALUES
    return "; ".join(different[:_MAX_VALUES]) + (f"; and {more} more" if more > 0 else "")


def _code(session: RunRecord) -> str:
    """Return the version of paratune with its commit, and whether the checkout had changes."""
    commit, dirty = (session.run.code.get(key) for key in ("git_commit", "git_dirty"))
    changes = "" if dirty is False or not commit else ", with uncommitted changes" if dirty else ", changes unknown"
    return f"paratune {value_text(session.run.versions.get('paratune'))}, commit {value_text(commit)}{changes}"


def _data(run: RunRecord, split: str) -> str:
    data = run.data(split)
    return f"{value_text(data.source)} ({format_count(data.num_rows)} rows, SHA-256 {value_text(data.fingerprint)})"


def _commands(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> Iterator[str]:
    yield from (command_line(sweep.command) for sweep in sweeps)
    for run in runs:
        yield f"# {run.name}"
        for session in run.sessions:
            if variables := session.run.environment:
                given = shlex.join(f"{name}={value}" for name, value in variables.items())
                yield f"#   variables: {hide_secrets(given)}"
            yield command_line(session.run.command)


def _again(configurations: Mapping[str, RunRecord], sweeps: Sequence[SweepRecord]) -> Iterator[str]:
    """Yield commands that train the configurations again; they are by the names of their files."""
    places = [*(sweep.directory for sweep in sweeps), *(run.run.directory for run in configurations.values())]
    directory = next(filter(None, places), NOT_AVAILABLE)
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
    for name, run in configurations.items():
        size, num_nodes = int(run.run.world_size or 1), len(run.run.hardware)
        nproc = f" --nproc {size}" if size > 1 else ""
        launch = f"  # on {num_nodes} nodes: paratune launch --nodes {num_nodes}" if num_nodes > 1 else ""
        yield f"paratune train {name} --set run.folder=reproduced{nproc}{launch}"
