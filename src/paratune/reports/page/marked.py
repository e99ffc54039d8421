"""A text in a page whose words are marked by their effects.

A word that raises the output has a solid line below it, one that lowers it a dashed line; strong ones have a sign.
"""

from paratune.reports.document import STRONG, MarkedText, MarkedWord, signed
from paratune.reports.text import Html, join, tag

_FAINT = 0.08
"""Strength below which a word is not marked."""


def marked_html(text: MarkedText) -> Html:
    """Return the text with its marks; in `<details>` if it is closed."""
    content = tag("p", *(part for word in text.words for part in _word(text, word)), class_="marked")
    return tag("details", tag("summary", text.title), content) if text.is_closed else join([content])


def _word(text: MarkedText, word: MarkedWord) -> list[Html | str]:
    space: Html | str = word.before
    if "\n" in word.before:
        space = Html("<br>" * min(2, word.before.count("\n")))
    strength = text.strength(word)
    if abs(strength) < _FAINT:
        return [space, word.text]
    kind = "raises" if strength > 0 else "lowers"
    sign = tag("sup", "+" if strength > 0 else "\u2212", aria_hidden="true") if abs(strength) >= STRONG else None
    shown = f"{kind} the output: {signed(word.effect)}"
    return [space, tag("span", word.text, sign, class_=kind, title=shown, style=f"--strength: {abs(strength):.2f}")]
