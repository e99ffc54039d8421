"""Each class name is used once: two classes of the package do not share a name."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "paratune"


def shared_names(package: Path) -> dict[str, list[str]]:
    """Return the public class names that several files define, with the files; a private one stays in its module."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(package)))
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def test_no_two_classes_share_a_name():
    assert shared_names(PACKAGE) == {}


def test_shared_names_are_found(tmp_path: Path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("class Job: ...\nclass _Private: ...\nclass Alone: ...")
    (tmp_path / "inner" / "b.py").write_text("def f():\n    class Job: ...\nclass _Private: ...")
    assert shared_names(tmp_path) == {"Job": ["a.py", "inner/b.py"]}
