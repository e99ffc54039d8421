"""The figures of the page with their legends, captions and what stands in for them when they cannot be drawn."""

from collections.abc import Iterator, Sequence

from paratune.base.units import format_share
from paratune.report import canvas
from paratune.report.canvas import Drawing, Key, css_colour, page_figure
from paratune.report.contents import Contents
from paratune.report.model import MAX_CLASSES, class_names, confusion_of
from paratune.report.page_tables import line_key
from paratune.report.read import RunRecord
from paratune.report.tabular_page import scroll, table_html
from paratune.report.text import Html, join, tag


def loss(found: Contents) -> Html:
    """Return the loss curves, one figure a task, with the losses at each evaluation."""
    parts: list[Html] = []
    runs = found.report.runs
    for drawing in found.loss:
        named = {key.label for key in drawing.legend}
        shown = [run for run in runs if run.name in named or not named]
        if len(shown) < len(runs):
            parts.append(tag("h3", shown[0].task.capitalize()))
        parts.append(figure(drawing))
        tables = (found.table_of("losses", run) for run in shown)
        parts += [table_html(table, is_closed=True) for table in tables if table is not None]
    return join(parts)


def phases(found: Contents) -> Html:
    """Return the stacked phase bars, and what each phase contains under each strategy."""
    return join([*map(figure, found.phases), table_html(found.tables["phases"])])


def memory(found: Contents) -> Html:
    """Return the memory bars and the table of them."""
    if not found.memory:
        return tag("p", "No run recorded the memory of its ranks.")
    return join([*map(figure, found.memory), table_html(found.tables["memory"], is_closed=True)])


def quality(found: Contents) -> Html:
    """Return confusion matrices, or predicted against actual, of each run but probes, which predict nothing."""
    parts = []
    for run in (run for run in found.report.runs if not run.is_probe):
        is_matrix = False
        if run.name in found.predictions:
            errors = found.table_of("errors", run)
            table = None if errors is None else table_html(errors, is_closed=True)
            content = join([figure(found.predictions[run.name]), table])
        elif run.name in found.missing:
            content = tag("p", found.missing[run.name])
        else:
            content, is_matrix = _confusion(found, run), True
        heading = tag("h3", run.name) if len(found.report.runs) > 1 else None
        parts.append(tag("section", heading, content, class_="matrix" if is_matrix else None))
    return tag("div", join(parts), class_="beside")


def figure(drawing: Drawing) -> Html:
    """Return a figure with its legend and caption, in a region that scrolls on narrow windows.

    Where it cannot be drawn, what to install for it stands in its place.
    """
    if drawing.note is not None:
        return tag("p", drawing.note, class_="verdict")
    missing = canvas.can_draw()
    if missing is not None:
        shown = tag("p", f"No figure: {missing}. All figures' values are in the tables.", class_="verdict")
    else:
        svg = page_figure(drawing, prefix=drawing.key)
        shown = tag("div", svg, class_="scroll", tabindex="0", role="region", aria_label=f"Figure: {drawing.title}")
    legend = tag("ul", *(tag("li", _swatch(key), key.label) for key in drawing.legend), class_="legend")
    return tag("figure", legend if drawing.legend else None, shown, tag("figcaption", drawing.caption))


def _swatch(key: Key) -> Html:
    if key.is_area:
        faint = f"; opacity: {key.alpha:g}" if key.alpha < 1 else ""
        return tag("span", class_="swatch", style=f"background: {css_colour(key.colour)}{faint}")
    return line_key(key.colour, key.dashes)


def _confusion(found: Contents, run: RunRecord) -> Html:
    split, counts = confusion_of(run)
    if counts is None:
        return tag("p", f"No confusion matrix: the record of {run.name} holds none.")
    if len(counts) > MAX_CLASSES:
        commonest = found.table_of("confusion", run)
        return Html("") if commonest is None else table_html(commonest)
    names = class_names(run, len(counts))
    num_rows = sum(map(sum, counts))
    text = f"Confusion on {split}: counts, and shares of each true class. {num_rows:,} rows."
    table = _matrix(counts, names, f"{run.name}: summary.confusion.{split}", run)
    return join([scroll(table, f"Confusion matrix of {run.name}"), tag("p", text, class_="caption")])


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
