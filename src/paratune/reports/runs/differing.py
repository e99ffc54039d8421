"""Whether two groups of runs are the same experiment, and which differences are allowed."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from paratune.base.text import plain
from paratune.errors import ConfigError, did_you_mean
from paratune.records.finished import RunRecord
from paratune.reports.runs.machine import machine_kinds
from paratune.reports.runs.sameness import EXECUTION_ONLY, Difference, compare
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
_SEED_DEPENDENT = {"seed", "initial_weights"}
LEAST_BUDGET = 0.05  # a difference of the samples of a training that is named


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
            if difference.key not in _SEED_DEPENDENT or pair[0].run.seed == pair[1].run.seed:
                found = permitted if difference.key in keys | more else refused
                found.setdefault(difference.key, _in_words(difference, pair))
    samples = _samples(*pairs[0])
    if samples is not None:
        budget = f"the training budget ({samples:.{1 if samples >= 1 else 2}f} times the samples)"
        (refused if {"plan", "global_batch_size"} & refused.keys() else permitted)["budget"] = budget
    classes, kinds = [step_class(run) for run in pairs[0]], machine_kinds([*base, *other])
    return Differs(
        tuple(refused.values()), tuple(permitted.values()), tuple(unknown), "global_batch_size" in refused | permitted,
        elsewhere=set(kinds[: len(base)]) != set(kinds[len(base) :]), samples=samples,
        placebo=classes[0] is not None and classes[0] == classes[1],
    )  # fmt: skip


def _samples(*pair: RunRecord) -> float | None:
    """Return the planned samples of the second run over those of the first; None where they are as many or unknown.

    Equal epochs are equal budgets, also where the last batch of an epoch is smaller.
    """
    sizes = [(run.run.plan.num_steps, run.run.batch.global_batch_size) for run in pair]
    first, second = (steps * batch if steps and batch else None for steps, batch in sizes)
    epochs = [run.run.plan.num_epochs for run in pair]
    if not first or not second or (epochs[0] and epochs[0] == epochs[1]) or abs(second / first - 1) < LEAST_BUDGET:
        return None
    return second / first


def _in_words(difference: Difference, pair: tuple[RunRecord, RunRecord]) -> str:
    """Return a difference in words, with both values if they are short."""
    if difference.key == "initial_weights":
        names = [plain(run.run.model.architecture if run.is_baseline else run.setting("model.name")) for run in pair]
        return f"the model ({' → '.join(names)})" if names[0] != names[1] else difference.label
    values = [difference.values.get(run.name) for run in pair]
    are_numbers = all(isinstance(value, int | float) for value in values)
    return f"{difference.label} ({values[0]:,} → {values[1]:,})" if are_numbers else difference.label
