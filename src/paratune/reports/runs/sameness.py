"""Differences between runs: whether they are the same experiment, and which settings differ."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from paratune.base.grouping import grouped
from paratune.config.differences import flatten
from paratune.config.metric_names import OWN_PREFIX
from paratune.config.own_code import METRICS_KEY, NOT_COMPARED
from paratune.records.finished import RunRecord
from paratune.reports.measures import ARROW

_TASK_OPTIONS = (
    *("class_weights", "label_smoothing", "focal_gamma", "start_at_mean", "stride"),
    *("mask_probability", "whole_words", "windows"),
)
"""Options of tasks that change what is trained; others only change what is reported."""
_ABSENT = "no such setting"
_RUN_SPECIFIC = {"run.name", "run.folder", "data.cache_dir"}
_EXECUTION_ONLY = {
    *("batch.layout", "data.cache_dir", "data.num_workers", "data.prefetch_factor"),
    *("train.activation_checkpointing", "train.compile", "train.deterministic"),
}
"""Settings that affect how a run is computed, and not what is trained."""
_SEED_DEPENDENT = {"seed", "initial_weights"}
_STEP_FIELDS = {"tokens", "model_overrides", "adapter", "global_batch_size", "plan", "train_settings", "weights"}
"""Fields that a fitted baseline, which has no steps, does not have."""


@dataclass(frozen=True)
class Difference:
    """A difference between runs."""

    key: str
    label: str
    values: Mapping[str, Any]
    """Value of each run by the run's name; runs without the setting have no value."""
    origins: Mapping[str, str]
    """Origin of each value: a line of a file, --set, or default."""


@dataclass(frozen=True)
class Sameness:
    """Whether the runs trained the same thing."""

    verdict: str
    """same, other_seeds, different, or unknown: a run does not record all fields."""
    differ: tuple[Difference, ...]
    unknown: tuple[str, ...]
    """Fields that a run does not record."""
    execution: tuple[str, ...] = ()
    """What else differs in how the runs were executed: threads, usable cores, load by other programs."""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        labels = "; ".join(difference.label for difference in self.differ)
        machine = f" These also differ and change times: {'; '.join(self.execution)}." if self.execution else ""
        match self.verdict:
            case "same":
                return (
                    "Same experiment: all runs had the same data, initial weights, seed, global batch and schedule, so "
                    f"differences in time, memory and quality come from the execution.{machine}"
                )
            case "other_seeds":
                return (
                    "One experiment with several seeds: sample order, new weights and dropout differ. Scores vary by "
                    f"seed; times and memory are comparable.{machine}"
                )
            case "unknown":
                missing = "; ".join(self.unknown)
                return f"Unknown whether these runs are the same experiment. Not recorded: {missing}."
        return (
            f"These runs are different experiments: their scores and times are not comparable. They differ in {labels}."
        )


def compare(runs: Sequence[RunRecord]) -> Sameness:
    """Return whether runs are the same experiment, and their differences."""
    differ, unknown = [], []
    for key, label, read in _EXPERIMENT_FIELDS:
        # A fitted baseline is one difference, and not one for each field that only steps have.
        having = [run for run in runs if not (run.is_baseline and key in _STEP_FIELDS)]
        values = {
            run.name: _baseline_value(key, run) or (run.get(read) if isinstance(read, str) else read(run))
            for run in having
        }
        if len({canonical(value) for value in values.values() if value is not None}) > 1:
            differ.append(Difference(key, label, _differing_parts(values), {}))
        elif any(value is None for value in values.values()):
            unknown.append(label)
    if not {difference.key for difference in differ} <= _SEED_DEPENDENT:
        verdict = "different"
    elif unknown and len(runs) > 1:
        verdict = "unknown"
    elif any(difference.key == "seed" for difference in differ):
        verdict = "other_seeds"
    else:
        verdict = "different" if differ else "same"
    return Sameness(verdict, tuple(differ), tuple(unknown) if len(runs) > 1 else ())


def affects_training(key: str) -> bool:
    """Return whether a setting affects what is trained; the number of loader workers does not."""
    return key not in _EXECUTION_ONLY


