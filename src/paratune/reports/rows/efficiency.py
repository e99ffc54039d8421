"""Rows on statistical efficiency, communication and stragglers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paratune.base.units import NOT_AVAILABLE, format_as, format_share
from paratune.records.efficiency import MIN_SAMPLES, NoiseKind, noise_field, statistical_efficiency
from paratune.reports.rows.row import ReportRow, RowBuilder, decimals, in_form, numbers, percentages
from paratune.reports.runs.read import RunRecord
from paratune.verdicts.rates import noise_kind, reference_batch_of

GROUP = "Efficiency"
_FIGURES = {
    "noise_scale": "value", "noise_scale.preconditioned": "value", "communication": "share", "stragglers": "slowdown",
}  # fmt: skip
"""Parts of a summary with a reason for unknown values, and the figure that is null then."""
_NAMES = {
    "noise_scale": "noise scale", "noise_scale.preconditioned": "noise scale under AdamW",
    "communication": "communication", "stragglers": "slowest rank",
}  # fmt: skip
_KINDS: dict[str, NoiseKind] = {"noise_scale": "plain", "noise_scale.preconditioned": "preconditioned"}
NOISE_ROWS: dict[NoiseKind, tuple[str, str]] = {
    "plain": ("noise_scale", "Noise scale (samples)"),
    "preconditioned": ("noise_scale_preconditioned", "Noise scale under AdamW (samples)"),
}
"""Key and label of the noise scale by its kind."""


@dataclass(frozen=True)
class RunNoise:
    """The noise scale of a run, in samples; unknown below `MIN_SAMPLES` sampled steps, as in older records."""

    value: float | None
    error: float | None
    """Standard error, if known."""
    num_samples: float | None
    """Sampled steps."""


def efficiency_rows(runs: Sequence[RunRecord], reference: RunRecord) -> Iterator[ReportRow]:
    """Yield noise scale, statistical efficiency against the reference batch of a run, goodput and waiting."""
    builder = RowBuilder(runs, GROUP)
    for kind in NOISE_ROWS:
        yield _noise_row(runs, kind)
    kind = noise_kind(runs)
    batch, base = "run.batch.global_batch_size", reference_batch_of(reference)
    efficiencies = [_efficiency(run, run_noise(run, kind), reference) for run in runs]
    # When all batches are the reference batch, efficiency is 100% and goodput equals samples/s.
    differ = {run.number(batch) for run in runs} != {base}
    yield builder.row(
        "statistical_efficiency",
        f"Statistical efficiency (against {_batch_text(base)})",
        f"(phi + m0) / (phi + m): phi {noise_field(kind, 'value')}, m {batch}, "
        f"m0 {_base_source(reference)} of {reference.name}",
        efficiencies,
        percentages(efficiencies),
        shown=differ,
    )
    rate = "summary.throughput.samples_per_s"
    rates = [run.number(rate) for run in runs]
    goodputs = [
        None if value_rate is None or other is None else value_rate * other
        for value_rate, other in zip(rates, efficiencies, strict=True)
    ]
    source = f"{rate} times statistical_efficiency"
    label, texts = "Goodput (useful samples/s)", numbers(goodputs)
    yield builder.row("goodput", label, source, goodputs, texts, shown=differ)
    yield from _communication(runs)
    yield from _stragglers(runs)


def run_noise(run: RunRecord, kind: NoiseKind = "plain") -> RunNoise:
    """Return the noise scale of a run, from its own samples alone."""
    count = run.number(noise_field(kind, "num_steps"))
    if count is None or count < MIN_SAMPLES:
        return RunNoise(None, None, count)
    value, error = (run.number(noise_field(kind, name)) for name in ("value", "standard_error"))
    return RunNoise(value, error, count)


def noise_words(kind: NoiseKind) -> str:
    """Return what phi is, in words."""
    name = "the gradient noise scale"
    return name if kind == "plain" else f"{name} of gradients divided as AdamW divides them"


def why_unknown(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Return the reasons for unknown figures of each run, if another run has them."""
    shown = {part for part in _FIGURES if any(_figure(run, part) is not None for run in runs)}
    reasons = []
    for run in runs:
        texts = []
        for part in _FIGURES:
            reason = run.get(f"summary.{part}.reason")
            if isinstance(reason, str) and part in shown and _figure(run, part) is None:
                texts.append(f"{_NAMES[part]} n/a: {reason}.")
        reasons.append(texts)
    return reasons


def _figure(run: RunRecord, part: str) -> float | None:
    return run_noise(run, _KINDS[part]).value if part in _KINDS else run.number(f"summary.{part}.{_FIGURES[part]}")


def _noise_row(runs: Sequence[RunRecord], kind: NoiseKind) -> ReportRow:
    noises = [run_noise(run, kind) for run in runs]
    values = [noise.value for noise in noises]
    form = f",.{decimals(values)}f"
    texts = []
    for noise in noises:
        error = "" if noise.value is None or noise.error is None else f" ± {noise.error:{form}}"
        count = "" if noise.num_samples is None else f" (n = {noise.num_samples:,.0f})"
        texts.append(f"{format_as(noise.value, form)}{error}{count}")
    is_known = any(value is not None for value in values)
    key, label = NOISE_ROWS[kind]
    return RowBuilder(runs, GROUP).row(key, label, noise_field(kind, "value"), values, texts, shown=is_known)


def _efficiency(run: RunRecord, noise: RunNoise, reference: RunRecord) -> float | None:
    size, of_reference = run.number("run.batch.global_batch_size"), reference_batch_of(reference)
    if not size or not of_reference:
        return None
    if size == of_reference:
        return 1.0  # for any noise scale
    if noise.value is None:
        return None
    return statistical_efficiency(noise.value, size, of_reference)


def _base_source(reference: RunRecord) -> str:
    is_own = reference.number("run.config.measure.reference_batch") is not None
    return "measure.reference_batch" if is_own else "that"


def _batch_text(size: float | None) -> str:
    return NOT_AVAILABLE if size is None else f"{size:,.0f} samples"


def _communication(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    builder, part = RowBuilder(runs, GROUP), "summary.communication"
    share, exposed, label = f"{part}.share", f"{part}.exposed_share", "Communication, not hidden"
    yield builder.pair("communication_share", "Communication (not hidden)", (share, exposed), _share_with)
    yield builder.number("communication_exposed_share", label, exposed, percentages, shown=False)
    label = "Communication (ms a step)"
    yield builder.number("communication_ms_per_step", label, f"{part}.time_ms_per_step", numbers, shown=False)


def _share_with(share: float | None, other: float | None) -> str:
    """Return "12.3% (4.5%)"; n/a if the first share is unknown."""
    return NOT_AVAILABLE if share is None else f"{format_share(share)} ({format_share(other)})"


def _stragglers(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    builder = RowBuilder(runs, GROUP)
    slowdown, rank = (f"summary.stragglers.{key}" for key in ("slowdown", "slowest_rank"))
    yield builder.pair("straggler_slowdown", "Slowest rank to median rank", (slowdown, rank), _slowdown_text)
    yield builder.number("straggler_rank", "Slowest rank", rank, in_form(".0f"), shown=False)
    yield builder.number("wait_share", "Waiting for the slowest rank", "summary.stragglers.wait_share", percentages)


def _slowdown_text(slowdown: float | None, rank: float | None) -> str:
    return NOT_AVAILABLE if slowdown is None or rank is None else f"{slowdown:.2f}× (rank {rank:.0f})"
