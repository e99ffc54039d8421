"""What is compared: groups of runs that are equal except for seed and repeat, how they differ, and margins.

Groups that differ only in options that cannot change the time or the memory of a step have equal speed. So they get no
verdict on it, and the differences that are measured between them, the negative control, show how much the machine
changes the speed of configurations by itself.

A margin is a judgement, not statistics: the largest change that does not matter to the reader.
"""

import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from paratune.base.grouping import grouped
from paratune.config.metric_names import METRICS, key_of
from paratune.config.plain import flatten
from paratune.errors import ConfigError, did_you_mean
from paratune.records import ALL_PHASES
from paratune.records.efficiency import NoiseKind
from paratune.records.finished import RunRecord, gpus_of
from paratune.verdicts import special

_MARGIN = re.compile(r"[^=]*=[^,]*|[^=]+$")
SPEED = "speed"  # samples/s, or goodput where batches differ
_OF_THE_BASELINE = {SPEED: 0.02, "loss": 0.01, "perplexity": 0.01, "rmse": 0.01, "mse": 0.02, "mae": 0.01}
"""Shares of the baseline's figure, for measures without a fixed scale."""
_POINTS = 0.005  # for scores from 0 to 1: half a point of a hundred
ANY_VALUE = {
    *("run.name", "run.folder", "run.hang_timeout_s"),  # names, and how long a run waits
    "run.seed",  # draws others of the same rows and masks
    # Numbers in the update of the weights, which has two groups of weights also where the weight decay is 0. Your own
    # schedule is a section, whose keys are not in this table.
    *("train.learning_rate", "train.schedule", "train.schedule_cycles", "train.schedule_power"),
    *("train.schedule_end_ratio", "train.decay_ratio", "train.warmup_steps", "train.warmup_ratio"),
    *("train.weight_decay", "train.betas", "train.eps"),
    *("model.adapter.alpha", "task.scale"),  # factors of the adapter's output, and of the loss
    "task.start_at_mean",  # values of the first weights
    *("evaluate.patience", "evaluate.min_delta"),  # end the run: fewer steps, of the same time
    *("task.threshold", "evaluate.slices", "evaluate.cluster"),  # for scores only
    "measure.reference_batch",  # for goodput only
}
"""Options whose value does not matter, with the reason. Left out although they are close to these: `epochs` and
`max_steps` (the mean is over other batches), `optimizer`, `freeze` and `class_weights` (other operations),
`mask_probability` (other rows in the head), `evaluate.best` and `every` (memory), and all that only changes how a run
is executed: that is what comparisons of speed are about."""
WITHOUT: Mapping[str, Any] = {
    **dict.fromkeys(("train.max_grad_norm", "task.focal_gamma")),
    "train.layer_decay": 1.0,
    **dict.fromkeys(("task.label_smoothing", "model.adapter.dropout"), 0.0),
    **{f"model.overrides.{name}_dropout_prob": 0.0 for name in ("hidden", "attention_probs")},
    **{f"model.overrides.{name}": 0.0 for name in ("dropout", "attention_dropout", "classifier_dropout")},
}
"""Options with one value that leaves operations out; two other values have the same operations."""
OF_A_STEP = {
    *("speed", "samples_per_s", "tokens_per_s", "step_mean_ms", "step_median_ms", "epoch_s", "utilisation", "mfu"),
    *("peak_memory_largest_bytes", "peak_memory_sum_bytes", "communication_share", "exposed_communication_share"),
    *("wait_share", "get_batch_share", "bubble_share", "padding_share", *(f"{phase}_mean_ms" for phase in ALL_PHASES)),
}
"""Measures of the mean step: equal, up to the machine, in runs of one `step_class`. Others are of the whole run, which
may end early."""
OF_ONE_RUN = ("_VISIBLE_DEVICES", "_CACHE_DIR", "_CACHE_PATH")
"""Ends of environment variables that differ between runs of one configuration: GPUs assigned by a queue, folders."""
_NODE = ("cpu_model", "num_physical_cores", "num_logical_cores", "num_usable_cores")


