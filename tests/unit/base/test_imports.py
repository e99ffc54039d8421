"""Working without the garbage collector: it is as it was afterwards, whatever happens in between."""

import gc
import importlib
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from paratune.base.imports import collector_off, without_collections
from paratune.cli import records


@pytest.mark.parametrize("held_back", [without_collections, collector_off])
@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_as_it_was_afterwards(
    was_enabled: bool, held_back: Callable[[], AbstractContextManager[None]]
):
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


def test_what_was_imported_is_left_out_of_later_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a_module_of_this_test.py").write_text("VALUES = [[], []]", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = gc.get_freeze_count()
    with without_collections():
        importlib.import_module("gc")  # is there
    assert gc.get_freeze_count() == before
    try:
        with without_collections():
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
        with without_collections():
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
def test_report_and_compare_leave_nothing_out_of_later_collections(command: str, monkeypatch: pytest.MonkeyPatch):
    def work(*_: object, **__: object) -> int:
        sys.modules["a_module_that_was_imported_by_the_command"] = sys
        assert not gc.isenabled()
        return 0

    monkeypatch.setattr(importlib.import_module(f"paratune.commands.{command}"), f"{command}_command", work)
    before = gc.get_freeze_count()
    try:
        assert getattr(records, command)() == 0
        assert gc.get_freeze_count() == before
    finally:
        gc.unfreeze()
        sys.modules.pop("a_module_that_was_imported_by_the_command", None)
