"""Reads which modules a source file imports, without running it; imports inside functions count."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """An import statement: its module, its line, and whether importing the file runs it."""

    module: str
    line: int
    at_import: bool


def imports(path: Path, package: Path) -> Iterator[Import]:
    """Yield the imports of a file, inside the package or outside it.

    In `from x import y`, y is a module if the package has a file or folder of that name.

    Args:
        path: The file.
        package: The folder `paratune`, to resolve relative imports and submodules.
    """
    is_inside = path.is_relative_to(package)
    module = ("paratune", *path.relative_to(package).with_suffix("").parts) if is_inside else ()
    folder = module[:-1]

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(folder[: len(folder) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            inside = package.joinpath(*base[1:])
            for alias in node.names:
                is_module = (inside / f"{alias.name}.py").exists() or (inside / alias.name).is_dir()
                name = [*base, alias.name] if base[:1] == ["paratune"] and is_module else base
                yield Import(".".join(name), node.lineno, at_import)
        inner = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), True)
