"""Whether two groups of runs are the same experiment, and which differences are allowed."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from paratune.base.text import plain
from paratune.errors import ConfigError, did_you_mean
from paratune.records.finished import RunRecord
from paratune.reports.runs.machine import on_same_machines
from paratune.reports.runs.sameness import Difference, affects_training, compare
from paratune.verdicts import Differs
from paratune.verdicts.placebo import step_class

ALLOW: Mapping[str, tuple[str, ...]] = {
    "batch": ("global_batch_size",),
    "steps": ("plan",),
    "train": ("train_settings",),
    "model": ("initial_weights", "model_overrides", "adapter", "tokens"),
    "tokens": ("tokens",),
    "data": ("train_data", "validation_data", "test_data", "tokens", "plan"),
    "task": ("task",),
    "kept": ("kept_model",),
    "weights": ("weights",),
    "distil": ("distillation",),
}
"""Names for `--allow`, and the keys of `paratune.reports.runs.sameness` that each allows to differ."""
_OF_A_SECTION: Mapping[str, tuple[str, ...]] = {
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
}
"""Differences that an axis allows, by the configuration section of its keys."""
_OF_A_KEY: Mapping[str, tuple[str, ...]] = {"strategy.param_dtype": ("weights",)}
"""Differences that an axis allows, by single keys."""
_SEED_DEPENDENT = {"seed", "initial_weights"}
LEAST_BUDGET = 0.05
"""A difference of the samples of a training that is named."""


def read_allowed(words: Iterable[str]) -> frozenset[str]:
    """Return the names of `ALLOW` in words such as "batch,model".

    Raises:
        ConfigError: One is not among them.
    """
    names = [part.strip() for word in words for part in word.split(",") if part.strip()]
    unknown = [name for name in names if name not in ALLOW]
    if unknown:
        listed = "; ".join(f"{plain(name)!r} is not one of them{did_you_mean(name, ALLOW)}" for name in unknown)
        raise ConfigError(f"--allow takes {', '.join(ALLOW)}: {listed}", code="cli.unknown_name", option="--allow")
    return frozenset(names)


def allowed_by_axes(keys: Iterable[str]) -> frozenset[str]:
    """Return the differences that axes with these dotted keys allow."""
    deciding = (key for key in keys if affects_training(key))
    names = (_OF_A_KEY.get(key) or _OF_A_SECTION.get(key.partition(".")[0], ()) for key in deciding)
    return frozenset(name for group in names for name in group)


def differs_of(base: Sequence[RunRecord], other: Sequence[RunRecord], allowed: Collection[str]) -> Differs:
    """Return the differences between the experiments of a group and of the baseline; `allowed` are names of `ALLOW`.

    Runs of one seed are compared; initial weights of different seeds always differ.
    """
    keys = {key for name in allowed for key in ALLOW[name]}
    refused: dict[str, str] = {}
    permitted: dict[str, str] = {}
    unknown: dict[str, None] = {}
    pairs = _pairs(base, other)
    samples = _samples(pairs[0])
    for pair in pairs:
        is_same_seed = pair[0].run.seed == pair[1].run.seed
        sameness = compare(pair)
        unknown.update(dict.fromkeys(sameness.unknown))
        for difference in sameness.differ:
            if not is_same_seed and difference.key in _SEED_DEPENDENT:
                continue
            # With another batch size, the same epochs have another number of steps.
            is_allowed = difference.key in keys or (
                difference.key == "plan" and "batch" in allowed and _same_epochs(pair)
            )
            (permitted if is_allowed else refused).setdefault(difference.key, _in_words(difference, pair))
    if samples is not None:
        budget = f"the training budget ({samples:.{1 if samples >= 1 else 2}f} times the samples)"
        (refused if {"plan", "global_batch_size"} & refused.keys() else permitted)["budget"] = budget
    classes = [step_class(run) for run in pairs[0]]
    return Differs(
        tuple(refused.values()),
        tuple(permitted.values()),
        tuple(unknown),
        "global_batch_size" in refused | permitted,
        elsewhere=not on_same_machines(base, other),
        samples=samples,
        placebo=classes[0] is not None and classes[0] == classes[1],
    )


def _pairs(base: Sequence[RunRecord], other: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """Return a pair of runs for each shared seed, or the first run of each group."""
    of_seed = {str(run.run.seed): run for run in reversed(base)}
    shared = {seed: run for run in reversed(other) if (seed := str(run.run.seed)) in of_seed}
    return [(of_seed[seed], run) for seed, run in shared.items()] or [(base[0], other[0])]


def _samples(pair: tuple[RunRecord, RunRecord]) -> float | None:
    """Return the planned samples of the second run over those of the first; None where they are as many or unknown.

    Equal epochs are equal budgets, also where the last batch of an epoch is smaller.
    """
    sizes = [(run.run.plan.num_steps, run.run.batch.global_batch_size) for run in pair]
    first, second = (steps * batch if steps and batch else None for steps, batch in sizes)
    if not first or not second or (_same_epochs(pair) and pair[0].run.plan.num_epochs):
        return None
    return None if abs(second / first - 1) < LEAST_BUDGET else second / first


def _same_epochs(pair: Sequence[RunRecord]) -> bool:
    return len({run.run.plan.num_epochs for run in pair}) == 1


def _model_name(run: RunRecord) -> str:
    """Return the name of the model, or of the fitted baseline."""
    return str(run.run.model.architecture if run.is_baseline else run.setting("model.name"))


def _in_words(difference: Difference, pair: tuple[RunRecord, RunRecord]) -> str:
    """Return a difference in words, with both values if they are short."""
    if difference.key == "initial_weights":
        names = [_model_name(run) for run in pair]
        return f"the model ({plain(names[0])} → {plain(names[1])})" if names[0] != names[1] else difference.label
    values = [difference.values.get(run.name) for run in pair]
    if all(isinstance(value, int | float) for value in values):
        return f"{difference.label} ({values[0]:,} → {values[1]:,})"
    return difference.label
