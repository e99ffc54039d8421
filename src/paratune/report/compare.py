"""What differs between runs: whether they trained the same thing, which settings differ, and how far seeds spread."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.config.differences import flatten
from paratune.report.read import RunRecord

_UNKNOWN = None
_SAME: tuple[tuple[str, str, Callable[[RunRecord], Any]], ...] = (
    ("task", "the task and its labels", lambda run: _known(run.get("run.task"))),
    ("train_data", "the training data (fingerprint)", lambda run: run.get("run.data.train.fingerprint")),
    ("validation_data", "the validation data (fingerprint)", lambda run: _fingerprint(run, "validation")),
    ("test_data", "the test data (fingerprint)", lambda run: _fingerprint(run, "test")),
    ("tokens", "how texts become tokens", lambda run: _tokens(run)),
    ("initial_weights", "the initial weights (init_fingerprint)", lambda run: run.get("run.model.init_fingerprint")),
    ("model_overrides", "model.overrides", lambda run: _settings(run, "model", ("overrides",))),
    ("global_batch_size", "the global batch size", lambda run: run.get("run.batch.global_batch_size")),
    ("plan", "the number of steps and epochs", lambda run: _steps(run)),
    ("train_settings", "the optimization (section train)", lambda run: _optimization(run)),
    ("weights", "the weights that passes read (strategy.param_dtype)", lambda run: _weights(run)),
    ("kept_model", "which model is kept", lambda run: _kept_model(run)),
    ("seed", "the seed", lambda run: run.get("run.seed")),
)
"""What must be equal for two runs to be the same experiment; how the work is spread over devices is not among it."""

_ABSENT = "no such setting"
_OWN_TO_A_RUN = {"run.name", "run.folder", "data.cache_dir"}
_HOW_ALONE = {
    *("batch.layout", "data.cache_dir", "data.num_workers", "data.prefetch_factor"),
    *("train.activation_checkpointing", "train.compile", "train.deterministic"),
}
"""Settings of sections that decide what is trained, which say how it is computed and nothing else."""
_FOLLOWS_THE_SEED = {"seed", "initial_weights"}
_OF_STEPS = {"tokens", "model_overrides", "global_batch_size", "plan", "train_settings", "weights"}
"""What a run without steps, a fitted baseline, does not have."""


@dataclass(frozen=True)
class Difference:
    """Something in which runs differ."""

    key: str
    label: str
    values: Mapping[str, Any]
    """The value of each run, by the run's name; a setting that a run does not have has no value for it."""
    origins: Mapping[str, str]
    """Where each run's value came from: a line of a file, --set, or default."""


@dataclass(frozen=True)
class Sameness:
    """Whether the runs trained the same thing."""

    verdict: str
    """same, other_seeds, different, or unknown: a run does not record all that decides it."""
    differ: tuple[Difference, ...]
    unknown: tuple[str, ...]
    """What cannot be told because a run has no record of it."""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        labels = "; ".join(difference.label for difference in self.differ)
        match self.verdict:
            case "same":
                return (
                    "Same experiment: all runs had the same data, initial weights, seed, global batch and schedule, so "
                    "differences in time, memory and quality come from how they were run."
                )
            case "other_seeds":
                return (
                    "One experiment with several seeds: sample order, new weights and dropout differ. Read scores as a "
                    "spread; times and memory compare."
                )
            case "unknown":
                missing = "; ".join(self.unknown)
                return f"It is unknown whether these runs trained the same thing. Not recorded: {missing}."
        return (
            "These runs did not train the same thing: their scores and times cannot be compared. "
            f"They differ in {labels}."
        )


@dataclass(frozen=True)
class SeedSpread:
    """One figure over runs that are equal but for their seed."""

    runs: tuple[str, ...]
    mean: float
    deviation: float
    """Sample standard deviation (n - 1)."""
    low: float
    high: float


def compare(runs: Sequence[RunRecord]) -> Sameness:
    """Return whether runs trained the same thing, and what says otherwise."""
    differ, unknown = [], []
    for key, label, read in _SAME:
        # That a baseline was fitted is one difference, and not one more for each thing that only steps have.
        having = [run for run in runs if not (run.is_baseline and key in _OF_STEPS)]
        values = {run.name: _of_baseline(key, run) or read(run) for run in having}
        if len({_canonical(value) for value in values.values() if value is not _UNKNOWN}) > 1:
            differ.append(Difference(key, label, _only_what_differs(values), {}))
        elif any(value is _UNKNOWN for value in values.values()):
            unknown.append(label)
    if not {difference.key for difference in differ} <= _FOLLOWS_THE_SEED:
        verdict = "different"
    elif unknown and len(runs) > 1:
        verdict = "unknown"
    elif any(difference.key == "seed" for difference in differ):
        verdict = "other_seeds"
    else:
        verdict = "different" if differ else "same"
    return Sameness(verdict, tuple(differ), tuple(unknown) if len(runs) > 1 else ())


def decides_what_is_trained(key: str) -> bool:
    """Return whether a setting may be why runs trained something different, as those of loader workers are not."""
    return key not in _HOW_ALONE


def experiment_key(run: RunRecord) -> str | None:
    """Return a text that runs share when, and only when, they trained the same thing; None where that is not known."""
    values = [_of_baseline(key, run) or read(run) for key, _, read in _SAME]
    return None if any(value is _UNKNOWN for value in values) else _canonical(values)


