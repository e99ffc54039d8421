import pytest
from raised import raises_code

from paratune.corpus.settings import read_settings


def read(tmp_path, clean):
    path = tmp_path / "c.yaml"
    path.write_text(f"work: w\nindex: {{warcs: [a.warc]}}\nclean:\n{clean}", encoding="utf-8")
    return read_settings(path)


@pytest.mark.parametrize(
    ("clean", "refused"),
    [
        ("  variety: {keep: [pt-BR]}\n", ("config.no_effect", "line 4", "clean.variety")),
        ("  variety: {min_score: 0.9}\n", ("config.no_effect", "line 4", "clean.variety")),
        ("  decontaminate: {words: 8}\n", ("config.no_effect", "line 4", "clean.decontaminate")),
        (
            "  skip: [quality]\n  quality: {min_words: 9}\n",
            ("config.no_effect", "line 5", "clean.quality", "clean.skip"),
        ),
        # The given value is the default; the section still has no effect.
        ("  skip: [lines]\n  lines: {menus: true}\n", ("config.no_effect", "line 5", "clean.lines", "clean.skip")),
    ],
)
def test_sections_that_change_nothing_are_refused(tmp_path, clean, refused):
    with raises_code(*refused):
        read(tmp_path, clean)


def test_all_problems_are_listed(tmp_path):
    with raises_code("config.no_effect", "2 problems") as result:
        read(tmp_path, "  skip: [personal]\n  variety: {min_score: 0.9}\n  personal: {region: BR}\n")
    assert "clean.variety" in str(result.value)
    assert "clean.personal" in str(result.value)


def test_sections_of_steps_that_take_part_are_read(tmp_path):
    assert read(tmp_path, "  skip: [lines]\n  quality: {min_words: 9}\n").clean.quality.min_words == 9
    assert read(tmp_path, "  skip: [variety]\n").clean.skip == ["variety"]
