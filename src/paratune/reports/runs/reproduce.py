"""How to reproduce runs: commands, configurations, matrix file, batch scripts, versions, data.

All facts come from records; missing ones are shown as n/a.
"""

import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from paratune.base.secrets import hide_in_words, hide_secrets
from paratune.base.units import NOT_AVAILABLE, format_count
from paratune.config.plain import yaml_lines
from paratune.records.finished import RunRecord
from paratune.records.sweep import SweepRecord
from paratune.reports.document import Listing, Part
from paratune.reports.runs.machine import value_text
from paratune.reports.tables.table import make_table

REPRODUCE_HEADING = "Reproduce"
REPRODUCE = "reproduce"  # configurations and matrix files in report.json, and the section
MAX_CONFIGURATIONS = 24  # number of listed configurations; the records have all
_MAX_SCRIPTS, _MAX_VALUES = 8, 6


def reproduction(
    shown: Sequence[RunRecord], runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord] = ()
) -> tuple[Part, ...]:
    """Return the parts of the section: a table of facts, then listings.

    `shown` has a run of each configuration under its name, the baseline first.
    """
    facts = make_table(REPRODUCE, "Origin of the runs", ("", "Recorded value"), _facts(runs, sweeps).items(), 2)
    commands = [command_line(sweep.command) for sweep in sweeps]
    for run in runs:
        commands.append(f"# {run.name}")
        for session in run.sessions:
            if variables := session.run.environment:
                given = shlex.join(f"{name}={value}" for name, value in variables.items())
                commands.append(f"#   variables: {hide_secrets(given)}")
            commands.append(command_line(session.run.command))
    parts: list[Part] = [facts, Listing("Original commands", "\n".join(commands))]
    configured = _configured(shown)
    if configured:
        parts.append(
            Listing(
                "Commands to reproduce the runs",
                "\n".join(_again({name: run for name, (run, _) in configured.items()}, sweeps)),
            )
        )
    parts += [Listing(f"Matrix file: {sweep.matrix}", sweep.matrix_text) for sweep in sweeps if sweep.matrix_text]
    for first, text in itertools.islice(configured.values(), 1):
        parts.append(Listing(f"Resolved configuration of {first.name}", text))
    first_jobs: dict[str, str] = {}  # by their batch scripts
    for session in (session for run in runs for session in run.sessions):
        if isinstance(script := session.run.job.get("batch_script"), str):
            first_jobs.setdefault(script, value_text(session.run.job.get("id")))
    scripts = (Listing(f"Batch script of Slurm job {job}", script) for script, job in first_jobs.items())
    return (*parts, *itertools.islice(scripts, _MAX_SCRIPTS))


def reproduction_texts(shown: Sequence[RunRecord], sweeps: Sequence[SweepRecord] = ()) -> dict[str, str]:
    """Return the resolved configurations, then the matrix files, by names of files that they can be written to."""
    files = {name: text for name, (_, text) in _configured(shown).items()}
    for number, sweep in enumerate(sweeps, start=1):
        if sweep.matrix_text is not None:
            files[f"matrix{'' if len(sweeps) == 1 else f'-{number}'}.yaml"] = sweep.matrix_text
    return files


def _configured(shown: Sequence[RunRecord]) -> dict[str, tuple[RunRecord, str]]:
    """Return the first runs by file, each with the configuration of its last session as YAML with all origins."""
    found = {}
    runs = itertools.islice((run for run in shown if run.sessions[-1].run.config), MAX_CONFIGURATIONS)
    for number, run in enumerate(runs, start=1):
        stem, last = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run", run.sessions[-1].run
        origins = defaultdict(lambda: NOT_AVAILABLE, {key: value_text(of) for key, of in last.config_origin.items()})
        text = "\n".join(yaml_lines(last.config, origins.__getitem__))
        found[f"{number}-{stem}.yaml"] = run, f"{hide_secrets(text)}\n"
    return found


def command_line(words: Sequence[str]) -> str:
    """Return a recorded command for a shell, with the name of the program instead of its path."""
    if not words:
        return NOT_AVAILABLE
    path = Path(words[0])
    name = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([name, *hide_in_words(words[1:])])


def _facts(runs: Sequence[RunRecord], sweeps: Sequence[SweepRecord]) -> dict[str, str]:
    sessions = [session.run for run in runs for session in run.sessions]
    dates = (session.began or session.created for session in sessions), (run.summary.finished for run in runs)
    began, finished = (
        [" to ".join(dict.fromkeys((known[0], known[-1]))) if known else NOT_AVAILABLE]
        for known in (sorted(filter(None, of_runs)) for of_runs in dates)
    )
    code = []
    for session in sessions:
        commit, dirty = (session.code.get(key) for key in ("git_commit", "git_dirty"))
        changes = "" if dirty is False or not commit else ", with uncommitted changes" if dirty else ", changes unknown"
        code.append(f"paratune {value_text(session.versions.get('paratune'))}, commit {value_text(commit)}{changes}")
    facts: dict[str, Iterable[str]] = {
        "Working directory": map(value_text, [own.directory for own in sweeps or sessions]),
        "Runs began": began,
        "Runs finished": finished,
        "Code": code,
    }
    for split in ("train", "validation", "test"):
        data = [run.data(split) for run in runs if run.run.data.get(split) is not None]
        facts[f"Data: {split}"] = [
            f"{value_text(own.source)} ({format_count(own.num_rows)} rows, SHA-256 {value_text(own.fingerprint)})"
            for own in data
        ]
    found = {}
    for label, texts in facts.items():
        different = list(dict.fromkeys(texts))
        more = [f"and {len(different) - _MAX_VALUES} more"] if len(different) > _MAX_VALUES else []
        found[label] = "; ".join([*different[:_MAX_VALUES], *more])
    return {label: text for label, text in found.items() if text}


def _again(configurations: Mapping[str, RunRecord], sweeps: Sequence[SweepRecord]) -> Iterator[str]:
    """Yield commands that train the configurations again; they are by the names of their files."""
    places = [*(sweep.directory for sweep in sweeps), *(run.run.directory for run in configurations.values())]
    directory = next(filter(None, places), NOT_AVAILABLE)
    yield f"# in the working directory of the runs ({directory}), where relative paths start;"
    yield "# REPORT is the folder of this report; this writes the configurations, and new runs are in reproduced/:"
    yield (
        f"for name in $(jq -r '.{REPRODUCE} | keys[]' REPORT/report.json); do "
        f'jq -rj --arg name "$name" \'.{REPRODUCE}[$name]\' REPORT/report.json > "$name"; done'
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
