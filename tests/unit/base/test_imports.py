"""Working without the garbage collector: it is as it was afterwards, whatever happens in between."""

import gc
import importlib
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from paratune.base.imports import collector_off, collector_off_for_imports


@pytest.mark.parametrize("held_back", [collector_off_for_imports, collector_off])
@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_restored_afterwards(was_enabled: bool, held_back: Callable[[], AbstractContextManager[None]]):
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with held_back():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
        with pytest.raises(ModuleNotFoundError), held_back():
            importlib.import_module("no_such_module")
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_imported_objects_are_excluded_from_later_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a_module_of_this_test.py").write_text("VALUES = [[], []]", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = gc.get_freeze_count()
    with collector_off_for_imports():
        importlib.import_module("gc")  # is there
    assert gc.get_freeze_count() == before
    try:
        with collector_off_for_imports():
            importlib.import_module("a_module_of_this_test")
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
        sys.modules.pop("a_module_of_this_test", None)


def test_garbage_of_the_time_before_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "another_module_of_this_test.py").write_text("VALUES = [[], []]", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    seen = weakref.ref(Cycle())
    try:
        with collector_off_for_imports():
            importlib.import_module("another_module_of_this_test")
        assert seen() is None
    finally:
        gc.unfreeze()
        sys.modules.pop("another_module_of_this_test", None)


def test_garbage_of_a_report_can_be_collected_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where it imports: each report of a process that makes several would keep its own for ever."""
    (tmp_path / "a_third_module_of_this_test.py").write_text("VALUES = [[], []]", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    before = gc.get_freeze_count()
    try:
        with collector_off():
            importlib.import_module("a_third_module_of_this_test")
            seen = weakref.ref(Cycle())
        assert gc.get_freeze_count() == before
        gc.collect()
        assert seen() is None
    finally:
        gc.unfreeze()
        sys.modules.pop("a_third_module_of_this_test", None)


@pytest.mark.parametrize("command", ["report", "compare"])
def test_report_and_compare_do_not_freeze_objects(command: str, monkeypatch: pytest.MonkeyPatch):
    class Reached(Exception):
        """Stops the command after the check."""

    def work(*_: object) -> None:
        sys.modules["a_module_that_was_imported_by_the_command"] = sys
        assert not gc.isenabled()
        raise Reached

    monkeypatch.setattr("paratune.verdicts.read_margins", work)
    before = gc.get_freeze_count()
    try:
        with pytest.raises(Reached):
            getattr(importlib.import_module(f"paratune.commands.{command}"), command)(Path("run"))
        assert gc.get_freeze_count() == before
    finally:
        gc.unfreeze()
        sys.modules.pop("a_module_that_was_imported_by_the_command", None)
