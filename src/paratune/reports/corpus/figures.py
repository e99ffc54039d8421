"""The figures of a corpus: kept rows of each stage, years, hosts, lengths and perplexities."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_number
from paratune.reports.figures.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.reports.figures.plots import NAME_WIDTH, Bars, bars, height_of_rows, histogram
from paratune.reports.text import shorten

_MAX_HOSTS = 20


def corpus_figures(figures: Mapping[str, Any]) -> Iterator[tuple[str, Drawing]]:
    """Yield the figures that have data, from `paratune.corpus.store.figures`, each with the key of its table."""
    steps = [entry for entry in figures["funnel"] if "sentences" not in entry["stage"] and not entry["is_stale"]]
    if any(entry["kept"] + sum(entry["dropped"].values()) for entry in steps):
        yield "funnel", _funnel(steps)
    documents, sentences = figures["documents"], figures["sentences"]
    if documents is not None and documents["num"]:
        yield "by_year", _years([entry for entry in documents["by_year"] if entry["value"] is not None])
        yield "by_host", _hosts([entry for entry in documents["by_host"] if entry["value"] is not None][:_MAX_HOSTS])
        yield "lengths", _histogram("words", "Words of a document", documents["words"], "Words", "Documents")
    if sentences is not None and sentences["num"]:
        spread, perplexity = sentences["words"], sentences["perplexity"]
        yield "lengths", _histogram("sentence_words", "Words of a sentence", spread, "Words", "Sentences")
        if perplexity is not None:
            title = "Perplexity of a sentence"
            yield "lengths", _histogram("perplexity", title, perplexity, "Perplexity", "Sentences")


def _funnel(steps: Sequence[Mapping[str, Any]]) -> Drawing:
    legend = (Key("Kept", RUN_COLOURS[0], is_area=True, alpha=0.85), Key("Dropped", MUTED, is_area=True, alpha=0.35))
    counts = [entry["kept"] for entry in steps], [sum(entry["dropped"].values()) for entry in steps]
    names, layers = [entry["stage"] for entry in steps], []
    for key, values in zip(legend, counts, strict=True):
        texts = [f"{name}: {key.label.lower()} {value:,}" for name, value in zip(names, values, strict=True)]
        layers.append(Bars(values, key.colour, texts, key.alpha))
    draw = bars(names, layers, stacked=True, xlabel="Captures, then documents")
    caption = "Rows that each stage kept and dropped, of those that the stage before it kept."
    height = height_of_rows(len(steps))
    return Drawing("funnel", "Kept and dropped rows by stage", caption, draw, height, legend=legend)


def _years(years: Sequence[Mapping[str, Any]]) -> Drawing:
    first, last = years[0]["value"], years[-1]["value"]
    counts = dict.fromkeys(range(first, last + 1), 0) | {entry["value"]: entry["num"] for entry in years}
    texts = [f"{year}: {count:,} documents" for year, count in counts.items()]
    edges, ticks = [year - 0.5 for year in range(first, last + 2)], range(first, last + 1, 1 + (last - first) // 12)
    layers = [Bars([*counts.values()], texts=texts)]
    draw = histogram(edges, layers, xlabel="Year of the capture", ylabel="Documents", xticks=ticks)
    return Drawing("years", "Documents by year", "Years of the captures, not of the texts.", draw, 2.8)


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> Drawing:
    names = [shorten(entry["value"], NAME_WIDTH) for entry in hosts]
    texts = [f"{entry['value']}: {entry['num']:,} documents" for entry in hosts]
    draw = bars(names, [Bars([entry["num"] for entry in hosts], texts=texts)], xlabel="Documents")
    caption = f"The {len(hosts)} hosts with the most documents." if len(hosts) > 1 else "One host."
    return Drawing("hosts", "Documents by host", caption, draw, height_of_rows(len(hosts)))


def _histogram(key: str, title: str, spread: Mapping[str, Any], quantity: str, counted: str) -> Drawing:
    """Draw a bar for each bin; their bounds double, and the bars are equally wide."""
    bins = spread["histogram"]
    texts = [f"{first:,} to below {below:,}: {num:,}" for first, below, num in bins]
    draw = histogram(
        range(len(bins) + 1), [Bars([num for _, _, num in bins], texts=texts)], ylabel=counted,
        xlabel=f"{quantity}; each bar reaches up to the next number",
        xticks=range(len(bins)), xticklabels=[f"{first:,}" for first, _, _ in bins],
    )  # fmt: skip
    median = spread["quantiles"].get("0.5")
    shown = NOT_AVAILABLE if median is None else format_number(median, 3)
    caption = f"Mean {format_number(spread['mean'], 3)}, median {shown}. The bounds of the bars double."
    return Drawing(key, title, caption, draw, 2.8)
