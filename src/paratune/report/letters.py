"""Texts on paper: how wide they are, where their lines break, and how they are drawn by the thousand.

Lengths are in inches, sizes of letters in points.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FAMILY = "DejaVu Sans"
_POINTS = 72.0


@dataclass(frozen=True)
class Letters:
    """A line of text at its place."""

    text: str
    x: float
    """From the left edge of the paper."""
    y: float
    """From its upper edge, of the line that the letters stand on."""
    size: float
    is_bold: bool = False
    colour: str = "#000000"


def width(text: str, size: float, *, is_bold: bool = False) -> float:
    """Return how wide a text is, in inches."""
    return sum(_advance(letter, is_bold) for letter in text) * size / _POINTS


@lru_cache(maxsize=4096)
def _advance(letter: str, is_bold: bool) -> float:
    """Return by how much a letter moves the next one, in parts of the size."""
    font = _font(is_bold)
    font.set_size(100, _POINTS)
    # By its number in the font: a letter that the font lacks is drawn as a box, its number 0.
    glyph = font.load_glyph(font.get_char_index(ord(letter)), flags=_no_hinting())
    return float(glyph.linearHoriAdvance) / 65536 / 100


@lru_cache(maxsize=2)
def _font(is_bold: bool) -> Any:
    from matplotlib.font_manager import findfont, get_font

    return get_font(findfont(_properties(10, is_bold)))


def _no_hinting() -> Any:
    from matplotlib.ft2font import LoadFlags

    return LoadFlags.NO_HINTING


@lru_cache(maxsize=64)
def _properties(size: float, is_bold: bool) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=FAMILY, size=size, weight="bold" if is_bold else "normal")


def broken(text: str, room: float, size: float, *, is_bold: bool = False) -> list[str]:
    """Return the lines of a text in so much room: broken between words, and inside those that are wider."""
    lines: list[str] = []
    for piece in (piece for word in text.split() for piece in _pieces(word, room, size, is_bold)):
        joined = f"{lines[-1]} {piece}" if lines else piece
        if lines and width(joined, size, is_bold=is_bold) <= room:
            lines[-1] = joined
        else:
            lines.append(piece)
    return lines or [""]


def _pieces(word: str, room: float, size: float, is_bold: bool) -> Iterator[str]:
    """Yield a word, or the parts of it that fit."""
    piece = ""
    for letter in word:
        if piece and width(piece + letter, size, is_bold=is_bold) > room:
            yield piece
            piece = ""
        piece += letter
    yield piece


def put_letters(figure: Any, letters: Sequence[Letters]) -> None:
    """Put texts on a figure of matplotlib; as a Text of its own each would take far longer to lay out."""
    from matplotlib.artist import Artist

    class LetterArtist(Artist):
        def draw(self, renderer: Any) -> None:
            dots = figure.dpi
            height = figure.bbox.height
            for each in letters:
                context = renderer.new_gc()
                context.set_foreground(each.colour)
                y = each.y * dots if renderer.flipy() else height - each.y * dots
                properties = _properties(each.size, each.is_bold)
                renderer.draw_text(context, each.x * dots, y, each.text, properties, 0, ismath=False)
                context.restore()

    page = LetterArtist()
    page.set_in_layout(False)
    figure.add_artist(page)
