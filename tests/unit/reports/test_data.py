"""Pictures of data: what they say, what stands in the place of one, and where words of a cloud stand."""

import json
import re
from itertools import combinations

import numpy as np
import pytest

from paratune.reports.data import DataView, _extent, _quartiles, count_words, data_drawings, place_words, write_figures
from paratune.reports.figures.canvas import figure_style

SCRIPT = "<script>alert(1)</script>"
SCORES = np.array([5.0, 6.0, 6.0, 6.5, 7.0, 8.0])


def view(**changes):
    values = {
        "splits": {"train": 4, "test": 2},
        "labels": SCORES,
        "label": "Overall",
        "classes": [],
        "words": np.array([100, 150, 120, 200, 220, 300]),
        "tokens": np.array([130, 180, 140, 260, 280, 400]),
        "max_length": 256,
        "groups": ["1", "1", "2", "1", "2", "2"],
        "by": "Task_Type",
        "numeric": {"Task_Type": np.array([1.0, 1, 2, 1, 2, 2]), "Empty": np.full(6, np.nan), "Same": np.ones(6)},
        "texts": {"Essay": ["a good essay", "another essay"]},
        "min_texts": 2,
        "stop_words": ["another"],
    }
    return DataView(**(values | changes))


def by_name(found):
    return {each.key: each for each in data_drawings(found)}


def test_a_regression_has_figures_of_its_scores():
    found = by_name(view())
    assert list(found) == [
        "score_distribution",
        "lengths",
        "length_by_score",
        "correlations",
        "scores_by_type",
        "words_Essay",
    ]
    assert "6 rows; mean 6.42" in found["score_distribution"].caption
    # 260, 280 and 400 tokens of six are over 256.
    assert "50.0% of the samples are longer" in found["lengths"].caption
    pearson = np.corrcoef(view().words, SCORES)[0, 1]
    assert f"Overall: {pearson:.2f}" in found["length_by_score"].caption
    assert "Left out, without two different values: Empty, Same." in found["correlations"].caption


def test_the_number_of_drawn_points_is_told():
    size = 3_000  # 800 points of a group are drawn at most: each fourth of 3,000
    many = {"labels": np.arange(size) % 9.0, "words": np.arange(size), "tokens": np.arange(size)}
    found = by_name(view(splits={"train": size}, groups=None, by=None, numeric={}, **many))
    assert "750 of 3,000 rows are drawn" in found["length_by_score"].caption


@pytest.mark.parametrize(("labels", "num_bars"), [([1.0, 2.0, 4.0], 4), ([2.333, 2.3333, 7.0], 40)])
def test_scores_have_a_bar_each_unless_these_are_too_many(labels, num_bars):
    edges, *_ = by_name(view(labels=np.array(labels * 2)))["score_distribution"].draw.args
    assert len(edges) - 1 == num_bars


def test_a_classification_has_figures_of_its_classes():
    found = by_name(view(labels=np.array([0, 1, 1, 1, 0, 1]), classes=["bad", "good"], groups=None, numeric={}))
    assert list(found) == ["class_balance", "lengths", "length_by_class", "correlations", "words_Essay"]
    assert "the commonest class has 66.7%" in found["class_balance"].caption
    assert "no column of numbers" in found["correlations"].note
    assert "classes_by_type" in by_name(view(labels=np.array([0, 1, 1, 1, 0, 1]), classes=["bad", "good"]))


def test_a_column_with_few_texts_has_a_reason_instead_of_a_word_cloud(tmp_path):
    found = by_name(view(texts={"Examiner": ["fine"]}))["words_Examiner"]
    assert found.note.startswith("No word cloud of Examiner: 1 of 6 rows have a text (83.3% are empty)")
    written = write_figures(tmp_path / "out", view(texts={"Examiner": ["fine"]}), title="Data", about="a file")
    assert written[-1]["note"] == found.note
    assert written[-1]["file"] is None
    assert found.note in (tmp_path / "out" / "index.html").read_text()
    only_stop_words = by_name(view(texts={"Essay": ["another", "it is"]}, stop_words=["another"]))["words_Essay"]
    assert only_stop_words.note is not None


def test_columns_of_like_names_have_a_file_each():
    found = by_name(view(texts={name: ["fine"] for name in ("a b", "a_b", "A.B")}))
    assert [name for name in found if name.startswith("words")] == ["words_a_b", "words2_a_b", "words3_A_B"]
    assert found["words2_a_b"].title == "Words of a_b"


def test_files_a_page_and_a_list_are_written_and_replaced(tmp_path):
    folder = tmp_path / "figures"
    hostile = view(by=SCRIPT, label=f"a{SCRIPT}", groups=[SCRIPT, "$x$"] * 3)
    listed = write_figures(folder, hostile, title=SCRIPT, about="here.csv")
    for each in listed:
        assert (folder / each["file"]).read_text().startswith("<?xml")
    page = (folder / "index.html").read_text()
    assert page.count("<script") == 1  # the page's own
    assert page.count("<svg") == len(listed)
    assert not re.search(r"(src|href)=\"(?!#)", page)
    write_figures(folder, view(texts={}), title="again", about="here.csv")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    found = json.loads((folder / "report.json").read_text())["figures"]
    assert files == {"index.html", "report.json", *(each["file"] for each in found)}
    assert "figures/words_Essay.svg" not in files


def test_words_are_counted_without_case_stop_words_and_short_ones():
    counts = count_words(["The essay, the ESSAY! It’s a well-being of 12 x1", "don't essay"], ["the", "it", "of"])
    assert counts == [("essay", 3), ("well-being", 1)]


def test_words_of_a_cloud_touch_neither_each_other_nor_the_edge():
    counts = count_words([f"word{'abcdefghijklmnopqrst'[number]} " * (20 - number) for number in range(20)], [])
    placed = place_words(counts, width=400, height=250)
    assert [word for word, *_ in placed][:2] == ["worda", "wordb"]
    assert placed == place_words(counts, width=400, height=250)
    # The area of letters goes by the count: of 20 and 5, twice the size.
    sizes, num = {word: size for word, _, _, size in placed}, dict(counts)
    (largest,), (quarter,) = ([size for word, size in sizes.items() if num[word] == count] for count in (20, 5))
    assert largest == pytest.approx(2 * quarter)
    boxes = []
    for word, x, y, size in placed:
        left, below, wide, high = (size * value for value in _extent(word))
        boxes.append((x + left, y + below, x + left + wide, y + below + high))
    for box in boxes:
        assert box[0] >= 0
        assert box[1] >= 0
        assert box[2] <= 400
        assert box[3] <= 250
    for a, b in combinations(boxes, 2):
        assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]


def test_a_group_has_its_median_quartiles_and_whiskers():
    # Scores 1 to 9 and one of 90: quartiles 3.25 and 7.75, 1.5 x 4.5 = 6.75, so whiskers from 1 to 9.
    labels = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 90])
    drawing = _quartiles("k", "t", "Score", {"a": labels, "b": labels[:0]})
    with figure_style():
        figure, hovers = drawing.laid_out
    (axes,) = figure.axes
    assert not axes.patches  # a bar of no width at 0 would widen the axis
    assert axes.get_xlim()[0] > 0
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 9], [3.25, 7.75], [5.5]]
    assert [text.get_text() for text in axes.texts] == ["n/a"]
    assert list(hovers.values()) == ["a (10): median 5.5, quartiles 3.25 and 7.75"]
