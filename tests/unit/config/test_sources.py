"""What names a data set."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.config.load import load_values
from paratune.config.sections import data_sources
from paratune.config.sources import local_path, matching_sources, path_and_split
from paratune.data.read import read_table
from paratune.sweeps.cells import missing_files


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


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with the files part-1.txt to part-3.txt and a[1].txt in `pt[0]`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pt[0]").mkdir()
    for name in ("part-3.txt", "part-1.txt", "part-2.txt", "a[1].txt", "a1.txt"):
        (tmp_path / "pt[0]" / name).write_text(f"{name}\n")
    return tmp_path


def test_a_pattern_is_its_files_by_name(parts: Path):
    files = [f"pt[0]/part-{number}.txt" for number in (1, 2, 3)]
    assert matching_sources("pt[0]/part-*.txt") == matching_sources("pt*/part-[1-3].txt") == files
    assert matching_sources(str(parts / "**" / "part-?.txt")) == [str(parts / file) for file in files]
    assert matching_sources("pt[0]/part-*.txt#paragraphs") == [f"{file}#paragraphs" for file in files]


def test_what_exists_or_matches_nothing_is_no_pattern(parts: Path):
    for source in (
        *("pt[0]/a[1].txt", "pt[0]/a[2].txt", "pt[0]/b.txt", "hub:a/b*", "code:a.b:c?d=*", "x*" * 1500),
        *("demo:sentences", "<FILE>", "a\0*"),
    ):
        assert matching_sources(source) == [source]


def with_data(**data: object) -> dict[str, object]:
    return {
        "task": {"kind": "mlm"},
        "data": {"columns": {"text": "text"}, **data},
        "model": {"name": "m"},
        "train": {"epochs": 1},
        "batch": {"global": 8},
        "run": {"name": "r"},
    }


def test_files_of_patterns_are_checked_like_named_ones(parts: Path):
    loaded = load_values(with_data(train=["pt[0]/a1.txt", "pt[0]/part-[12].txt"], validation="pt[0]/part-[3].txt"))
    numbers = [1, 2]
    assert list(data_sources(loaded.config.data)) == [
        ("data.train", "pt[0]/a1.txt"),
        *(("data.train", f"pt[0]/part-{number}.txt") for number in numbers),
        ("data.validation", "pt[0]/part-3.txt"),
    ]
    assert loaded.values["data"]["validation"] == "pt[0]/part-[3].txt"  # the record has what was written
    with raises_code("config.conflict", "data.validation", "data.train", "pt[0]/part-2.txt"):
        load_values(with_data(train="pt[0]/part-*.txt", validation="pt[0]/part-2.txt"))
    with raises_code("config.conflict", "pt[0]/part-2.txt"):
        load_values(with_data(train=["pt[0]/part-*.txt", "pt[0]/part-2.txt"]))


def test_a_pattern_without_files_is_an_error_with_the_nearest_name(parts: Path):
    loaded = load_values(with_data(train="pt[0]/prat-*.txt", validation="none/*.txt"))
    assert [(key, "part-" in text, "none" in text) for key, text in missing_files(loaded)] == [
        ("data.train", True, False),
        ("data.validation", False, True),
    ]
    with raises_code("data.not_found", "prat-*.txt", "part-", source="pt[0]/prat-*.txt"):
        read_table("pt[0]/prat-*.txt")
    with raises_code("data.not_found", "3", "part-1.txt", "data.train"):  # where a single source is read
        read_table("pt[0]/part-*.txt")
