"""Keeps the tokens of these tests in a folder of their own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
