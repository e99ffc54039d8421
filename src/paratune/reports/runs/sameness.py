"""Differences between runs: whether they are the same experiment, which may differ, and which settings differ."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from paratune.base.text import listing, plain
from paratune.base.units import NOT_AVAILABLE
from paratune.config.metric_names import OWN_PREFIX
from paratune.config.own_code import METRICS_KEY, NOT_COMPARED
from paratune.config.plain import flatten
from paratune.errors import did_you_mean, option_error
from paratune.records.finished import RunRecord
from paratune.reports.measures import named, over_sessions
from paratune.reports.runs.machine import machine_kinds, value_text
from paratune.verdicts import Differs
from paratune.verdicts.groups import OF_ONE_RUN
from paratune.verdicts.words import LEAST_LOAD_DIFFERENCE

NO_SUCH_SETTING = "no such setting"
OTHER_LOAD = "machine.other_load"
_EXECUTION = named("num_threads", "num_usable_cores", "other_load")
_TASK_OPTIONS = (
    "class_weights", "label_smoothing", "focal_gamma", "start_at_mean", "stride", "mask_probability", "whole_words",
    "windows",
)  # fmt: skip
"""Options of tasks that change what is trained; others only change what is reported."""
_RUN_SPECIFIC = {"run.name", "run.folder", "data.cache_dir"}
_ONLY_COMPUTATION = ("activation_checkpointing", "compile", "deterministic")
"""Settings of the section train that affect how a run is computed, and not what is trained."""
EXECUTION_ONLY = {
    *("batch.layout", "data.cache_dir", "data.num_workers", "data.prefetch_factor"),
    *(f"train.{key}" for key in _ONLY_COMPUTATION),
}
"""Settings that do not affect what is trained, such as the number of loader workers."""
_SEED_DEPENDENT = {"seed", "initial_weights"}
_SEED_OF_NAME = re.compile(r"seed[-_]?\d+")  # in the folder of a model or a teacher
_OF_MODEL = ("model_overrides", "adapter", "quantized", "tokens")
_OF_STEPS = {*_OF_MODEL, "global_batch_size", "plan", "train_settings", "weights"}
"""Fields that a fitted baseline, which has no steps, does not have."""

ALLOW: Mapping[str, tuple[str, ...]] = {
    "batch": ("global_batch_size",),
    "steps": ("plan",),
    "train": ("train_settings",),
    "model": ("initial_weights", *_OF_MODEL),
    "tokens": ("tokens",),
    "data": ("train_data", "validation_data", "test_data", "tokens", "plan"),
    "task": ("task",),
    "kept": ("kept_model",),
    "weights": ("weights",),
    "distil": ("distillation",),
}
"""Names for `--allow`, and the keys of `paratune.reports.runs.sameness` that each allows to differ."""
_MADE_BY: Mapping[str, tuple[str, ...]] = {
    "batch": ("batch", "steps"),
    "nproc": ("batch", "steps"),
    "model": ("model",),
    "train": ("train", "steps"),
    "data": ("data", "task"),
    "task": ("task", "data", "model", "steps", "kept"),
    "evaluate": ("kept",),
    "baseline": ("model", "batch", "train", "steps", "kept", "weights"),
    "probe": ("steps",),
    "distil": ("distil",),
    "strategy.param_dtype": ("weights",),
}
"""Differences that an axis allows, by its keys or by their section of the configuration."""
LEAST_BUDGET = 0.05  # a difference of the samples of a training that is named


@dataclass(frozen=True)
class Difference:
    """A difference between runs."""

    key: str
    label: str
    values: Mapping[str, Any]  # value of each run by the run's name; runs without the setting have no value
    is_of_seed: bool = False  # whether another seed explains it

    @property
    def words(self) -> str:
        """The label with the numbers that differ, or with the names of the settings."""
        values = list({canonical(value): value for value in self.values.values()}.values())
        if all(isinstance(value, Mapping) for value in values):
            names = listing(values[0], 3)
            return f"{self.label[:-1]}: {names})" if self.label.endswith(")") else f"{self.label} ({names})"
        if all(isinstance(value, int | float) for value in values):
            return f"{self.label} ({' → '.join(f'{value:,}' for value in values)})"
        return self.label


@dataclass(frozen=True)
class Sameness:
    """Whether the runs trained the same thing."""

    verdict: str  # same, other_seeds, different, or unknown: a run does not record all fields
    differ: tuple[Difference, ...]
    unknown: tuple[str, ...]  # fields that a run does not record

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        labels = "; ".join(difference.words for difference in self.differ if not difference.is_of_seed)
        return {
            "same": "Same experiment: all runs had the same data, initial weights, seed, global batch and schedule, so "
            "differences in time, memory and quality come from the execution.",
            "other_seeds": "One experiment with several seeds: sample order, new weights and dropout differ. Scores "
            "vary by seed; times and memory are comparable.",
            "unknown": f"Unknown whether these runs are the same experiment. Not recorded: {'; '.join(self.unknown)}.",
            "different": "Not all of these runs are the same experiment; scores and times of different ones are not "
            f"comparable. They differ in {labels}.",
        }[self.verdict]


def experiment(run: RunRecord) -> dict[str, tuple[str, Any]]:
    """Return what decides which model a run trains: words and value of each field; None where it is not recorded.

    The distribution over devices, the number of micro-batches, and the form in which an adapter is saved do not.
    """

    def section(name: str, *keys: str) -> dict[str, Any] | None:
        values = run.run.config.get(name)
        return {key: values.get(key) for key in keys or values} if isinstance(values, Mapping) else None

    tokens = section("data", "max_length", "truncation", "head_tokens")
    train, kept = section("train"), section("evaluate")
    model = section("model", "overrides", "adapter", "quantize_base")
    if tokens is not None:  # another tokenizer changes the number of tokens
        tokens["num_tokens"] = run.data("train").num_tokens
    if kept is not None:  # the evaluation interval matters only for a model that is chosen by evaluations
        is_chosen = kept.get("best") is not None or kept.get("patience") is not None
        keys = ("best", "patience", *(("min_delta", "every", "steps") if is_chosen else ()))
        kept = {key: kept.get(key) for key in keys}
    if train is not None:  # its length is in the plan
        train = {key: train[key] for key in train if key not in {"epochs", "max_steps", *_ONLY_COMPUTATION}}
    distil: Any = run.setting("distil") or False
    if isinstance(distil, Mapping):
        distil = {**distil, "teacher": [about.get("inputs_sha256") for about in run.run.teachers]}
    strategy = section("strategy")
    dtype = strategy and strategy.get("param_dtype", "fp32")
    plan = run.run.plan.model_dump(include={"num_steps", "steps_per_epoch", "num_epochs"}, exclude_unset=True)
    # Not all tasks have all options.
    options = {key: value for key, value in (section("task", *_TASK_OPTIONS) or {}).items() if value}
    adapter = model and (model["adapter"] or False)
    if isinstance(adapter, Mapping):
        adapter = {key: value for key, value in adapter.items() if key != "save"}
    weights = {"baseline": run.setting("baseline")} if run.is_fitted else run.run.model.init_fingerprint
    sets = ("train", "training"), ("validation", "validation"), ("test", "test")
    fields = {
        "task": ("the task and its labels", run.get("run.task")),
        "task_options": ("the options of the task that change training", options),
        "own_code": ("code outside paratune (its name, options and SHA-256)", _own_code(run)),
        "distillation": ("the distillation (section distil; weights and tokenizers of the teachers)", distil),
        **{f"{split}_data": (f"the {name} data (fingerprint)", _fingerprint(run, split)) for split, name in sets},
        "tokens": ("the tokenization", tokens),
        "initial_weights": ("the initial weights (init_fingerprint)", weights),
        "model_overrides": ("model.overrides", model and {"overrides": model["overrides"]}),
        "adapter": ("model.adapter", adapter),
        "quantized": ("model.quantize_base", model and (model["quantize_base"] or False)),
        "global_batch_size": ("the global batch size", run.run.batch.global_batch_size),
        "plan": ("the number of steps and epochs", plan or None),
        "train_settings": ("the optimization (section train)", train),
        "weights": ("the dtype of the weights (strategy.param_dtype)", dtype),
        "kept_model": ("which model is kept", kept),
        "seed": ("the seed", run.run.seed),
    }
    if run.is_foreign:  # of its settings only the optimization is known, in part
        fields = {key: (label, train if key == "train_settings" else None) for key, (label, _) in fields.items()}
    return {key: field for key, field in fields.items() if not (run.is_fitted and key in _OF_STEPS)}


def compare(runs: Sequence[RunRecord]) -> Sameness:
    """Return whether runs are the same experiment, and their differences, with those that other seeds explain."""
    differ, unknown = [], []
    fields_of = {run.name: experiment(run) for run in runs}
    labels = {key: label for fields in fields_of.values() for key, (label, _) in fields.items()}
    own, foreign = ([run for run in runs if run.is_foreign is is_foreign] for is_foreign in (False, True))
    are_other_seeds = len({run.run.seed for run in own}) > 1
    for key, label in labels.items():
        # A fitted baseline is one difference, and not one for each field that only steps have.
        values, parts = (
            {run.name: fields_of[run.name][key][1] for run in some if key in fields_of[run.name]}
            for some in (own, foreign)
        )
        if None in values.values() and len(runs) > 1:
            unknown.append(label)
        # Folders of the Trainer are compared with each other, in what all of them have.
        shared = set[str].intersection(*map(set, parts.values())) if parts and None not in parts.values() else ()
        parts = {name: {part: known[part] for part in shared} for name, known in parts.items()}
        known_values = ([canonical(value) for value in by.values() if value is not None] for by in (values, parts))
        differing = [by for by, texts in zip((values, parts), known_values, strict=True) if len(set(texts)) > 1]
        if not differing:
            continue
        values = differing[0]
        is_of_seed = are_other_seeds and key in _SEED_DEPENDENT
        if key == "initial_weights":
            # Models that differ in more than a seed; of fitted baselines their kind.
            names = [run.run.model.architecture if run.is_fitted else run.setting("model.name") for run in own]
            models = list({_SEED_OF_NAME.sub("seed", str(name)): plain(name) for name in names}.values())
            label = f"the model ({' → '.join(models)})" if len(models) > 1 else label
            known = {(run.run.seed, canonical(weights)) for run in own if (weights := values[run.name]) is not None}
            # Another seed explains other weights of one model, but not two weights of one seed.
            is_of_seed &= len(models) == 1 and len(known) == len({seed for seed, _ in known})
        if all(isinstance(value, Mapping) for value in values.values()):  # only the parts that differ
            flat = {name: flatten(value) for name, value in values.items()}
            keys = dict.fromkeys(name for settings in flat.values() for name in settings)
            apart = [name for name in keys if len({canonical(some.get(name)) for some in flat.values()}) > 1]
            values = {run: {name: settings.get(name) for name in apart} for run, settings in flat.items()}
        differ.append(Difference(key, label, values, is_of_seed))
    if any(_samples(own[0], run) is not None for run in own):
        samples = {run.name: _planned_samples(run) for run in own}
        differ.append(Difference("budget", "the training budget in samples", samples))
    if foreign:
        unknown.insert(0, f"the settings, the data and the seed of {listing((run.name for run in foreign), 3)}")
    verdict = "unknown" if unknown else "other_seeds" if differ else "same"
    verdict = verdict if all(difference.is_of_seed for difference in differ) else "different"
    return Sameness(verdict, tuple(differ), tuple(unknown))


def differing_settings(runs: Sequence[RunRecord]) -> list[Difference]:
    """Return the settings that all runs have and that differ, and how the runs were executed; without the seed."""
    # The options that only one kind of strategy has follow from the kind.
    return [item for item in all_differences(runs) if item.key != "run.seed" and len(item.values) == len(runs)]


def all_differences(runs: Sequence[RunRecord]) -> Iterator[Difference]:
    """Yield the settings that differ between runs by key; then threads, usable cores and loads, as texts.

    Unknown values of these are not compared. The load differs from 5 percent points of all cores on, the difference
    that verdicts mention.
    """
    flat = {run.name: _settings_of_sessions(run) for run in runs}
    keys = sorted({key for settings in flat.values() for key in settings} - _RUN_SPECIFIC)
    differing = [key for key in keys if len({canonical(own.get(key, NO_SUCH_SETTING)) for own in flat.values()}) > 1]
    for key in differing:
        yield Difference(key, key, {run: own[key] for run, own in flat.items() if key in own})
    for measure in _EXECUTION:
        values = {run.name: measure.of(run) for run in runs}
        key, known = f"machine.{measure.key}", list(values.values())
        if NOT_AVAILABLE in over_sessions(known) or len(set(known)) < 2:
            continue
        if key != OTHER_LOAD or max(known) - min(known) >= LEAST_LOAD_DIFFERENCE:
            form = "{:.1%}" if key == OTHER_LOAD else "{:g}"
            # The values of several sessions are a text.
            texts = {name: value if isinstance(value, str) else form.format(value) for name, value in values.items()}
            yield Difference(key, measure.label, texts)


def setting_text(difference: Difference, run: str) -> str:
    """Return the value of a setting as a configuration file writes it."""
    value = difference.values.get(run, NO_SUCH_SETTING)
    return "null" if value is None else value_text(value)


def configuration_key(run: RunRecord) -> str:
    """Return a text that is equal for runs that differ only in their seed, or in that of the runs that they need.

    It has their options, data, processes and environment variables.
    """
    left_out = {*_RUN_SPECIFIC, "run.seed"}
    settings = {key: value for key, value in _settings_of_sessions(run).items() if key not in left_out}
    teachers = _SEED_OF_NAME.sub("seed", canonical(settings.pop("distil.teacher", None)))
    model = str(settings.pop("model.name", None))
    if model.startswith(f"{run.setting('run.folder')}/"):  # a run of the same matrix, which is trained further
        model = _SEED_OF_NAME.sub("seed", model)
    data = [_fingerprint(run, split) for split in ("train", "validation", "test")]
    variables = {name: value for name, value in run.run.environment.items() if not name.endswith(OF_ONE_RUN)}
    place = str(run.folder) if run.is_foreign else ""  # of which nothing says that it is like another one
    return canonical([settings, teachers, model, data, run.session_values("run.world_size"), variables, place])


def _fingerprint(run: RunRecord, split: str) -> str | None:
    """Return the fingerprint of a split; "none" for a run without that split, which differs from unknown."""
    is_none = split in run.run.data and run.run.data[split] is None
    return "none" if is_none else run.data(split).fingerprint


def _own_code(run: RunRecord) -> Any:
    """Return the code outside paratune that changes the kept weights, of all sessions; an older record has none."""
    best = str(run.setting("evaluate.best"))
    kept = f"{METRICS_KEY}.{best.removeprefix(OWN_PREFIX)}" if best.startswith(OWN_PREFIX) else None
    values = [
        {key: code for key, code in (by_key or {}).items()
         if key == kept or not key.startswith((METRICS_KEY, *NOT_COMPARED))}
        for by_key in run.session_values("run.own_code")
    ]  # fmt: skip
    return values[0] if len(values) == 1 else values


def _settings_of_sessions(run: RunRecord) -> dict[str, Any]:
    """Return the settings of a run by dotted key; all values of a setting that changed in a resume."""
    flat = [flatten(session.run.config) for session in run.sessions]
    settings = {}
    for key in dict.fromkeys(key for by_key in flat for key in by_key):
        values = [by_key.get(key, NO_SUCH_SETTING) for by_key in flat]
        texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in values]
        changes = [text for text, _ in groupby(texts)]
        settings[key] = over_sessions(changes) if len(changes) > 1 else values[0]
    return settings


def canonical(value: Any) -> str:
    """Return a text that is the same for equal values of records."""
    return json.dumps(value, sort_keys=True, default=str)


def read_allowed(words: Iterable[str]) -> frozenset[str]:
    """Return the names of `ALLOW` in words such as "batch,model".

    Raises:
        ConfigError: One is not among them.
    """
    names = [part.strip() for word in words for part in word.split(",")]
    unknown = [name for name in names if name not in ALLOW]
    if unknown:
        reason = f"the names are {', '.join(ALLOW)}{did_you_mean(unknown[0], ALLOW)}"
        raise option_error("--allow", plain(", ".join(unknown)) or "''", reason, code="cli.invalid_value")
    return frozenset(names)


def allowed_by_axes(keys: Iterable[str]) -> frozenset[str]:
    """Return the differences that axes with these dotted keys allow."""
    made = (_MADE_BY.get(key) or _MADE_BY.get(key.partition(".")[0], ()) for key in keys if key not in EXECUTION_ONLY)
    return frozenset(name for names in made for name in names)


def differs_of(base: Sequence[RunRecord], other: Sequence[RunRecord], allowed: Collection[str]) -> Differs:
    """Return the differences between the experiments of a group and of the baseline; `allowed` are names of `ALLOW`.

    Runs of one seed are compared, or the first run of each group; initial weights of different seeds always differ.
    """
    keys = {key for name in allowed for key in ALLOW[name]}
    refused: dict[str, str] = {}
    permitted: dict[str, str] = {}
    unknown: dict[str, None] = {}
    of_seed, shared = ({run.run.seed: run for run in reversed(runs)} for runs in (base, other))
    pairs = [(of_seed[seed], run) for seed, run in shared.items() if seed in of_seed] or [(base[0], other[0])]
    for pair in pairs:
        are_same_epochs = pair[0].run.plan.num_epochs == pair[1].run.plan.num_epochs
        # With another batch size, the same epochs have another number of steps.
        more = {"plan"} if "batch" in allowed and are_same_epochs else set()
        sameness = compare(pair)
        unknown.update(dict.fromkeys(sameness.unknown))
        for difference in sameness.differ:
            # The budget, which is the last one, follows from these.
            free = set() if {"plan", "global_batch_size"} & refused.keys() else {"budget"}
            if not difference.is_of_seed:
                found = permitted if difference.key in keys | more | free else refused
                found.setdefault(difference.key, difference.words)
    kinds = machine_kinds([*base, *other])
    is_known = not any(run.is_foreign for run in (*base, *other))
    names = [min((name for name in ALLOW if key in ALLOW[name]), key=lambda name: len(ALLOW[name]), default=None)
             for key in refused if key != "budget"]  # fmt: skip
    return Differs(
        tuple(refused.values()), tuple(permitted.values()), tuple(unknown), "global_batch_size" in refused | permitted,
        elsewhere=set(kinds[: len(base)]) != set(kinds[len(base) :]) and is_known,
        samples=_samples(*pairs[0]),
        allow=() if None in names else tuple(dict.fromkeys(filter(None, names))),
    )  # fmt: skip


def _samples(*pair: RunRecord) -> float | None:
    """Return the planned samples of the second run over those of the first; None where they are as many or unknown.

    Equal epochs are equal budgets, also where the last batch of an epoch is smaller.
    """
    first, second = map(_planned_samples, pair)
    epochs = [run.run.plan.num_epochs for run in pair]
    if not first or not second or (epochs[0] and epochs[0] == epochs[1]) or abs(second / first - 1) < LEAST_BUDGET:
        return None
    return second / first


def _planned_samples(run: RunRecord) -> float | None:
    steps, batch = run.run.plan.num_steps, run.run.batch.global_batch_size
    return steps * batch if steps and batch else None
