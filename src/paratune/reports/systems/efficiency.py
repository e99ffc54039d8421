"""Statistical efficiency and goodput of configurations.

Efficiency is (phi + m0) / (phi + m): phi the gradient noise scale, m the global batch size, m0 the reference batch of
the baseline. Source: Qiao et al., Pollux, OSDI 2021, equation 7. Goodput is samples/s times efficiency. Both are those
of each run, as verdicts have them; over runs they are totals over totals: what all samples were worth, over their
number and over their time.
"""

import statistics
from dataclasses import dataclass, replace

from paratune.records.efficiency import NoiseKind
from paratune.reports.amounts import Amount, measured_samples
from paratune.reports.measures import EFFICIENCY, GOODPUT, MEASURES, NOISE_KEYS
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.verdicts.rates import efficiency_of, noise_interval, noise_kind, pooled_noise, reference_batch_of

NOISE_SCALES = {
    kind: replace(MEASURES[key], source=f"{MEASURES[key].source}: all traces over all squared norms")
    for kind, key in NOISE_KEYS.items()
}
"""The noise scale by its kind."""


@dataclass(frozen=True)
class ConfigurationNoise:
    """The noise scale of a configuration."""

    value: float | None
    runs: tuple[str, ...]
    """Runs that the noise scale was measured in."""
    remark: str
    """The reason why it is unknown; empty if it is known."""
    interval: tuple[float, float] | None = None
    """95% confidence interval over runs; None for one run."""


def noise_kind_of(systems: Systems) -> NoiseKind:
    """Return the noise scale that the goodput of all configurations uses."""
    first = systems.measured[0]
    return systems.once("kind of noise", first, lambda: noise_kind(systems.runs))


def configuration_noise(
    systems: Systems, configuration: Configuration, kind: NoiseKind | None = None
) -> ConfigurationNoise:
    """Return the noise scale of a configuration from its own runs together; of `noise_kind_of` when `kind` is None."""
    kind = kind or noise_kind_of(systems)
    return systems.once(f"{kind} noise", configuration, lambda: _own_noise(configuration, kind))


def _own_noise(configuration: Configuration, kind: NoiseKind) -> ConfigurationNoise:
    noise = pooled_noise(configuration.runs, kind)
    if noise is not None:
        limits = noise_interval(configuration.runs, kind)
        return ConfigurationNoise(noise, _measured_in(configuration, kind), "", limits)
    reasons = [run.noise(kind).reason for run in configuration.runs]
    reason_text = next((str(reason) for reason in reasons if reason), "it was not measured")
    return ConfigurationNoise(None, (), f"noise scale unknown: {reason_text}")


def reference_words(systems: Systems, configuration: Configuration) -> str:
    """Return the meaning of m0 for a configuration in words."""
    base = systems.baseline_of(configuration)
    is_own = reference_batch_of(base.runs[0]) != base.global_batch_size
    return "measure.reference_batch of the baseline" if is_own else "the baseline's"


def efficiency(systems: Systems, configuration: Configuration) -> Amount:
    """Return the statistical efficiency of a configuration against the reference batch of the baseline."""
    noise = configuration_noise(systems, configuration)
    base = reference_batch_of(systems.baseline_of(configuration).runs[0])
    size = configuration.global_batch_size
    if size is not None and size == base:
        # At the reference batch it is 1 for any noise scale.
        runs = dict.fromkeys((run.name for run in configuration.runs), 1.0)
        remark = f"1 by definition: the batch is {reference_words(systems, configuration)}"
        return Amount(EFFICIENCY, runs, 1.0, len(runs), remark, is_of_all=True)
    kind = noise_kind_of(systems)
    by_run = {run.name: efficiency_of(run, noise.value, base, kind) for run in configuration.runs}
    values = {name: value for name, value in by_run.items() if value is not None}
    if not values:
        return Amount(EFFICIENCY, {}, None, len(configuration.runs), noise.remark)
    if not any(run.noise(kind).value for run in configuration.runs):
        # All by the same one, so that there is no spread.
        center = statistics.fmean(values.values())
        runs = dict.fromkeys(noise.runs, center)
        return Amount(EFFICIENCY, runs, center, len(runs), noise.remark, is_of_all=True)
    done = {run.name: measured_samples(run) or 0.0 for run in configuration.runs if run.name in values}
    weights = done if all(done.values()) else dict.fromkeys(done, 1.0)
    center = sum(weights[name] * values[name] for name in weights) / sum(weights.values())
    return Amount(EFFICIENCY, values, center, len(configuration.runs), noise.remark)


def goodput(systems: Systems, configuration: Configuration) -> Amount:
    """Return samples/s times statistical efficiency, for each run and for all runs together."""
    share, rate = efficiency(systems, configuration), systems.amount(MEASURES["samples_per_s"], configuration)
    if share.center is None or rate.center is None:
        return Amount(GOODPUT, {}, None, rate.num_runs, share.remark)
    values = {run: value * share.values.get(run, share.center) for run, value in rate.values.items()}
    # The efficiency column has the remark.
    return Amount(GOODPUT, values, rate.center * share.center, rate.num_runs)


def _measured_in(configuration: Configuration, kind: NoiseKind) -> tuple[str, ...]:
    """Return the runs whose gradient samples are in the noise scale of a configuration."""
    noises = ((run.name, run.noise(kind)) for run in configuration.runs)
    return tuple(name for name, noise in noises if noise.num_steps or noise.value)
