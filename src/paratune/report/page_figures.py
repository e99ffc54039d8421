"""The figures of the page with their legends, captions and what stands in for them when they cannot be drawn."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paratune.records import predictions_file
from paratune.report import figures
from paratune.report.canvas import Drawing, Key, page_figure
from paratune.report.export import phase_contents
from paratune.report.model import MAX_CLASSES, Report, class_names, confusion_of, rank_memory
from paratune.report.page_tables import line_key
from paratune.report.page_tables import phase_contents as phase_contents_table
from paratune.report.pictures import (
    loss_pictures,
    memory_pictures,
    prediction_pictures,
    read_all_predictions,
    speed_pictures,
)
from paratune.report.read import RunRecord
from paratune.report.rows import byte_unit, numbers
from paratune.report.speed_rows import PHASE_NAMES
from paratune.report.text import Html, join, tag
from paratune.units import NOT_AVAILABLE, format_share

_MAX_RANKS = 64
_MAX_VALUES = 24
"""Errors by actual value: of each of so many different values; more are put together."""


def loss(report: Report) -> Html:
    """Return the loss curves, one figure a task, with the losses at each evaluation."""
    parts: list[Html] = []
    for picture in loss_pictures(report):
        named = {key.label for key in picture.legend}
        runs = [run for run in report.runs if run.name in named or not named]
        if len(runs) < len(report.runs):
            parts.append(tag("h3", runs[0].task.capitalize()))
        parts.append(figure(picture))
        parts += [table for run in runs if (table := _loss_table(run)) is not None]
    return join(parts)


def phases(report: Report) -> Html:
    """Return the stacked phase bars, and what each phase contains under each strategy."""
    bars = join(map(figure, speed_pictures(report)))
    return join([bars, phase_contents_table(phase_contents(report), PHASE_NAMES)])


def memory(report: Report) -> Html:
    """Return the memory bars, or the table of them when they cannot be drawn."""
    bars = [figure(picture) for picture in memory_pictures(report)]
    return join([*bars, _memory_table(report)]) if bars else tag("p", "No run recorded the memory of its ranks.")


def quality(report: Report) -> Html:
    """Return confusion matrices, or predicted against actual, of each run."""
    read = read_all_predictions(report)
    drawn = iter(tuple(prediction_pictures(report, read)))
    parts = []
    for run in report.runs:
        found = read.get(run.name)
        if found is None:
            content = _confusion(run)
        elif isinstance(found, str):
            content = tag("p", found)
        else:
            content = join([figure(next(drawn)), _error_table(run.name, *found)])
        heading = tag("h3", run.name) if len(report.runs) > 1 else None
        parts.append(tag("section", heading, content, class_="matrix" if found is None else None))
    return tag("div", join(parts), class_="beside")


def figure(picture: Drawing) -> Html:
    """Return a picture with its legend and caption, in a region that scrolls on narrow windows.

    Where it cannot be drawn, what to install for it stands in its place.
    """
    missing = figures.can_draw()
    if missing is not None:
        shown = tag("p", f"No figure: {missing}. All figures' values are in the tables.", class_="verdict")
    else:
        svg = page_figure(picture, prefix=picture.key)
        shown = tag("div", svg, class_="scroll", tabindex="0", role="region", aria_label=f"Figure: {picture.title}")
    legend = tag("ul", *(tag("li", _swatch(key), key.label) for key in picture.legend), class_="legend")
    return tag("figure", legend if picture.legend else None, shown, tag("figcaption", picture.caption))


def _swatch(key: Key) -> Html:
    if key.is_area:
        return tag("span", class_="swatch", style=f"background: {key.colour}")
    return line_key(key.colour, key.dashes)


def _loss_table(run: RunRecord) -> Html | None:
    """Return the losses at each evaluation as a table that opens on demand; None where there was none."""
    steps = np.array(run.train.steps)
    losses = np.array(run.train.losses, dtype=np.float64)
    rows, before = [], 0
    for step, epoch, loss in zip(run.validation.steps, run.validation.epochs, run.validation.losses, strict=True):
        since = losses[(steps > before) & (steps <= step)]
        known = since[np.isfinite(since)]
        mean = f"{known.mean():.4f}" if len(known) else NOT_AVAILABLE
        cells = (
            "events: evaluation.epoch", NOT_AVAILABLE if epoch is None else f"{epoch:.2f}",
            f"events: mean of step.loss over steps {before + 1} to {step}", mean,
            "events: evaluation.scores.loss", NOT_AVAILABLE if loss is None else f"{loss:.4f}",
        )  # fmt: skip
        data = (
            tag("td", text, title=f"{run.name}: {source}", data_run=run.name)
            for source, text in zip(cells[::2], cells[1::2], strict=True)
        )
        rows.append(tag("tr", tag("th", f"{step:,}", scope="row"), *data))
        before = step
    if not rows:
        return None
    columns = ("Step", "Epoch", "Training loss since the last one", "Validation loss")
    return _on_demand(f"Losses of {run.name} at each evaluation as a table", columns, rows)


def _on_demand(summary: str, columns: Sequence[str], rows: Sequence[Html]) -> Html:
    """Return a table of figures that opens on demand."""
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns)))
    table = tag("table", head, tag("tbody", join(rows)), class_="figures")
    return tag("details", tag("summary", summary), tag("div", table, class_="scroll"))


def _error_table(run: str, split: str, labels: Any, predictions: Any) -> Html:
    """Return the errors by actual value as a table: of each value, or of at most ten equal parts of their range."""
    values = np.unique(labels)
    if len(values) <= _MAX_VALUES:
        groups = [(f"{value:g}", labels == value) for value in values]
    else:
        edges = np.linspace(labels.min(), labels.max(), 11)
        number = np.clip(np.digitize(labels, edges) - 1, 0, 9)
        groups = [(f"{edges[each]:.3g} to {edges[each + 1]:.3g}", number == each) for each in np.unique(number)]
    source = f"{run}: {predictions_file(split)}"
    rows = []
    for name, chosen in groups:
        errors = predictions[chosen] - labels[chosen]
        texts = (
            f"{len(errors):,}", f"{predictions[chosen].mean():.3g}", f"{errors.mean():+.3g}".replace("-", "−"),
            f"{np.abs(errors).mean():.3g}", f"{np.sqrt((errors**2).mean()):.3g}",
        )  # fmt: skip
        cells = (tag("td", text, title=source, data_run=run) for text in texts)
        rows.append(tag("tr", tag("th", name, scope="row"), *cells))
    columns = ("Actual", "Rows", "Mean prediction", "Mean error", "MAE", "RMSE")
    return _on_demand("Errors by actual value as a table", columns, rows)


def _memory_table(report: Report) -> Html:
    """Return the memory of each rank as a table that opens on demand."""
    ranks = [(run.name, *each) for run in report.runs for each in list(enumerate(rank_memory(run)))[:_MAX_RANKS]]
    unit, size = byte_unit([value for _, _, value in ranks])
    texts = numbers([None if value is None else value / size for _, _, value in ranks])
    rows = []
    for (run, rank, _), text in zip(ranks, texts, strict=True):
        cell = tag("td", text, title=f"{run}: summary.ranks[{rank}].peak_memory_bytes", data_run=run)
        rows.append(tag("tr", tag("th", run, scope="row"), tag("td", rank), cell))
    names = ("Run", "Rank", f"Peak memory ({unit})")
    return _on_demand("Peak memory of each rank as a table", names, rows)


def _confusion(run: RunRecord) -> Html:
    split, counts = confusion_of(run)
    if counts is None:
        return tag("p", f"No confusion matrix: the record of {run.name} holds none.")
    names = class_names(run, len(counts))
    where = f"{run.name}: summary.confusion.{split}"
    num_rows = sum(map(sum, counts))
    text = f"Confusion on {split}: counts, and shares of each true class. {num_rows:,} rows."
    draw = _matrix if len(counts) <= MAX_CLASSES else _most_confused
    label = f"Confusion matrix of {run.name}"
    table = tag("div", draw(counts, names, where, run), class_="scroll", tabindex="0", role="region", aria_label=label)
    return join([table, tag("p", text, class_="caption")])


def _matrix(counts: list[list[int]], names: Sequence[str], where: str, run: RunRecord) -> Html:
    def cells(true: int) -> Iterator[Html]:
        total = sum(counts[true])
        for predicted, count in enumerate(counts[true]):
            share = count / total if total else None
            yield tag(
                "td", f"{count:,}", tag("small", format_share(share)), style=f"--share: {share or 0:.3f}",
                class_="diagonal" if true == predicted else None, data_run=run.name,
                title=f"{where}: {names[true]} predicted as {names[predicted]}",
            )  # fmt: skip

    over = tag("tr", tag("td"), tag("th", "Predicted", colspan=len(names), scope="colgroup"))
    head = tag("tr", tag("th", "True", scope="col"), *(tag("th", name, scope="col") for name in names))
    body = (tag("tr", tag("th", name, scope="row"), *cells(true)) for true, name in enumerate(names))
    return tag("table", tag("thead", over, head), tag("tbody", *body), class_="confusion")


def _most_confused(counts: list[list[int]], names: Sequence[str], where: str, run: RunRecord) -> Html:
    """Return the twenty commonest confusions of a matrix too large to print; report.json has all of it."""
    pairs = [
        (count, true, predicted)
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    rows = [
        tag(
            "tr",
            tag("th", names[true], scope="row"),
            tag("td", names[predicted]),
            tag("td", f"{count:,}", title=where, data_run=run.name),
            tag("td", format_share(count / sum(counts[true]))),
        )
        for count, true, predicted in sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))[:20]
    ]
    columns = ("True", "Predicted as", "Rows", "Share of the true class")
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns)))
    text = tag("p", f"The commonest confusions of {len(names)} classes; report.json holds the whole matrix.")
    return join([text, tag("table", head, tag("tbody", *rows), class_="figures")])
