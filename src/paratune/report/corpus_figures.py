"""The figures of a corpus: what each stage kept, its years and hosts, and how long and how odd its texts are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_number
from paratune.report.canvas import MUTED, RUN_COLOURS, Drawing, Key
from paratune.report.text import shorten

_KEPT, _DROPPED = RUN_COLOURS[0], MUTED
_MOST_HOSTS = 20
_WIDTH = 40
"""Characters of a name beside a bar."""


def corpus_figures(found: Mapping[str, Any]) -> Iterator[Drawing]:
    """Yield the figures that there is something to draw for.

    Args:
        found: As `paratune.corpus.store.figures.corpus_figures` has it.
    """
    steps = [each for each in found["funnel"] if "sentences" not in each["stage"] and not each["is_stale"]]
    if any(each["kept"] + sum(each["dropped"].values()) for each in steps):
        yield _funnel(steps)
    documents, sentences = found["documents"], found["sentences"]
    if documents is not None and documents["num"]:
        years = [each for each in documents["by_year"] if each["value"] is not None]
        yield _years(years)
        yield _hosts([each for each in documents["by_host"] if each["value"] is not None][:_MOST_HOSTS])
        yield _histogram("words", "Words of a document", documents["words"], "Words", "Documents")
    if sentences is not None and sentences["num"]:
        yield _histogram("sentence_words", "Words of a sentence", sentences["words"], "Words", "Sentences")
        if sentences["perplexity"] is not None:
            yield _histogram(
                "perplexity", "Perplexity of a sentence", sentences["perplexity"], "Perplexity", "Sentences"
            )


def _funnel(steps: Sequence[Mapping[str, Any]]) -> Drawing:
    kept = [each["kept"] for each in steps]
    dropped = [sum(each["dropped"].values()) for each in steps]

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        places = range(len(steps))
        for name, values, left, colour in (("kept", kept, None, _KEPT), ("dropped", dropped, kept, _DROPPED)):
            alpha = 0.85 if name == "kept" else 0.35
            bars = axes.barh(places, values, left=left, height=0.68, color=colour, alpha=alpha)
            _hover(
                bars, hovers, name, [f"{each['stage']}: {name} {n:,}" for each, n in zip(steps, values, strict=True)]
            )
        axes.set_yticks(places, [each["stage"] for each in steps])
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xlabel("Captures, then documents")
        _thousands(axes.xaxis)
        axes.grid(axis="x")

    legend = (Key("Kept", _KEPT, is_area=True, alpha=0.85), Key("Dropped", _DROPPED, is_area=True, alpha=0.35))
    caption = "What each stage kept and dropped of what the one before it had kept. The numbers stand in the table."
    return Drawing("funnel", "The funnel", caption, draw, 1.0 + 0.34 * len(steps), legend=legend)


def _years(years: Sequence[Mapping[str, Any]]) -> Drawing:
    def draw(axes: Any, hovers: dict[str, str]) -> None:
        values = [each["value"] for each in years]
        bars = axes.bar(values, [each["num"] for each in years], width=0.8, color=_KEPT, alpha=0.85)
        _hover(bars, hovers, "year", [f"{each['value']}: {each['num']:,} documents" for each in years])
        axes.set(xlabel="Year of the capture", ylabel="Documents")
        axes.xaxis.get_major_locator().set_params(integer=True)
        _thousands(axes.yaxis)
        axes.grid(axis="y")

    return Drawing("years", "Documents by year", "Years of the captures, not of the writing.", draw, 2.8)


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> Drawing:
    def draw(axes: Any, hovers: dict[str, str]) -> None:
        places = range(len(hosts))
        bars = axes.barh(places, [each["num"] for each in hosts], height=0.68, color=_KEPT, alpha=0.85)
        _hover(bars, hovers, "host", [f"{each['value']}: {each['num']:,} documents" for each in hosts])
        axes.set_yticks(places, [shorten(each["value"], _WIDTH) for each in hosts])
        axes.set_ylim(len(hosts) - 0.4, -0.6)
        axes.set_xlabel("Documents")
        _thousands(axes.xaxis)
        axes.grid(axis="x")

    caption = f"The {len(hosts)} hosts with most documents." if len(hosts) > 1 else "One host."
    return Drawing("hosts", "Documents by host", caption, draw, 1.0 + 0.26 * len(hosts))


def _histogram(key: str, title: str, spread: Mapping[str, Any], what: str, of: str) -> Drawing:
    bins = spread["histogram"]

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        places = range(len(bins))
        bars = axes.bar(places, [num for _, _, num in bins], width=0.92, align="edge", color=_KEPT, alpha=0.85)
        texts = [f"{first:,} to below {below:,}: {num:,}" for first, below, num in bins]
        _hover(bars, hovers, key, texts)
        axes.set_xticks(places, [f"{first:,}" for first, _, _ in bins])
        axes.set(xlabel=f"{what}; each bar reaches up to the next number", ylabel=of)
        _thousands(axes.yaxis)
        axes.grid(axis="y")

    median = spread["quantiles"].get("0.5")
    shown = NOT_AVAILABLE if median is None else format_number(median, 3)
    caption = f"Mean {format_number(spread['mean'], 3)}, median {shown}. The bounds of the bars double."
    return Drawing(key, title, caption, draw, 2.8)


def _thousands(axis: Any) -> None:
    """Write counts whole, with commas."""
    axis.get_major_locator().set_params(integer=True)
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _hover(bars: Any, hovers: dict[str, str], kind: str, texts: Sequence[str]) -> None:
    for number, (bar, text) in enumerate(zip(bars, texts, strict=True)):
        gid = f"hover-{kind}-{number}"
        bar.set_gid(gid)
        hovers[gid] = text
