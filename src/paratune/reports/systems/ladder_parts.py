"""The compression ladder in a report: a sentence of advice, a figure, a table, and the scores by slice."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from paratune.base.units import MIB, NOT_AVAILABLE, format_number, format_share
from paratune.config.metric_names import direction
from paratune.records.compressed import FORMS, FP32
from paratune.reports.document import Notice, Part, Statement
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Hovers, Key
from paratune.reports.rows.scores import metric_name
from paratune.reports.runs.slice_tables import SlicedRuns, slice_tables
from paratune.reports.systems.ladder import Ladder, LadderEntry, best_entry
from paratune.reports.tables.table import Table, TableCell, make_table
from paratune.verdicts import MeasureComparison
from paratune.verdicts.estimate import mean_of
from paratune.verdicts.words import label_of, quality_words

KEY, HEADING = "ladder", "Compression ladder"
Estimated = tuple[float | None, tuple[float, float] | None]
"""A value and its interval, if they are known."""
_UNKNOWN: Estimated = (None, None)
_MARKERS = {FP32: "o", **dict(zip(FORMS, ("s", "P", "D", "^"), strict=True))}
_FORM_NOTE = (
    "Forms: fp32 is the trained model in float32; bf16 has weights of 16 bits and computes in float32; int8 is an ONNX "
    "file with weights of 8 bits, computed by onnxruntime."
)


def ladder_parts(ladders: Sequence[Ladder]) -> Iterator[Part]:
    """Yield the parts of the section for each ladder."""
    for number, ladder in enumerate(ladders):
        suffix = "" if number == 0 else f"-{number + 1}"
        text, _ = advice(ladder)
        yield Notice(text, is_warning=False)
        yield _figure(ladder, f"{KEY}-figure{suffix}")
        yield _table(ladder, f"{KEY}{suffix}")
        yield _comparisons(ladder, f"{KEY}{suffix}-comparisons")
        for table in slice_tables([SlicedRuns(entry.label, entry.runs) for entry in ladder.entries]):
            yield replace(table, key=f"{KEY}{suffix}-{table.key}")


def ladder_statements(ladders: Sequence[Ladder]) -> Iterator[Statement]:
    """Yield the advice as a conclusion of the report."""
    for ladder in ladders:
        text, is_good = advice(ladder)
        yield Statement("Smaller model", text, is_good, KEY)


def advice(ladder: Ladder) -> tuple[str, bool | None]:
    """Return which entry to use, in one sentence, and whether one is shown to be as good as the baseline."""
    base, best = ladder.base, best_entry(ladder)
    if best is not None and best.comparison is not None:
        quality = quality_words((best.comparison,), base.runs[0].task)
        size = format_share(best.weights_bytes / base.weights_bytes)
        waited = ", measured while other programs used the processors" if best.waited or base.waited else ""
        time = f"{format_number(best.p50_ms, 3)} ms against {format_number(base.p50_ms, 3)} ms"
        return (
            f"Use {best.label}: {quality}, with {size} of the bytes of {base.label} and a median latency of "
            f"{time}{waited}.",
            True,
        )
    others = [entry for entry in ladder.entries if entry is not base]
    open_ones = [
        entry for entry in others if entry.comparison is not None and entry.comparison.outcome == "cannot tell"
    ]
    if open_ones:
        nearest, comparison = max(
            ((entry, entry.comparison) for entry in open_ones if entry.comparison is not None),
            key=lambda pair: _worst(pair[1]),
        )
        quality = quality_words((comparison,), base.runs[0].task)
        return f"Keep {base.label} for now: no smaller form is shown to be as good; {nearest.label}: {quality}.", None
    if not others:
        return f"Only {base.label} was measured, so that there is nothing to compare it with.", None
    if all(entry.comparison is None or entry.comparison.change is None for entry in others):
        return f"Keep {base.label}: the quality of the other forms cannot be compared with it.", None
    return f"Keep {base.label}: no other form is as good and also smaller or faster.", False


def _worst(comparison: MeasureComparison) -> float:
    """Return the worst end of the interval of a change: the larger, the better it may be trusted."""
    if comparison.low is None or comparison.high is None:
        return -math.inf
    return comparison.low if direction(comparison.measure) == "max" else -comparison.high


def _table(ladder: Ladder, key: str) -> Table:
    metric = ladder.metric
    columns = (
        ("Model", "model"),
        ("Form", "form"),
        ("Weights (MiB)", "weights_mib"),
        ("Latency p50 (ms)", "p50_ms"),
        ("Latency p95 (ms)", "p95_ms"),
        ("Texts/s, batch 1", "texts_per_s"),
        ("Texts/s, best batch", "best_texts_per_s"),
        ("Best batch", "best_batch"),
        ("Peak memory (MiB)", "peak_mib"),
        (f"{ladder.split.capitalize()} {metric_name(metric) if metric else 'score'}", "score"),
        ("Same predictions", "same_predictions"),
        ("Explanations agree", "explanations"),
        ("Quality", "quality"),
    )
    return make_table(key, HEADING, columns, (_line(ladder, entry) for entry in ladder.entries), 2, _notes(ladder))


def _line(ladder: Ladder, entry: LadderEntry) -> tuple[TableCell, ...]:
    def cell(field: str, batch: str = "", size: float = 1.0) -> TableCell:
        mean, spread = entry.mean(lambda found: found[field][batch] if batch else found[field])
        center, deviation = mean / size, None if spread is None else spread / size
        text = f"{center:.3g}" if center < 100 else f"{center:.0f}"
        text += f" ± {format_number(deviation, 2)}" if deviation else ""
        return TableCell(text, center, entry.cells, f"compressed/measured: {field}", deviation=deviation)

    batch, share = _best_batch(entry), entry.same_decisions
    return (
        TableCell(entry.configuration.label, runs=entry.cells),
        TableCell(entry.form, runs=entry.cells),
        cell("weights_bytes", size=MIB),
        cell("p50_ms"),
        cell("p95_ms"),
        cell("texts_per_s", "1"),
        cell("texts_per_s", batch),
        TableCell(batch, int(batch), entry.cells),
        cell("peak_bytes", size=MIB),
        _estimate_cell(entry, score_of(ladder, entry), ".4f", "scores"),
        TableCell(format_share(share), share, entry.cells, "predictions"),
        _estimate_cell(entry, (entry.explanations or _UNKNOWN)[:2], ".2f", "effects"),
        _quality_cell(ladder, entry),
    )


def _best_batch(entry: LadderEntry) -> str:
    """Return the batch size with the most texts/s, as a mean over the seeds."""
    sizes: set[str] = set.intersection(*({*member.measured["texts_per_s"]} for member in entry.members))
    return max(sorted(sizes, key=int), key=lambda size: entry.mean(lambda found: found["texts_per_s"][size])[0])


def score_of(ladder: Ladder, entry: LadderEntry) -> Estimated:
    """Return the mean score of an entry and its 95% interval: over seeds, or over rows for one seed."""
    values = [member.measured["scores"].get(ladder.metric) for member in entry.members]
    known = [value for value in values if value is not None]
    if ladder.metric is None or not known:
        return _UNKNOWN
    if len(known) > 1:
        estimate = mean_of(known, scope="seeds")
        return estimate.value, estimate.interval()
    found = entry.members[0].measured["intervals"].get(ladder.metric) or {}
    interval = found.get("interval")
    return known[0], None if interval is None else (interval[0], interval[1])


def _estimate_cell(entry: LadderEntry, estimate: Estimated, form: str, field: str) -> TableCell:
    """Return the cell of a value with its interval in brackets."""
    value, interval = estimate
    if value is None:
        return TableCell(NOT_AVAILABLE, None, entry.cells)
    limits = "" if interval is None else f" ({interval[0]:{form}} to {interval[1]:{form}})"
    source = f"compressed/measured: {field}"
    return TableCell(f"{value:{form}}{limits}", value, entry.cells, source, interval=interval)


def _quality_cell(ladder: Ladder, entry: LadderEntry) -> TableCell:
    found = entry.comparison
    if found is None:
        return TableCell("baseline" if entry is ladder.base else NOT_AVAILABLE, runs=entry.cells)
    words = {"different": "better" if found.is_better else "worse"}
    return TableCell(words.get(found.outcome, found.outcome), None, entry.cells, better=found.is_better)


def _comparisons(ladder: Ladder, key: str) -> Table:
    """Return the comparisons of the quality with the baseline, in words."""
    rows = []
    for entry in ladder.entries:
        if entry is not ladder.base:
            words = entry.reason
            if entry.comparison is not None:
                words = quality_words((entry.comparison,), entry.runs[0].task)
            rows.append([TableCell(text, runs=entry.cells) for text in (entry.label, words or NOT_AVAILABLE)])
    note = "95% confidence intervals; Holm's correction for the number of forms."
    columns = (("Model and form", "entry"), ("Quality", "quality"))
    return make_table(key, f"Quality compared with {ladder.base.label}", columns, rows, 2, (note,))


def _notes(ladder: Ladder) -> Iterator[str]:
    first = ladder.base.members[0].measured
    machine = first["machine"]
    yield (
        f"Measured on a CPU ({machine['cpu'] or NOT_AVAILABLE}, {machine['num_threads']} threads) in float32, from "
        f"padded batches: latency of a batch of one text, over {first['num_timed']} rows."
    )
    yield _FORM_NOTE
    yield f"Scores: {first['num_rows']} rows of {ladder.split}."
    counts = {len(entry.members) for entry in ladder.entries}
    if max(counts) > 1:
        yield "Figures: means over seeds, ± one standard deviation. Intervals of scores: 95% intervals over seeds."
    else:
        yield "One seed: the intervals of scores are 95% intervals over rows."
    explained = next((entry.explanations for entry in ladder.entries if entry.explanations is not None), None)
    if explained is not None:
        yield (
            f"Explanations agree: Spearman's rank correlation of the effects of words, by occlusion, with those of "
            f"{ladder.base.label} of the same seed: mean over {explained[2]} rows, with its 95% interval over rows."
        )
    yield from ladder.notes


def _figure(ladder: Ladder, key: str) -> Drawing:
    """Draw the score of each entry against its size and its latency."""
    labels = list(dict.fromkeys(entry.configuration.label for entry in ladder.entries))
    colours = {label: RUN_COLOURS[number % len(RUN_COLOURS)] for number, label in enumerate(labels)}
    forms = [form for form in _MARKERS if any(entry.form == form for entry in ladder.entries)]
    name = f"{ladder.split.capitalize()} {metric_name(ladder.metric) if ladder.metric else 'score'}"

    def draw(figure: Any, hovers: Hovers) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, label in zip(panels, ("Weights (MiB)", "Median latency of one text (ms)"), strict=True):
            for entry in ladder.entries:
                x = entry.weights_bytes / MIB if axes is panels[0] else entry.p50_ms
                _point(axes, hovers, ladder, entry, x, colours[entry.configuration.label])
            axes.set_xlabel(label)
            axes.set_xlim(left=0)
            axes.grid()
            axes.margins(0.14)
        panels[0].set_ylabel(name)

    legend = (
        *(Key(label, colours[label], is_area=True) for label in labels),
        *(Key(form, MUTED, marker=_MARKERS[form]) for form in forms),
    )
    caption = "Lines: 95% intervals of the scores. Forms on the left are smaller, or faster."
    return Drawing(key, "Quality against size and latency", caption, draw, 3.4, whole=True, legend=legend)


def _point(axes: Any, hovers: Hovers, ladder: Ladder, entry: LadderEntry, x: float, colour: str) -> None:
    score, interval = score_of(ladder, entry)
    if score is None:
        return
    if interval is not None:
        axes.plot([x, x], interval, color=colour, linewidth=1.0, alpha=0.6)
    text = f"{entry.label}: {format_number(x, 3)}, {label_of(ladder.metric or '')} {score:.4f}"
    gid = hovers.add(text)
    axes.plot([x], [score], _MARKERS[entry.form], markersize=7, color=colour, gid=gid)
