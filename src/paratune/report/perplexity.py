"""The page on what a threshold of perplexity keeps of a corpus: a histogram, and sentences on both sides of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune import __version__
from paratune.base.units import format_number, format_share
from paratune.report.page import page
from paratune.report.text import Html, join, tag

_SCORERS = {"ngram": "an n-gram model", "mlm": "a masked language model (pseudo-perplexity)"}
_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 44, 46
_STEPS = (1, 2, 5)
_HALO = "paint-order: stroke; stroke: var(--paper); stroke-width: 4px"
"""Of labels that a line may run through."""
_NUM_TICKS = 4


def perplexity_page(found: Mapping[str, Any]) -> str:
    """Return a page that needs nothing else.

    Args:
        found: What perplexity.json says.
    """
    sections = list(_sections(found))
    first = sections[0][0]
    content = [_header(found, sections), *(_section(*each) for each in sections)]
    footer = tag("footer", tag("p", f"Made by paratune {__version__} from perplexity.json."))
    return page("Perplexity of the sentences", [*content, footer], num_columns=3, first=first)


def _header(found: Mapping[str, Any], sections: Sequence[tuple[str, str, Html]]) -> Html:
    known = found["num_sentences"] - found["num_unknown"]
    said = f"{known:,} sentences"
    if found["scorer"] in _SCORERS:
        said += f", read by {_SCORERS[found['scorer']]}"
    if found["num_unknown"]:
        said += f"; {found['num_unknown']:,} more have no perplexity"
    links = tag("nav", *(tag("a", title, href=f"#{key}") for key, title, _ in sections), aria_label="Contents")
    return tag("header", tag("h1", "Perplexity of the sentences"), tag("p", f"{said}.", class_="lead"), links)


def _section(key: str, title: str, content: Html) -> Html:
    return tag("section", tag("h2", title), content, id=key)


def _sections(found: Mapping[str, Any]) -> Iterator[tuple[str, str, Html]]:
    """Yield id, heading and content of each section."""
    if not found["histogram"]["counts"]:
        yield "nothing", "Nothing to show", tag("p", "No sentence has a perplexity.", class_="verdict")
        return
    yield "histogram", "How many sentences read how well", _overview(found)
    for number, each in enumerate(found["thresholds"], start=1):
        yield f"threshold-{number}", f"At {_figure(each['perplexity'])}", _samples(each)


def _overview(found: Mapping[str, Any]) -> Html:
    most = found["max_perplexity"]
    if most is None:
        verdict = "Nothing is dropped: sentences.max_perplexity is not given. The table shows what it would drop."
    else:
        verdict = f"Sentences above {_figure(most)} are dropped (sentences.max_perplexity)."
    region = tag(
        "div", _histogram(found), class_="scroll", tabindex="0", role="region", aria_label="Histogram of perplexities"
    )
    caption = (
        "Sentences by perplexity, ten bars a decade; the lower, the better the sentence reads to the model. Lines: the "
        "thresholds of the table."
    )
    figure = tag("figure", region, tag("figcaption", caption))
    return join([tag("p", verdict, class_="verdict"), figure, _table(found)])


def _table(found: Mapping[str, Any]) -> Html:
    heads = ("threshold", "sentences above", "share above")
    rows = [
        tag(
            "tr",
            tag("th", tag("a", _figure(each["perplexity"]), href=f"#threshold-{number}"), scope="row"),
            tag("td", f"{each['num_above']:,}"),
            tag("td", format_share(each["share_above"])),
        )
        for number, each in enumerate(found["thresholds"], start=1)
    ]
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in heads)))
    return tag("div", tag("table", head, tag("tbody", *rows), class_="figures"), class_="scroll")


def _samples(threshold: Mapping[str, Any]) -> Html:
    parts = [
        tag("p", f"{threshold['num_above']:,} sentences, {format_share(threshold['share_above'])}, are above."),
        *(
            tag("section", tag("h3", title), _sentences(threshold[side]))
            for side, title in (("below", "Nearest that would be kept"), ("above", "Nearest that would be dropped"))
        ),
    ]
    return join(parts)


def _sentences(found: Sequence[Mapping[str, Any]]) -> Html:
    if not found:
        return tag("p", "None.")
    rows = [
        tag("tr", tag("td", _figure(each["perplexity"])), tag("td", each["text"]), tag("td", each["url"]))
        for each in found
    ]
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in ("perplexity", "sentence", "from"))))
    return tag("div", tag("table", head, tag("tbody", *rows), class_="text"), class_="scroll")


def _figure(value: float) -> str:
    return format_number(value)


def _histogram(found: Mapping[str, Any]) -> Html:
    """Return the bars, over a logarithmic axis, and a line at each threshold."""
    edges, counts = found["histogram"]["edges"], found["histogram"]["counts"]
    low, high, most = math.log10(edges[0]), math.log10(edges[-1]), int(max(counts))

    def across(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(value) - low) / (high - low)

    def up(count: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * count / most

    bars = [
        tag(
            "rect",
            tag("title", f"{_figure(left)} to {_figure(right)}: {count:,} sentences"),
            x=f"{across(left) + 0.5:.1f}",
            y=f"{up(count):.1f}",
            width=f"{across(right) - across(left) - 1:.1f}",
            height=f"{_HEIGHT - _BOTTOM - up(count):.1f}",
            fill="var(--run-1)",
            data_point="",
        )
        for left, right, count in zip(edges, edges[1:], counts, strict=False)
        if count
    ]
    marks = [
        _mark(across(each["perplexity"]), each, number, is_limit=each["perplexity"] == found["max_perplexity"])
        for number, each in enumerate(found["thresholds"])
        if edges[0] <= each["perplexity"] <= edges[-1]
    ]
    return tag(
        "svg",
        tag("title", "Histogram of perplexities"),
        *_axes(across, up, edges, most),
        *bars,
        *marks,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        font_size="12",
        fill="currentColor",
        style=f"--figure-width: {_WIDTH}px",
    )


def _axes(across: Any, up: Any, edges: Sequence[float], most: int) -> Iterator[Html]:
    """Yield lines and figures of both axes."""
    bottom = _HEIGHT - _BOTTOM
    for count in _ticks(most):
        yield _line(_LEFT, up(count), _WIDTH - _RIGHT, up(count), "var(--rule)")
        yield _label(_LEFT - 8, up(count) + 4, f"{count:,}", "end")
    yield _line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "var(--muted)")
    decades = range(math.floor(math.log10(edges[0])), math.ceil(math.log10(edges[-1])) + 1)
    for value in (step * 10.0**decade for decade in decades for step in _STEPS):
        if edges[0] <= value <= edges[-1] * 1.001:
            yield _line(across(value), bottom, across(value), bottom + 5, "var(--muted)")
            yield _label(across(value), bottom + 20, f"{value:,g}", "middle")
    yield _label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "perplexity", "middle")
    yield _label(_LEFT - 8, 14, "sentences", "end")


def _ticks(most: int) -> list[int]:
    """Return round counts up to the most, the first of them 0."""
    size = 10 ** math.floor(math.log10(most))
    step = next(each * size // 10 or 1 for each in (1, 2, 5, 10, 20, 50) if each * size / 10 * _NUM_TICKS >= most)
    return list(range(0, most + 1, step))


def _mark(x: float, threshold: Mapping[str, Any], number: int, *, is_limit: bool) -> Html:
    # Two rows of labels, since thresholds are often near each other.
    y = 14 + 14 * (number % 2)
    colour = "var(--warn-rule)" if is_limit else "var(--muted)"
    title = f"{format_share(threshold['share_above'])} of the sentences are above {_figure(threshold['perplexity'])}"
    return tag(
        "g",
        tag("title", title),
        _line(x, y + 4, x, _HEIGHT - _BOTTOM, colour, dashes=None if is_limit else "4 3"),
        _label(x, y, _figure(threshold["perplexity"]), "middle", style=_HALO),
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str | None = None) -> Html:
    ends = {name: f"{value:.1f}" for name, value in (("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2))}
    return tag("line", **ends, stroke=colour, stroke_width="1", stroke_dasharray=dashes)


def _label(x: float, y: float, text: str, anchor: str, style: str | None = None) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, style=style)
