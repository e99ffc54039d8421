"""The figures of a corpus: kept rows of each stage, years, hosts, lengths and perplexities."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_number
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Hovers, Key, label_rows
from paratune.reports.text import shorten

_KEPT, _DROPPED = RUN_COLOURS[0], MUTED
_MAX_HOSTS = 20
_WIDTH = 40
"""Characters of a name next to a bar."""


def corpus_figures(figures: Mapping[str, Any]) -> Iterator[Drawing]:
    """Yield the figures that have data, from the result of `paratune.corpus.store.figures.corpus_figures`."""
    steps = [entry for entry in figures["funnel"] if "sentences" not in entry["stage"] and not entry["is_stale"]]
    if any(entry["kept"] + sum(entry["dropped"].values()) for entry in steps):
        yield _funnel(steps)
    documents, sentences = figures["documents"], figures["sentences"]
    if documents is not None and documents["num"]:
        years = [entry for entry in documents["by_year"] if entry["value"] is not None]
        yield _years(years)
        yield _hosts([entry for entry in documents["by_host"] if entry["value"] is not None][:_MAX_HOSTS])
        yield _histogram("words", "Words of a document", documents["words"], "Words", "Documents")
    if sentences is not None and sentences["num"]:
        yield _histogram("sentence_words", "Words of a sentence", sentences["words"], "Words", "Sentences")
        if sentences["perplexity"] is not None:
            yield _histogram(
                "perplexity", "Perplexity of a sentence", sentences["perplexity"], "Perplexity", "Sentences"
            )


def _funnel(steps: Sequence[Mapping[str, Any]]) -> Drawing:
    num_kept = [entry["kept"] for entry in steps]
    num_dropped = [sum(entry["dropped"].values()) for entry in steps]

    legend = (Key("Kept", _KEPT, is_area=True, alpha=0.85), Key("Dropped", _DROPPED, is_area=True, alpha=0.35))

    def draw(axes: Any, hovers: Hovers) -> None:
        for key, values, left in zip(legend, (num_kept, num_dropped), (None, num_kept), strict=True):
            bars = axes.barh(range(len(steps)), values, left=left, height=0.68, color=key.colour, alpha=key.alpha)
            counts = zip(steps, values, strict=True)
            hovers.add_texts(bars, (f"{entry['stage']}: {key.label.lower()} {count:,}" for entry, count in counts))
        _name_rows(axes, hovers, [entry["stage"] for entry in steps], "Captures, then documents")

    caption = (
        "Rows that each stage kept and dropped, of those that the stage before it kept. The table has the numbers."
    )
    return Drawing("funnel", "Kept and dropped rows by stage", caption, draw, 1.0 + 0.34 * len(steps), legend=legend)


def _years(years: Sequence[Mapping[str, Any]]) -> Drawing:
    def draw(axes: Any, hovers: Hovers) -> None:
        values = [entry["value"] for entry in years]
        bars = axes.bar(values, [entry["num"] for entry in years], width=0.8, color=_KEPT, alpha=0.85)
        hovers.add_texts(bars, map(_num_documents, years))
        axes.set(xlabel="Year of the capture", ylabel="Documents")
        axes.xaxis.get_major_locator().set_params(integer=True)
        _thousands(axes.yaxis)
        axes.grid(axis="y")

    return Drawing("years", "Documents by year", "Years of the captures, not of the texts.", draw, 2.8)


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> Drawing:
    def draw(axes: Any, hovers: Hovers) -> None:
        counts = [entry["num"] for entry in hosts]
        bars = axes.barh(range(len(hosts)), counts, height=0.68, color=_KEPT, alpha=0.85)
        hovers.add_texts(bars, map(_num_documents, hosts))
        _name_rows(axes, hovers, [shorten(entry["value"], _WIDTH) for entry in hosts], "Documents")

    caption = f"The {len(hosts)} hosts with the most documents." if len(hosts) > 1 else "One host."
    return Drawing("hosts", "Documents by host", caption, draw, 1.0 + 0.26 * len(hosts))


def _histogram(key: str, title: str, spread: Mapping[str, Any], quantity: str, counted: str) -> Drawing:
    bins = spread["histogram"]

    def draw(axes: Any, hovers: Hovers) -> None:
        places = range(len(bins))
        bars = axes.bar(places, [num for _, _, num in bins], width=0.92, align="edge", color=_KEPT, alpha=0.85)
        hovers.add_texts(bars, (f"{first:,} to below {below:,}: {num:,}" for first, below, num in bins))
        axes.set_xticks(places, [f"{first:,}" for first, _, _ in bins])
        axes.set(xlabel=f"{quantity}; each bar reaches up to the next number", ylabel=counted)
        _thousands(axes.yaxis)
        axes.grid(axis="y")

    median = spread["quantiles"].get("0.5")
    shown = NOT_AVAILABLE if median is None else format_number(median, 3)
    caption = f"Mean {format_number(spread['mean'], 3)}, median {shown}. The bounds of the bars double."
    return Drawing(key, title, caption, draw, 2.8)


def _thousands(axis: Any) -> None:
    """Format counts as whole numbers with commas."""
    axis.get_major_locator().set_params(integer=True)
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _name_rows(axes: Any, hovers: Hovers, names: Sequence[str], label: str) -> None:
    label_rows(axes, hovers, names, [()] * len(names))
    axes.set_xlabel(label)
    _thousands(axes.xaxis)
    axes.grid(axis="x")


def _num_documents(entry: Mapping[str, Any]) -> str:
    return f"{entry['value']}: {entry['num']:,} documents"