def config_differences(runs: Sequence[RunRecord]) -> tuple[Difference, ...]:
    """Return the settings of the resolved configurations that are not the same in all runs, by key."""
    flat = {run.name: _settings_of_sessions(run) for run in runs}
    keys = sorted({key for settings in flat.values() for key in settings} - _OWN_TO_A_RUN)
    differences = []
    for key in keys:
        values = {name: settings[key] for name, settings in flat.items() if key in settings}
        if len(values) < len(runs) or len({_canonical(value) for value in values.values()}) > 1:
            differences.append(Difference(key, key, values, {run.name: _origin(run, key) for run in runs}))
    return tuple(differences)


def seed_groups(runs: Sequence[RunRecord]) -> list[tuple[RunRecord, ...]]:
    """Return the groups of two or more runs whose configuration, data and world size are equal but for the seed."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(configuration_key(run), []).append(run)
    return [tuple(group) for group in groups.values() if len({run.get("run.seed") for run in group}) > 1]


def configuration_key(run: RunRecord) -> str:
    """Return what is equal of runs whose configuration, data and world size are equal but for the seed."""
    settings = {key: value for key, value in _settings_of_sessions(run).items() if key not in _OWN_TO_A_RUN}
    settings.pop("run.seed", None)
    data = [_fingerprint(run, split) for split in ("train", "validation", "test")]
    return _canonical([settings, data, run.course("run.world_size")])


def spread(values: Mapping[str, float]) -> SeedSpread:
    """Return mean and spread of one figure over runs, given by run name; at least two."""
    numbers = list(values.values())
    return SeedSpread(tuple(values), statistics.fmean(numbers), statistics.stdev(numbers), min(numbers), max(numbers))


def _of_baseline(key: str, run: RunRecord) -> Any:
    """Return what a fitted baseline has in place of initial weights, and of what only steps have; None of a model."""
    if not run.is_baseline or key not in {*_OF_STEPS, "initial_weights"}:
        return None
    return {"baseline": run.get("run.config.baseline")} if key == "initial_weights" else "none: a fitted baseline"


def _only_what_differs(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out of sections what all of them agree on."""
    if not all(isinstance(value, Mapping) for value in values.values()):
        return values
    flat = {name: _flat(value) for name, value in values.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    differing = [key for key in keys if len({_canonical(settings.get(key)) for settings in flat.values()}) > 1]
    return {name: {key: settings.get(key) for key in differing} for name, settings in flat.items()}


def _fingerprint(run: RunRecord, split: str) -> Any:
    """Return the fingerprint of a split; a run without that split says so, which is not the same as not known."""
    data = run.get("run.data")
    if not isinstance(data, Mapping) or split not in data:
        return _UNKNOWN
    return "none" if data[split] is None else run.get(f"run.data.{split}.fingerprint")


def _settings(run: RunRecord, section: str, keys: tuple[str, ...] | None) -> Any:
    values = run.get(f"run.config.{section}")
    if not isinstance(values, Mapping):
        return _UNKNOWN
    return dict(values) if keys is None else {key: values.get(key) for key in keys}


def _tokens(run: RunRecord) -> Any:
    """Return how samples were cut into tokens; another tokenizer shows in their number."""
    settings = _settings(run, "data", ("max_length", "truncation"))
    return settings and {**settings, "num_tokens": run.get("run.data.train.num_tokens")}


def _optimization(run: RunRecord) -> Any:
    """Return the section train without its length, which the plan has, and without what saves memory alone."""
    left_out = {"epochs", "max_steps", "activation_checkpointing", "compile", "deterministic"}
    settings = _settings(run, "train", None)
    return settings and {key: value for key, value in settings.items() if key not in left_out}


def _weights(run: RunRecord) -> Any:
    """Return the dtype of the weights that passes read; strategies without the option read them in fp32."""
    settings = _settings(run, "strategy", None)
    return settings and settings.get("param_dtype", "fp32")


def _kept_model(run: RunRecord) -> Any:
    """Return what decides which model is kept; how often one evaluates does only where something is decided by it."""
    settings = _settings(run, "evaluate", ("best", "patience", "min_delta", "every", "steps"))
    if settings and settings["best"] is None and settings["patience"] is None:
        return {"best": None, "patience": None}
    return settings


def _steps(run: RunRecord) -> dict[str, Any] | None:
    """Return steps and epochs; how many micro-batches a step is divided into is how a run was run."""
    plan = run.get("run.plan")
    return {key: plan.get(key) for key in ("num_steps", "steps_per_epoch", "num_epochs")} if plan else None


def _known(value: Any) -> Any:
    return value or _UNKNOWN


def _origin(run: RunRecord, key: str) -> str:
    origin = run.get(("run", "config_origin", key))
    return "" if origin is None else str(origin)


def _settings_of_sessions(run: RunRecord) -> dict[str, Any]:
    """Return the settings of a run by dotted key; of one that changed in a resume, a text with all its values."""
    flat = [_flat(one.get("run.config")) for one in run.sessions]
    settings = {}
    for key in dict.fromkeys(key for one in flat for key in one):
        values = [one.get(key, _ABSENT) for one in flat]
        texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in values]
        changes = [text for number, text in enumerate(texts) if number == 0 or text != texts[number - 1]]
        settings[key] = " → ".join(changes) if len(changes) > 1 else values[0]
    return settings


def _flat(value: Any) -> dict[str, Any]:
    """Return the settings of a section by dotted key; none of what is no mapping."""
    return flatten(value) if isinstance(value, Mapping) else {}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
