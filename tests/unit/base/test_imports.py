"""Working without the garbage collector: it is as it was afterwards, whatever happens in between."""

import gc
import importlib
import sys
import weakref
from pathlib import Path

import pytest

from paratune.base.imports import collector_off_for_imports


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_restored_afterwards(was_enabled: bool):
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with collector_off_for_imports():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
        with pytest.raises(ModuleNotFoundError), collector_off_for_imports():
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
