"""How runs were executed besides their configuration: threads, usable cores and the load by other programs."""

from collections.abc import Sequence

from paratune.base.units import format_share
from paratune.records.finished import RunRecord, number_in
from paratune.reports.measures import over_sessions, usable_cores
from paratune.reports.runs.sameness import Difference
from paratune.verdicts.order import load_by_others
from paratune.verdicts.words import LEAST_LOAD_DIFFERENCE

NUM_THREADS, USABLE_CORES, OTHER_LOAD = "num_threads", "num_usable_cores", "other_load"
LABELS = {
    NUM_THREADS: "Threads of each process",
    USABLE_CORES: "Usable cores",
    OTHER_LOAD: "Load by other programs (share of all cores)",
}
SOURCES = {
    NUM_THREADS: "run.num_threads",
    USABLE_CORES: "run.hardware[].num_usable_cores",
    OTHER_LOAD: "summary.utilisation.machine_mean, summary.utilisation.mean",
}
"""Fields of the record from which each value is computed."""


def own_share(run: RunRecord) -> float | None:
    """Return the share of its own cores that a run on CPUs kept busy: those that it may use and has threads for."""
    mean, threads, size = run.summary.utilisation.mean, run.run.num_threads, run.run.world_size
    cores = [number_in(node.get("num_logical_cores")) for node in run.run.hardware]
    usable = usable_cores(run)
    if run.summary.utilisation.kind != "cpu" or not cores or None in cores or not usable:
        return None
    if mean is None or not threads or not size:
        return None
    return mean * sum(number or 0.0 for number in cores) / min(usable, threads * size)


def execution_differences(runs: Sequence[RunRecord]) -> tuple[Difference, ...]:
    """Return the threads, usable cores and loads that differ between runs; unknown values are not compared.

    The load differs from 5 percent points of all cores on, the difference that verdicts mention.
    """
    differing: dict[str, dict[str, str]] = {}
    threads = {run.name: run.session_values("run.num_threads") for run in runs}
    are_known = all(None not in values for values in threads.values())
    if are_known and len(set(map(str, threads.values()))) > 1:
        differing[NUM_THREADS] = {name: over_sessions(values) for name, values in threads.items()}
    cores = {run.name: usable_cores(run) for run in runs}
    if None not in cores.values() and len(set(cores.values())) > 1:
        differing[USABLE_CORES] = {name: f"{number:g}" for name, number in cores.items()}
    loads = {run.name: load for run in runs if (load := load_by_others(run)) is not None}
    if len(loads) == len(runs) > 0 and max(loads.values()) - min(loads.values()) >= LEAST_LOAD_DIFFERENCE:
        differing[OTHER_LOAD] = {name: format_share(load) for name, load in loads.items()}
    return tuple(
        Difference(f"machine.{key}", LABELS[key], values, dict.fromkeys(values, SOURCES[key]))
        for key, values in differing.items()
    )