@dataclass(frozen=True)
class Group:
    """Runs that are equal except for seed and repeat."""

    label: str
    runs: tuple[RunRecord, ...]
    noise_kind: NoiseKind = "plain"  # the noise scale that goodput uses, the same in all groups
    levels: Mapping[str, str] = field(default_factory=dict)  # name of its value on each axis, for main effects

    @property
    def by_seed(self) -> dict[Any, list[RunRecord]]:
        """The runs of each seed: repeats of a seed do not count as other seeds."""
        return grouped((run.run.seed, run) for run in self.runs)

    @cached_property
    def step_class(self) -> str | None:
        """A text that is equal for groups whose steps do the same; None where the records do not tell, or differ.

        A record without configuration, machine or fingerprint of its data does not tell: unknown is never equal.
        """
        classes: set[str | None] = set()
        for run in self.runs:
            facts, fingerprint = run.run, run.data("train").fingerprint
            settings = {key: value for key, value in flatten(facts.config).items() if key not in ANY_VALUE}
            settings |= {key: settings[key] != off for key, off in WITHOUT.items() if key in settings}
            environment = {str(name): str(value) for name, value in facts.environment.items()}
            nodes = (
                str([*map(node.get, _NODE), *(gpu.get("name") for gpu in gpus_of(node))]) for node in facts.hardware
            )
            found = [
                settings,
                {name: value for name, value in environment.items() if not name.endswith(OF_ONE_RUN)},
                sorted(nodes),
                *(facts.strategy.kind, facts.strategy.options, facts.world_size, facts.num_threads, facts.device),
                *(facts.batch.model_dump(), facts.versions, facts.own_code, facts.code.get("git_commit"), fingerprint),
            ]
            is_known = facts.config and facts.hardware and fingerprint is not None
            classes.add(json.dumps(found, sort_keys=True, default=str) if is_known else None)
        return classes.pop() if len(classes) == 1 else None

    @cached_property
    def num_neighbours(self) -> int | None:
        """Runs of the same sweep that were trained beside each of these, throughout; None where their number changed.

        A record that names none was trained alone, as far as paratune knows: by itself or in a sweep in turn.
        """
        beside = [run.summary.neighbours for run in self.runs]
        counts = {0 if one is None else len(one.names) if one.is_constant else None for one in beside}
        return counts.pop() if len(counts) == 1 else None

    def cannot_differ(self, other: "Group") -> bool:
        """Return whether the steps of both do the same, so that their speed and memory cannot differ."""
        is_other = self.label != other.label  # speed-ups compare a group with itself, too
        return is_other and self.step_class is not None and self.step_class == other.step_class


@dataclass(frozen=True)
class Differs:
    """Differences between two groups of runs, in what makes them the same experiment."""

    refused: tuple[str, ...] = ()  # differences, in words, that are not allowed: there is no verdict
    allowed: tuple[str, ...] = ()  # differences that are allowed because they are what is compared; the text names them
    unknown: tuple[str, ...] = ()  # settings that a run does not record
    batch: bool = False  # whether the global batch size differs: then goodput is compared, not samples/s
    elsewhere: bool = False  # whether they ran on different machines, which is allowed and mentioned
    samples: float | None = None  # samples on which the group trains over the baseline's; None where they are as many
    allow: tuple[str, ...] = ()  # words for `--allow` with which nothing is refused; none where a difference has none


def matched(first: Sequence[Any], second: Sequence[Any]) -> tuple[list[int], list[int]] | None:
    """Return the places of runs with equal keys, in order; None unless every run of the smaller side has a partner."""
    shared = [key for key in first if key in second]
    if len(shared) < min(len(first), len(second)) or len(shared) < 2:
        return None
    return [first.index(key) for key in shared], [second.index(key) for key in shared]


def why_one(first: int, second: int, noun: str) -> str | None:
    """Return why there is no interval over runs or seeds when a side has only one; None when both have more."""
    if min(first, second) > 1:
        return None
    who = f"one {noun} each" if first == second else f"one {noun} on one side"
    return f"{who}: how far another {noun} would be from it is not known"


