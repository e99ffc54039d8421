"""Notes of the user, a text in Markdown, as parts of a report: paragraphs, headings, lists and code."""

from collections.abc import Iterator
from itertools import count

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from paratune.reports.document import Listing, Part, Remarks


def notes_parts(text: str) -> Iterator[Part]:
    """Yield the parts of a text in CommonMark; HTML and tables are text, and marks such as `**` are left out."""
    for block in SyntaxTreeNode(MarkdownIt("commonmark", {"html": False}).parse(text)).children:
        if block.type in ("fence", "code_block"):
            yield Listing(block.info or "Code", block.content)
        elif block.type in ("bullet_list", "ordered_list"):  # with their signs: remarks have none
            marks = (f"{number}." if block.type == "ordered_list" else "•" for number in count(1))
            yield Remarks(tuple(f"{mark} {_words(item)}" for mark, item in zip(marks, block.children, strict=False)))
        elif words := _words(block):
            yield words


def _words(node: SyntaxTreeNode) -> str:
    """Return the text in a block, on one line."""
    if node.type == "image":
        return node.content
    if node.type == "link":
        return f"{''.join(map(_words, node.children))} ({node.attrs['href']})"
    if not node.children:
        return " " if node.type in ("softbreak", "hardbreak") else node.content
    is_block = node.type in ("list_item", "bullet_list", "ordered_list", "blockquote")
    return (" " if is_block else "").join(map(_words, node.children)).strip()