def config_differences(runs: Sequence[RunRecord]) -> tuple[Difference, ...]:
    """Return the settings of the resolved configurations that differ between runs, by key."""
    flat = {run.name: _settings_of_sessions(run) for run in runs}
    keys = sorted({key for settings in flat.values() for key in settings} - _RUN_SPECIFIC)
    differences = []
    for key in keys:
        values = {name: settings[key] for name, settings in flat.items() if key in settings}
        if len(values) < len(runs) or len({canonical(value) for value in values.values()}) > 1:
            origins = {run.name: str(run.run.config_origin.get(key) or "") for run in runs}
            differences.append(Difference(key, key, values, origins))
    return tuple(differences)


def seed_groups(runs: Sequence[RunRecord]) -> list[tuple[RunRecord, ...]]:
    """Return the groups of at least two runs that differ only in their seed."""
    groups = grouped((configuration_key(run), run) for run in runs)
    return [tuple(group) for group in groups.values() if len({run.run.seed for run in group}) > 1]


def configuration_key(run: RunRecord) -> str:
    """Return a text that is equal for runs that differ only in their seed."""
    settings = {key: value for key, value in _settings_of_sessions(run).items() if key not in _RUN_SPECIFIC}
    settings.pop("run.seed", None)
    data = [_fingerprint(run, split) for split in ("train", "validation", "test")]
    return canonical([settings, data, run.session_values("run.world_size")])


def _baseline_value(key: str, run: RunRecord) -> Any:
    """Return the value of a fitted baseline for fields of initial weights and steps; None for a model."""
    if not run.is_baseline or key not in {*_STEP_FIELDS, "initial_weights"}:
        return None
    return {"baseline": run.setting("baseline")} if key == "initial_weights" else "none: a fitted baseline"