@dataclass(frozen=True)
class Margin:
    """The largest change that counts as equal."""

    amount: float  # in the unit of the metric, or a share of the baseline's figure; above 0
    is_share: bool = False


def default_margin(measure: str, task: str) -> Margin:
    """Return the margin of `SPEED` or of a metric for which no margin is given; scores of qa are per cent."""
    if task == "ordinal" and measure == "mae":
        return Margin(_POINTS)
    if measure in _OF_THE_BASELINE:
        return Margin(_OF_THE_BASELINE[measure], is_share=True)
    return Margin(100 * _POINTS if task == "qa" else _POINTS)


def read_margins(words: Iterable[str]) -> Mapping[str, Margin]:
    """Return margins by measure from words such as "f1_macro=0.01", "F1, macro=0.01,rmse=2%" and "speed=3%";
    `ConfigError` with all words that are none."""
    known = [SPEED, *dict.fromkeys(metric for metrics in METRICS.values() for metric in metrics)]
    margins, problems = {}, []
    # A title may have a comma.
    for word in (part.strip(", ") for text in words for part in _MARGIN.findall(text) or [""]):
        measure, _, text = (part.strip() for part in word.partition("="))
        measure = key_of(measure)
        number, percent, rest = text.partition("%")
        try:
            amount = float(number) / (100 if percent else 1)
        except ValueError:
            amount = math.nan
        if measure not in known:
            problems.append(f"{measure!r} is none of {', '.join(known)}{did_you_mean(measure, known)}")
        elif rest or not 0 < amount < math.inf or (measure == SPEED and not percent):
            allowed = "per cent above 0" if measure == SPEED else "a number above 0, or per cent"
            problems.append(f"{word!r}: the margin of {measure} is {allowed} ({measure}=3%)")
        else:
            margins[measure] = Margin(amount, is_share=bool(percent))
    if problems:
        lines = [f"--margin: {len(problems)} cannot be read", *(f"  {line}" for line in problems)]
        raise ConfigError("\n".join(lines), code="cli.invalid_value", option="--margin")
    return margins


@dataclass(frozen=True)
class NegativeControl:
    """How much configurations differ that cannot differ in speed."""

    most: float  # largest ratio of two of them, less 1
    variance: float  # of the logarithm of a speed, beyond the variation from run to run; 0 where none is found
    freedom: int  # configurations less classes of them: the degrees of freedom of `variance`
    p_value: float  # of "they differ as single runs do": below 5%, the machine changed the speed of configurations


def negative_control(logs: Sequence[Sequence[float]], classes: Sequence[Hashable | None]) -> NegativeControl | None:
    """Return the variation within classes of configurations; None where no class has two of them.

    `logs` are the logarithms of the rates of each configuration, at least 2; a class of None is no class. It is the
    one-way analysis of variance of random effects: (mean square between - within) / runs of a configuration.
    """
    members = {name: [at for at, own in enumerate(classes) if own == name] for name in classes if name is not None}
    families = [[np.asarray(logs[at]) for at in places] for places in members.values() if len(places) > 1]
    if not families:
        return None
    between = within = size = most = 0.0
    free_between = free_within = 0
    for family in families:
        counts, means = np.asarray([len(some) for some in family]), np.asarray([some.mean() for some in family])
        between += float(counts @ (means - np.average(means, weights=counts)) ** 2)
        within += sum(float(((some - some.mean()) ** 2).sum()) for some in family)
        size += float(counts.sum() - (counts @ counts) / counts.sum())
        free_between += len(family) - 1
        free_within += int(counts.sum()) - len(family)
        most = max(most, float(np.ptp(means)))
    square, noise = between / free_between, within / free_within
    p_value = float(special.fdtrc(free_between, free_within, square / noise)) if noise else float(square == 0)
    variance = max(0.0, square - noise) * free_between / size
    return NegativeControl(float(np.expm1(most)), variance, free_between, p_value)
