"""Which tests `make check` runs."""

import subprocess
from pathlib import Path

import pytest
from affected import PACKAGE, ROOT, UNIT, affected_tests, changed_files, importing_tests, mirrored_tests


def names(paths: list[Path]) -> set[str]:
    return {str(path.relative_to(UNIT)) for path in paths}


def test_a_module_has_the_test_at_its_path_and_those_that_import_it():
    source = PACKAGE / "data" / "order.py"
    assert names(mirrored_tests(source)) == {"data/test_order.py"}
    # data/test_loader.py uses it too, but only through data/loader.py.
    assert {"data/test_order.py", "planning/test_lengths.py"} <= names(importing_tests(source))
    assert "data/test_loader.py" not in names(importing_tests(source))
    assert set(affected_tests([source])) == {*mirrored_tests(source), *importing_tests(source)}


def test_a_package_is_imported_by_its_name():
    assert "checkpoint/test_checkpoint.py" in names(importing_tests(PACKAGE / "checkpoint" / "__init__.py"))


def test_a_helper_has_the_tests_that_import_it_and_a_test_has_itself():
    assert "test_affected.py" in names(affected_tests([ROOT / "tests" / "affected.py"]))
    assert names(affected_tests([UNIT / "test_affected.py"])) == {"test_affected.py"}


@pytest.mark.parametrize("name", ["README.md", "benchmarks/gpu.py", "tests/golden/report.html"])
def test_other_files_have_none(name: str):
    assert affected_tests([ROOT / name]) == []


def test_what_changed_is_what_differs_from_where_the_branch_began(tmp_path: Path):
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(*changed: str) -> None:
        for name in changed:
            (tmp_path / name).write_text(f"{name} {(tmp_path / name).exists()}")

    git("init", "-b", "main")
    write("same.py", "committed.py", "edited.py", "deleted.py", "theirs.py")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "work")
    write("committed.py")
    git("commit", "-a", "-m", "second")
    git("checkout", "main")
    write("theirs.py")
    git("commit", "-a", "-m", "on main, later")
    git("checkout", "work")
    write("edited.py", "new.py", "ignored.pyc")
    (tmp_path / "deleted.py").unlink()
    (tmp_path / ".git" / "info" / "exclude").write_text("*.pyc")
    assert [path.name for path in changed_files("main", tmp_path)] == ["committed.py", "edited.py", "new.py"]
    assert [path.name for path in changed_files("HEAD", tmp_path)] == ["edited.py", "new.py"]
