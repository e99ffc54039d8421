"""Rows on devices: utilisation, work, power, energy, device-hours and cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paratune.base.units import format_number
from paratune.reports.rows.row import ReportRow, RowBuilder, formatted, numbers, percentages
from paratune.reports.runs.read import RunRecord, number_in

GROUP = "Devices"
KINDS = {
    "nvml": "On a GPU, the share of time in which a kernel ran (NVML); MFU measures how well the GPU was used.",
    "cpu": "On a CPU, the CPU time of a rank divided by the time of its cores.",
}


def device_rows(runs: Sequence[RunRecord], price: float | None = None) -> Iterator[ReportRow]:
    """Yield utilisation, work, power, energy, device-hours and, with a price, the cost."""
    yield from _utilisation(runs)
    yield from _work(runs)
    source = "summary.utilisation.devices[].power_w"
    powers = [_mean_power_w(run) for run in runs]
    yield RowBuilder(runs, GROUP).row("power_w", "Power of a device, mean (W)", source, powers, numbers(powers))
    yield from _energy(runs)
    yield from _cost(runs, price)


def device_hours(run: RunRecord) -> float | None:
    """Return the hours of a run times its devices; None when their number changed."""
    total_s, size = run.number("summary.time.total_s"), run.number("run.world_size")
    if total_s is None or size is None or len(run.session_values("run.world_size")) > 1:
        return None
    return total_s * size / 3600


def unknown_reasons(run: RunRecord) -> Iterator[str]:
    """Yield the reasons for unknown figures of runs on GPUs; on CPUs most of them are always unknown."""
    on_gpu = run.get("run.device") == "cuda"
    busy, energy = (run.number(f"summary.utilisation.{key}") for key in ("mean", "energy_j"))
    reason = run.get("summary.utilisation.reason")
    if reason is not None and (busy is None or (on_gpu and energy is None)):
        yield f"utilisation, power or energy is n/a: {reason}."
    reason = run.get("summary.flops.reason")
    if reason is not None and on_gpu and run.number("summary.flops.mfu") is None:
        yield f"MFU is n/a: {reason}."


def _utilisation(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    builder = RowBuilder(runs, GROUP)
    kinds = [run.get("summary.utilisation.kind") for run in runs]
    meant = " ".join(text for kind, text in KINDS.items() if kind in kinds)
    row = builder.number("utilisation", "Utilisation **", "summary.utilisation.mean", percentages)
    yield replace(row, footnote=f"** {meant}")
    yield builder.text("utilisation_kind", "Utilisation by", "summary.utilisation.kind")
    for key, name, label in (
        ("utilisation_p10", "p10", "Utilisation, p10"),
        ("utilisation_p90", "p90", "Utilisation, p90"),
        ("machine_utilisation", "machine_mean", "All cores, with other processes"),
    ):
        yield builder.number(key, label, f"summary.utilisation.{name}", percentages, shown=False)


def _cost(runs: Sequence[RunRecord], price: float | None) -> Iterator[ReportRow]:
    """Yield device-hours, shown when there is a price or a GPU, and their cost."""
    builder = RowBuilder(runs, GROUP)
    source = "summary.time.total_s times run.world_size"
    hours = [device_hours(run) for run in runs]
    texts = formatted(lambda value: format_number(value, 3))
    is_shown = price is not None or any(run.get("run.device") == "cuda" for run in runs)
    yield builder.row("device_hours", "Device-hours, whole run", source, hours, texts(hours), shown=is_shown)
    if price is not None:
        costs = [None if value is None else value * price for value in hours]
        label = f"Cost at {price:g} a device-hour"
        yield builder.row("cost", label, f"{source}, times {price:g}", costs, texts(costs))


def _work(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    builder = RowBuilder(runs, GROUP)
    source = "summary.flops.model_flops_per_s"
    rates = [run.number(source) for run in runs]
    largest = max((rate for rate in rates if rate is not None), default=0.0)
    unit, size = ("TFLOP/s", 1e12) if largest >= 1e12 else ("GFLOP/s", 1e9)
    yield builder.row("model_flops_per_s", f"Work of real tokens ({unit})", source, rates, numbers(rates, size))
    yield builder.number("mfu", "MFU", "summary.flops.mfu", percentages)
    yield builder.text("peak_source", "Peak by", "summary.flops.peak_source")


def _energy(runs: Sequence[RunRecord]) -> Iterator[ReportRow]:
    builder = RowBuilder(runs, GROUP)
    source = "summary.utilisation.energy_j"
    energies = [run.number(source) for run in runs]
    largest = max((energy for energy in energies if energy is not None), default=0.0)
    unit, size = ("kJ", 1000.0) if largest >= 10_000 else ("J", 1.0)
    yield builder.row("energy_j", f"Energy of all steps ({unit})", source, energies, numbers(energies, size))
    yield builder.text("energy_source", "Energy by", "summary.utilisation.energy_source")


def _mean_power_w(run: RunRecord) -> float | None:
    """Return the mean power of the devices in watts; None when one of them is unknown."""
    powers = [device.get("power_w") for device in run.objects("summary.utilisation.devices")]
    means = [number_in(power.get("mean")) if isinstance(power, Mapping) else None for power in powers]
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if known and len(known) == len(means) else None
