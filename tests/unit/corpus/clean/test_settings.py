import pytest

from paratune.corpus.settings import read_settings
from paratune.errors import ConfigError


def read(tmp_path, clean):
    path = tmp_path / "c.yaml"
    path.write_text(f"work: w\nindex: {{warcs: [a.warc]}}\nclean:\n{clean}", encoding="utf-8")
    return read_settings(path)


@pytest.mark.parametrize(
    ("clean", "said"),
    [
        ("  variety: {keep: [pt-BR]}\n", r"line 4: clean\.variety has no effect without sources; name"),
        ("  variety: {min_score: 0.9}\n", r"line 4: clean\.variety has no effect without sources"),
        ("  decontaminate: {words: 8}\n", r"line 4: clean\.decontaminate has no effect without sets"),
        ("  skip: [quality]\n  quality: {min_words: 9}\n", r"line 5: clean\.quality has no effect: clean\.skip"),
        # What is given is the default, and still tells that somebody counts on the step.
        ("  skip: [lines]\n  lines: {menus: true}\n", r"line 5: clean\.lines has no effect: clean\.skip"),
    ],
)
def test_sections_that_change_nothing_are_refused(tmp_path, clean, said):
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, clean)


def test_all_of_them_are_named_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"2 problems") as found:
        read(tmp_path, "  skip: [personal]\n  variety: {min_score: 0.9}\n  personal: {region: BR}\n")
    assert "clean.variety" in str(found.value)
    assert "clean.personal" in str(found.value)


def test_sections_of_steps_that_take_part_are_read(tmp_path):
    assert read(tmp_path, "  skip: [lines]\n  quality: {min_words: 9}\n").clean.quality.min_words == 9
    assert read(tmp_path, "  skip: [variety]\n").clean.skip == ["variety"]
