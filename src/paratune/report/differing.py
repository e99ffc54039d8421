"""Whether two groups of runs trained the same thing, and which differences were said to be what is compared."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from paratune.base.text import plain
from paratune.errors import ConfigError, did_you_mean
from paratune.report.compare import Difference, compare, decides_what_is_trained
from paratune.report.machine import on_same_machines
from paratune.report.read import RunRecord
from paratune.verdicts import Differs

ALLOW: Mapping[str, tuple[str, ...]] = {
    "batch": ("global_batch_size",),
    "steps": ("plan",),
    "train": ("train_settings",),
    "model": ("initial_weights", "model_overrides", "tokens"),
    "tokens": ("tokens",),
    "data": ("train_data", "validation_data", "test_data", "tokens", "plan"),
    "task": ("task",),
    "kept": ("kept_model",),
    "weights": ("weights",),
}
"""What may be said to be compared, and which of the keys of `paratune.report.compare` it stands for."""
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
}
"""What an axis of a matrix says to be compared, by the section whose keys it sets."""
_OF_A_KEY: Mapping[str, tuple[str, ...]] = {"strategy.param_dtype": ("weights",)}
"""The same of single keys in sections that decide nothing else."""
_FOLLOWS_THE_SEED = {"seed", "initial_weights"}


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
    """Return what axes of a matrix that set these dotted keys say to be compared."""
    deciding = (key for key in keys if decides_what_is_trained(key))
    names = (_OF_A_KEY.get(key) or _OF_A_SECTION.get(key.partition(".")[0], ()) for key in deciding)
    return frozenset(name for some in names for name in some)


def differs_of(base: Sequence[RunRecord], other: Sequence[RunRecord], allowed: Collection[str]) -> Differs:
    """Return in what a group trained something different from the baseline.

    Runs of one seed are looked at side by side; the initial weights of different seeds say nothing.

    Args:
        base: Runs of the baseline.
        other: Runs of the other group.
        allowed: Names of `ALLOW`.
    """
    keys = {key for name in allowed for key in ALLOW[name]}
    refused: dict[str, str] = {}
    permitted: dict[str, str] = {}
    unknown: dict[str, None] = {}
    batch = False
    for pair in _pairs(base, other):
        is_same_seed = pair[0].get("run.seed") == pair[1].get("run.seed")
        found = compare(pair)
        unknown.update(dict.fromkeys(found.unknown))
        for one in found.differ:
            if not is_same_seed and one.key in _FOLLOWS_THE_SEED:
                continue
            batch = batch or one.key == "global_batch_size"
            is_allowed = one.key in keys or (one.key == "plan" and "batch" in allowed and _same_epochs(pair))
            (permitted if is_allowed else refused).setdefault(one.key, _in_words(one, pair))
    return Differs(
        tuple(refused.values()),
        tuple(permitted.values()),
        tuple(unknown),
        batch,
        elsewhere=not on_same_machines(base, other),
    )


def _pairs(base: Sequence[RunRecord], other: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """Return a pair of runs for each seed that both have, or the first of each where they share none."""
    of_seed = {str(run.get("run.seed")): run for run in reversed(base)}
    shared = {seed: run for run in reversed(other) if (seed := str(run.get("run.seed"))) in of_seed}
    return [(of_seed[seed], run) for seed, run in shared.items()] or [(base[0], other[0])]


def _same_epochs(pair: Sequence[RunRecord]) -> bool:
    return len({run.number("run.plan.num_epochs") for run in pair}) == 1


def _model_name(run: RunRecord) -> str:
    """Return the name of a run's model, or of the baseline that was fitted in its place."""
    return str(run.get("run.model.architecture" if run.is_baseline else "run.config.model.name"))


def _in_words(found: Difference, pair: tuple[RunRecord, RunRecord]) -> str:
    """Return what differs, with both values where they are short."""
    if found.key == "initial_weights":
        names = [_model_name(run) for run in pair]
        return f"the model ({plain(names[0])} → {plain(names[1])})" if names[0] != names[1] else found.label
    values = [found.values.get(run.name) for run in pair]
    if all(isinstance(value, int | float) for value in values):
        return f"{found.label} ({values[0]:,} → {values[1]:,})"
    return found.label
