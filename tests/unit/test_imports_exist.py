"""Every import of a module or a name of paratune finds it, also inside functions, which no other test may run."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def parsed() -> dict[str, ast.Module]:
    """Return the modules of paratune by name."""
    paths = SOURCE.rglob("*.py")
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    return {name: ast.parse(path.read_text()) for name, path in names.items()}


def defined(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def test_every_imported_module_and_name_exists():
    modules = parsed()
    names = {name: set(defined(module)) for name, module in modules.items()}
    missing = []
    for name, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "paratune":
                missing += [
                    (name, node.lineno, f"{node.module}.{alias.name}")
                    for alias in node.names
                    if alias.name not in names.get(node.module or "", ()) and f"{node.module}.{alias.name}" not in names
                ]
            elif isinstance(node, ast.Import):
                own = (alias.name for alias in node.names if alias.name.partition(".")[0] == "paratune")
                missing += [(name, node.lineno, imported) for imported in own if imported not in names]
    assert not missing
