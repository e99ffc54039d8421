"""Prints the fast tests of changed files, for `make check`: tests at the mirrored path, and tests that import a file.

    python tests/affected.py [BASE]

prints the test files of the files that differ from BASE, one per line; untracked files count as well. BASE is `main` by
default, and HEAD where there is no `main`. Without such a test it prints nothing.
"""

import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from source_imports import imports

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "paratune"
UNIT = ROOT / "tests" / "unit"


def mirrored_tests(source: Path) -> list[Path]:
    """Return the unit tests at the mirrored path of a module: `data/order.py` has `tests/unit/data/test_order.py`.

    A private module or an `__init__.py` may have none; then the list is empty.
    """
    inside = source.relative_to(PACKAGE)
    path = UNIT / inside.parent / f"test_{inside.name}"
    return [path] if path.exists() else []


def importing_tests(source: Path) -> list[Path]:
    """Return the unit tests that import a module of the package, or a helper in `tests/` directly; sorted."""
    if source.is_relative_to(PACKAGE):
        inside = source.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("paratune", *(inside[:-1] if inside[-1] == "__init__" else inside)))
    else:
        name = source.stem
    return [path for path in sorted(UNIT.rglob("test_*.py")) if name in _imported(path)]


def affected_tests(changed: Iterable[Path]) -> list[Path]:
    """Return the unit tests of changed files, sorted: mirrored tests, importing tests, and changed tests."""
    chosen: set[Path] = set()
    for path in changed:
        if path.suffix != ".py":
            continue
        if path.is_relative_to(PACKAGE):
            chosen.update(mirrored_tests(path), importing_tests(path))
        elif path.is_relative_to(UNIT) and path.name.startswith("test_"):
            chosen.add(path)
        elif path.is_relative_to(ROOT / "tests"):
            chosen.update(importing_tests(path))
    return sorted(chosen)


def changed_files(base: str, root: Path = ROOT) -> list[Path]:
    """Return the files that differ from the common ancestor of a commit and HEAD, including untracked ones; sorted."""

    def git(*arguments: str) -> list[str]:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.split()

    names = git("diff", "--name-only", "--diff-filter=d", *git("merge-base", base, "HEAD"))
    return sorted(root / name for name in {*names, *git("ls-files", "--others", "--exclude-standard")})


@cache
def _imported(path: Path) -> frozenset[str]:
    return frozenset(statement.module for statement in imports(path, PACKAGE))


def main() -> None:
    has_main = subprocess.run(["git", "rev-parse", "-q", "--verify", "main"], cwd=ROOT, capture_output=True)
    base = sys.argv[1] if len(sys.argv) > 1 else "main" if has_main.returncode == 0 else "HEAD"
    for path in affected_tests(changed_files(base)):
        print(path.relative_to(ROOT))  # noqa: T201


if __name__ == "__main__":
    main()