def _differing_parts(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parts of sections that differ."""
    if not all(isinstance(value, Mapping) for value in values.values()):
        return values
    flat = {name: flat_settings(value) for name, value in values.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    differing = [key for key in keys if len({canonical(settings.get(key)) for settings in flat.values()}) > 1]
    return {name: {key: settings.get(key) for key in differing} for name, settings in flat.items()}


def _fingerprint(run: RunRecord, split: str) -> Any:
    """Return the fingerprint of a split; "none" for a run without that split, which differs from unknown."""
    data = run.run.data
    if not isinstance(data, Mapping) or split not in data:
        return None
    return "none" if data[split] is None else run.data(split).fingerprint


def _settings(run: RunRecord, section: str, keys: tuple[str, ...] | None) -> Any:
    values = run.run.config.get(section)
    if not isinstance(values, Mapping):
        return None
    return dict(values) if keys is None else {key: values.get(key) for key in keys}


def _task_options(run: RunRecord) -> dict[str, Any]:
    """Return the options in `_TASK_OPTIONS` without those that are off; an older record does not have them."""
    settings = _settings(run, "task", _TASK_OPTIONS)
    return {key: value for key, value in (settings or {}).items() if value}


def _own_code(run: RunRecord) -> Any:
    """Return the code outside paratune that changes the kept weights, of all sessions; an older record has none."""
    best = str(run.setting("evaluate.best"))
    kept = f"{METRICS_KEY}.{best.removeprefix(OWN_PREFIX)}" if best.startswith(OWN_PREFIX) else None
    values = [
        {
            key: code
            for key, code in (value or {}).items()
            if key == kept or not key.startswith((METRICS_KEY, *NOT_COMPARED))
        }
        for value in run.session_values("run.own_code")
    ]
    return values[0] if len(values) == 1 else values


def _distillation(run: RunRecord) -> Any:
    """Return the options of the distillation and the hashes of its teachers; False without one."""
    settings = run.setting("distil")
    if not settings:
        return False
    teachers = [about.get("inputs_sha256") for about in run.run.teachers]
    return {**{key: value for key, value in settings.items() if key != "teacher"}, "teachers": teachers}


def _tokens(run: RunRecord) -> Any:
    """Return tokenization settings and the number of tokens; another tokenizer changes the number."""
    settings = _settings(run, "data", ("max_length", "truncation", "head_tokens"))
    return settings and {**settings, "num_tokens": run.data("train").num_tokens}


def _adapter(run: RunRecord) -> Any:
    """Return the adapter without the form in which it is saved; False without one."""
    settings = _settings(run, "model", ("adapter",))
    adapter = settings and settings["adapter"]
    if not adapter:
        return settings and False
    return {key: value for key, value in adapter.items() if key != "save"}


def _optimization(run: RunRecord) -> Any:
    """Return the section train without its length, which is in the plan, and without settings that only save memory."""
    left_out = {"epochs", "max_steps", "activation_checkpointing", "compile", "deterministic"}
    settings = _settings(run, "train", None)
    return settings and {key: value for key, value in settings.items() if key not in left_out}


def _weights(run: RunRecord) -> Any:
    """Return the dtype of the weights in forward passes; strategies without the option use fp32."""
    settings = _settings(run, "strategy", None)
    return settings and settings.get("param_dtype", "fp32")


def _kept_model(run: RunRecord) -> Any:
    """Return the settings that decide which model is kept; the evaluation interval matters only with such a setting."""
    settings = _settings(run, "evaluate", ("best", "patience", "min_delta", "every", "steps"))
    if settings and settings["best"] is None and settings["patience"] is None:
        return {"best": None, "patience": None}
    return settings


def _steps(run: RunRecord) -> dict[str, Any] | None:
    """Return steps and epochs; the number of micro-batches of a step does not affect what is trained."""
    plan = run.run.plan.model_dump(include={"num_steps", "steps_per_epoch", "num_epochs"}, exclude_unset=True)
    return plan or None


def _settings_of_sessions(run: RunRecord) -> dict[str, Any]:
    """Return the settings of a run by dotted key; all values of a setting that changed in a resume."""
    flat = [flat_settings(settings_of_session.run.config) for settings_of_session in run.sessions]
    settings = {}
    for key in dict.fromkeys(key for settings_of_session in flat for key in settings_of_session):
        values = [settings_of_session.get(key, _ABSENT) for settings_of_session in flat]
        texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in values]
        changes = [text for number, text in enumerate(texts) if number == 0 or text != texts[number - 1]]
        settings[key] = ARROW.join(changes) if len(changes) > 1 else values[0]
    return settings


def flat_settings(value: Any) -> dict[str, Any]:
    """Return the settings of a section by dotted key; empty if it is not a mapping."""
    return flatten(value) if isinstance(value, Mapping) else {}


def canonical(value: Any) -> str:
    """Return a text that is the same for equal values of records."""
    return json.dumps(value, sort_keys=True, default=str)


_EXPERIMENT_FIELDS: tuple[tuple[str, str, str | Callable[[RunRecord], Any]], ...] = (
    ("task", "the task and its labels", "run.task"),
    ("task_options", "the options of the task that change training", _task_options),
    ("own_code", "code outside paratune (its name, options and SHA-256)", _own_code),
    ("distillation", "the distillation (section distil; weights and tokenizers of the teachers)", _distillation),
    ("train_data", "the training data (fingerprint)", "run.data.train.fingerprint"),
    ("validation_data", "the validation data (fingerprint)", partial(_fingerprint, split="validation")),
    ("test_data", "the test data (fingerprint)", partial(_fingerprint, split="test")),
    ("tokens", "the tokenization", _tokens),
    ("initial_weights", "the initial weights (init_fingerprint)", "run.model.init_fingerprint"),
    ("model_overrides", "model.overrides", partial(_settings, section="model", keys=("overrides",))),
    ("adapter", "model.adapter", _adapter),
    ("global_batch_size", "the global batch size", "run.batch.global_batch_size"),
    ("plan", "the number of steps and epochs", _steps),
    ("train_settings", "the optimization (section train)", _optimization),
    ("weights", "the dtype of the weights (strategy.param_dtype)", _weights),
    ("kept_model", "which model is kept", _kept_model),
    ("seed", "the seed", "run.seed"),
)
"""Fields that are equal in runs of the same experiment, by their path in the record or a function; the distribution
over devices is not among them."""
