"""Rows of the comparison table about what samples are worth and what ranks lose on each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paratune.base.units import NOT_AVAILABLE, format_share
from paratune.records.efficiency import statistical_efficiency
from paratune.report.compare import experiment_key
from paratune.report.read import RunRecord
from paratune.report.rows import ReportRow, decimals, make_row, number_row, numbers, texts_of
from paratune.verdicts.rates import reference_batch_of

GROUP = "Efficiency"
_NOISE, _NOISE_ERROR = "summary.noise_scale.value", "summary.noise_scale.standard_error"
_FIGURES = {"noise_scale": "value", "communication": "share", "stragglers": "slowdown"}
"""Parts of a summary that may be unknown for a reason, each with the figure that is null then."""
_NAMES = {"noise_scale": "noise scale", "communication": "communication", "stragglers": "slowest rank"}


@dataclass(frozen=True)
class RunNoise:
    """The noise scale of a run, in samples."""

    value: float | None
    error: float | None
    """Its standard error, where that is known."""
    measured_in: RunRecord | None
    """The run itself, or one that trained the same thing."""


def efficiency_rows(runs: Sequence[RunRecord], reference: RunRecord) -> Iterator[ReportRow]:
    """Yield what a sample is worth and what communication and waiting cost; rows of which nothing is known too.

    Args:
        runs: In the order of the table.
        reference: Whose reference batch statistical efficiency is held against.
    """
    noises = noises_of(runs)
    yield _noise_row(runs, noises)
    efficiencies = [_efficiency(run, noise, reference) for run, noise in zip(runs, noises, strict=True)]
    batch, base = "run.batch.global_batch_size", reference_batch_of(reference)
    # Where all batches are the reference batch they are 100% and the samples/s.
    differ = {run.number(batch) for run in runs} != {base}
    yield make_row(
        runs, "statistical_efficiency", GROUP, f"Statistical efficiency (against {_batch_text(base)})",
        f"(phi + m0) / (phi + m): phi {_NOISE}, m {batch}, m0 {_base_source(reference)} of {reference.name}",
        efficiencies, [format_share(value) for value in efficiencies], shown=differ,
    )  # fmt: skip
    rate = "summary.throughput.samples_per_s"
    rates = [run.number(rate) for run in runs]
    goodputs = [
        None if one is None or other is None else one * other for one, other in zip(rates, efficiencies, strict=True)
    ]
    source = f"{rate} times statistical_efficiency"
    label, texts = "Goodput (useful samples/s)", numbers(goodputs)
    yield make_row(runs, "goodput", GROUP, label, source, goodputs, texts, shown=differ)
    yield from _communication(runs)
    yield from _stragglers(runs)


def noises_of(runs: Sequence[RunRecord]) -> list[RunNoise]:
    """Return the noise scale of each run, or that of the first run that knows it and trained the same thing."""
    known: dict[str, RunRecord] = {}
    for run in runs:
        key = experiment_key(run)
        if key is not None and run.number(_NOISE) is not None:
            known.setdefault(key, run)
    found = []
    for run in runs:
        of = run if run.number(_NOISE) is not None else known.get(experiment_key(run) or "")
        value, error = (None, None) if of is None else (of.number(_NOISE), of.number(_NOISE_ERROR))
        found.append(RunNoise(value, error, of))
    return found


def why_unknown(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Return for each run why figures of it are n/a: the noise scale always, others where another run has them."""
    shown = {
        part
        for part, figure in _FIGURES.items()
        if any(run.number(f"summary.{part}.{figure}") is not None for run in runs)
    }
    found = []
    for run, noise in zip(runs, noises_of(runs), strict=True):
        texts = []
        for part, figure in _FIGURES.items():
            reason, value = run.get(f"summary.{part}.reason"), run.number(f"summary.{part}.{figure}")
            is_told = noise.value is None if part == "noise_scale" else part in shown and value is None
            if isinstance(reason, str) and is_told:
                texts.append(f"{_NAMES[part]} n/a: {reason}.")
        found.append(texts)
    return found


