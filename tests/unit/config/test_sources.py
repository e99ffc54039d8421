"""What names a data set."""

from pathlib import Path

import pytest

from paratune.config.sources import local_path, path_and_split


def test_paths_and_other_sources(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert local_path("~/a.csv#train") == Path("/home/me/a.csv#train")
    assert local_path("~nobody-of-this-name/a.csv") == Path("~nobody-of-this-name/a.csv")
    assert local_path("hub:a/b@train") is None
    assert local_path("demo:sentences") is None


def test_the_split_is_behind_the_last_number_sign(tmp_path: Path):
    assert path_and_split(tmp_path / "set#1#train") == (tmp_path / "set#1", "train")
    (tmp_path / "set#1").mkdir()
    assert path_and_split(tmp_path / "set#1") == (tmp_path / "set#1", None)
    assert path_and_split(tmp_path / "a.csv") == (tmp_path / "a.csv", None)
