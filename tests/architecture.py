"""Draws the layers of the package from its imports, and lists the packages.

    python tests/architecture.py

writes `docs/explanation/architecture.svg` and the table of `docs/explanation/architecture.md`. When either is out of
date, tests/unit/test_import_layers.py fails.
"""

import ast
import re
from collections.abc import Mapping, Set
from html import escape
from pathlib import Path

from source_imports import imports

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "paratune"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PICTURE = PAGE.with_suffix(".svg")
BEGIN, END = "<!-- packages: begin -->", "<!-- packages: end -->"
WIDTH, ROW, BOX, GAP, LEFT = 1040, 58, 34, 10, 16
"""Pixels of the picture: its width, a layer's height, a box' height, the space between boxes, the margin."""

Graph = Mapping[str, Set[str]]


def package_imports(package: Path) -> dict[str, set[str]]:
    """Return the packages that each package imports, without itself; imports inside functions count."""
    graph: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).parts[0].removesuffix(".py")
        if name in ("__init__", "__main__"):
            continue
        modules = (statement.module.split(".") for statement in imports(path, package))
        graph.setdefault(name, set()).update(
            module[1] for module in modules if module[0] == "paratune" and len(module) > 1 and module[1] != name
        )
    return graph


def file_imports(package: Path) -> dict[str, set[str]]:
    """Return the files of the package that each file imports, by their names as modules, such as paratune.data.order.

    Imports inside functions and under TYPE_CHECKING count; `paratune/__init__.py` is left out, whose names are lazy.
    """
    paths = {
        ".".join(("paratune", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }
    del paths["paratune"]
    return {
        name: {statement.module for statement in imports(path, package)} & paths.keys() - {name}
        for name, path in paths.items()
    }


def layers(graph: Graph) -> list[list[str]]:
    """Return the packages layer by layer: a package is one layer above the highest package that it imports.

    Raises:
        ValueError: Packages import each other.
    """
    rest, below, result = set(graph), set[str](), list[list[str]]()
    while rest:
        layer = sorted(name for name in rest if graph[name] <= below)
        if not layer:
            raise ValueError(f"these packages import each other: {', '.join(sorted(rest))}")
        result.append(layer)
        below.update(layer)
        rest.difference_update(layer)
    return result


def picture(graph: Graph) -> str:
    """Return the layers as SVG, the lowest one at the bottom."""
    rows = layers(graph)[::-1]
    height = ROW * len(rows) + LEFT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        "<title>The packages of paratune in layers; each imports only packages of lower layers</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, row in enumerate(rows):
        top = LEFT + number * ROW
        width = min(220, (WIDTH - 2 * LEFT - 30 - GAP * (len(row) - 1)) // len(row))
        parts.append(f'<text x="{LEFT}" y="{top + 22}" fill="#555">{len(rows) - 1 - number}</text>')
        for place, name in enumerate(row):
            left = LEFT + 30 + place * (width + GAP)
            parts += [
                f"<g><title>{escape(name)} imports {', '.join(sorted(graph[name])) or 'no other package'}</title>",
                f'<rect x="{left}" y="{top}" width="{width}" height="{BOX}" rx="4" fill="#eef3fa" stroke="#4a6fa5"/>',
                f'<text x="{left + width // 2}" y="{top + 22}" text-anchor="middle">{escape(name)}</text></g>',
            ]
    return "\n".join([*parts, "</svg>", ""])


def table(graph: Graph, package: Path) -> str:
    """Return a Markdown table of the packages, the highest layer first."""
    lines = ["| layer | package | subject |", "| --- | --- | --- |"]
    for number, row in reversed(list(enumerate(layers(graph)))):
        lines += [f"| {number} | `{name}` | {_subject(package / name)} |" for name in row]
    return "\n".join(lines)


def _subject(folder: Path) -> str:
    """Return the first sentence of the docstring of a package, or of a module beside the packages."""
    file = folder / "__init__.py"
    file = file if file.exists() else folder.with_suffix(".py")  # the folder may be a rest with bytecode
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    first = re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]
    return first.replace("|", r"\|")


def page(text: str, graph: Graph, package: Path) -> str:
    """Return the page with an updated table."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table(graph, package)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    graph = package_imports(PACKAGE)
    PICTURE.write_text(picture(graph), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), graph, PACKAGE), encoding="utf-8")


if __name__ == "__main__":
    main()