def _noise_row(runs: Sequence[RunRecord], noises: Sequence[RunNoise]) -> ReportRow:
    places = decimals([noise.value for noise in noises])
    values, texts, sources, borrowed = [], [], [], []
    for run, noise in zip(runs, noises, strict=True):
        error = "" if noise.error is None else f" ± {noise.error:,.{places}f}"
        text = NOT_AVAILABLE if noise.value is None else f"{noise.value:,.{places}f}{error}"
        source = _NOISE
        if noise.measured_in is not None and noise.measured_in is not run:
            borrowed.append(f"that of {run.name} is from {noise.measured_in.name}")
            text, source = f"{text} †", f"{source} of {noise.measured_in.name}"
        values.append(noise.value)
        texts.append(text)
        sources.append(source)
    row = make_row(runs, "noise_scale", GROUP, "Noise scale (samples)", sources, values, texts)
    footnote = f"† Noise scale: {'; '.join(borrowed)}, which trained the same thing." if borrowed else ""
    return replace(row, footnote=footnote)


def _efficiency(run: RunRecord, noise: RunNoise, reference: RunRecord) -> float | None:
    size, of_reference = run.number("run.batch.global_batch_size"), reference_batch_of(reference)
    if not size or not of_reference:
        return None
    if size == of_reference:
        return 1.0  # whatever the noise scale is
    if noise.value is None:
        return None
    return statistical_efficiency(noise.value, size, of_reference)


def _base_source(reference: RunRecord) -> str:
    is_own = reference.number("run.config.measure.reference_batch") is not None
    return "measure.reference_batch" if is_own else "that"


def _batch_text(size: float | None) -> str:
    return NOT_AVAILABLE if size is None else f"{size:,.0f} samples"


def _communication(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    sources = {key: f"summary.communication.{key}" for key in ("share", "exposed_share", "time_ms_per_step")}
    shares, exposed = ([run.number(sources[key]) for run in runs] for key in ("share", "exposed_share"))
    texts = [
        NOT_AVAILABLE if share is None else f"{format_share(share)} ({format_share(part)})"
        for share, part in zip(shares, exposed, strict=True)
    ]
    source = f"{sources['share']}, {sources['exposed_share']}"
    yield make_row(runs, "communication_share", GROUP, "Communication (not hidden)", source, shares, texts)
    yield number_row(
        runs, "communication_exposed_share", GROUP, "Communication, not hidden", sources["exposed_share"],
        texts_of(format_share), shown=False,
    )  # fmt: skip
    yield number_row(
        runs, "communication_ms_per_step", GROUP, "Communication (ms a step)", sources["time_ms_per_step"], numbers,
        shown=False,
    )  # fmt: skip


def _stragglers(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    sources = {key: f"summary.stragglers.{key}" for key in ("slowdown", "slowest_rank", "wait_share")}
    slowdowns, ranks = ([run.number(sources[key]) for run in runs] for key in ("slowdown", "slowest_rank"))
    texts = [
        NOT_AVAILABLE if slowdown is None or rank is None else f"{slowdown:.2f}× (rank {rank:.0f})"
        for slowdown, rank in zip(slowdowns, ranks, strict=True)
    ]
    source = f"{sources['slowdown']}, {sources['slowest_rank']}"
    yield make_row(runs, "straggler_slowdown", GROUP, "Slowest rank to median rank", source, slowdowns, texts)
    yield number_row(
        runs, "straggler_rank", GROUP, "Slowest rank", sources["slowest_rank"],
        texts_of(lambda value: NOT_AVAILABLE if value is None else f"{value:.0f}"), shown=False,
    )  # fmt: skip
    yield number_row(
        runs, "wait_share", GROUP, "Waiting for the slowest rank", sources["wait_share"], texts_of(format_share)
    )
