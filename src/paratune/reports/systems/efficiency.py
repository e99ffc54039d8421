"""Statistical efficiency and goodput of configurations.

Efficiency is (phi + m0) / (phi + m): phi the gradient noise scale, m the global batch size, m0 the reference batch of
the baseline. Source: Qiao et al., Pollux, OSDI 2021, equation 7. Goodput is samples/s times efficiency. Both are those
of each run, as verdicts have them; over runs they are totals over totals: what all samples were worth, over their
number and over their time.
"""

import statistics
from dataclasses import replace

from paratune.records.efficiency import NoiseKind
from paratune.reports.amounts import Amount, measured_samples
from paratune.reports.measures import EFFICIENCY, GOODPUT, MEASURES, NOISE_KEYS
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.verdicts.rates import efficiency_of, noise_interval, noise_kind, pooled_noise, reference_batch_of


def noise_kind_of(systems: Systems) -> NoiseKind:
    """Return the noise scale that the goodput of all configurations uses."""
    return systems.once("kind of noise", systems.measured[0], lambda: noise_kind(systems.runs))


def noise_amount(systems: Systems, kind: NoiseKind, configuration: Configuration) -> Amount:
    """Return the noise scale of a configuration from its own runs together, with its 95% interval over runs.

    Its runs are those that it was measured in; its remark is why it is unknown.
    """
    runs, own = configuration.runs, MEASURES[NOISE_KEYS[kind]]
    measure = replace(own, source=f"{own.source}: all traces over all squared norms")
    noise = pooled_noise(runs, kind)
    if noise is None:
        reason = next((str(reason) for run in runs if (reason := run.noise(kind).reason)), "it was not measured")
        return Amount(measure, {}, None, len(runs), f"noise scale unknown: {reason}")
    values = {run.name: noise for run in runs if (found := run.noise(kind)).num_steps or found.value}
    return Amount(measure, values, noise, len(values), is_of_all=True, interval=noise_interval(runs, kind))


def efficiency(systems: Systems, configuration: Configuration) -> Amount:
    """Return the statistical efficiency of a configuration against the reference batch of the baseline."""
    kind, runs = noise_kind_of(systems), configuration.runs
    noise = noise_amount(systems, kind, configuration)
    base = reference_batch_of(systems.baseline_of(configuration).runs[0])
    by_run = {run.name: efficiency_of(run, noise.center, base, kind) for run in runs}
    values = {name: value for name, value in by_run.items() if value is not None}
    if not values:
        return Amount(EFFICIENCY, {}, None, len(runs), noise.remark)
    if configuration.global_batch_size == base or not any(run.noise(kind).value for run in runs):
        # 1, or all by the same noise scale, so that there is no spread.
        return Amount(EFFICIENCY, values, statistics.fmean(values.values()), len(values), is_of_all=True)
    done = {run.name: measured_samples(run) or 0.0 for run in runs if run.name in values}
    weights = done if all(done.values()) else dict.fromkeys(done, 1.0)
    center = sum(weights[name] * values[name] for name in weights) / sum(weights.values())
    return Amount(EFFICIENCY, values, center, len(runs), noise.remark)


def goodput(systems: Systems, configuration: Configuration) -> Amount:
    """Return samples/s times statistical efficiency, for each run and for all runs together."""
    share, rate = efficiency(systems, configuration), systems.amount(MEASURES["samples_per_s"], configuration)
    if share.center is None or rate.center is None:
        return Amount(GOODPUT, {}, None, rate.num_runs, share.remark)
    values = {run: value * share.values.get(run, share.center) for run, value in rate.values.items()}
    # The efficiency column has the remark.
    return Amount(GOODPUT, values, rate.center * share.center, rate.num_runs)
