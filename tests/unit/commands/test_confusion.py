"""A confusion matrix at the width of a terminal: every line fits, and no number is cut."""

import io

from rich.console import Console

from paratune.commands.infer import confusion_view
from paratune.records.scores import read_confusion


def _lines(names: list[str], counts: object, width: int = 80) -> list[str]:
    matrix = read_confusion(counts)
    assert matrix is not None
    out = io.StringIO()
    Console(file=out, width=width).print(confusion_view(names, matrix, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def _diagonal(num_classes: int) -> list[list[int]]:
    """100 right of each class, and 10 of it taken for the next one."""
    counts = [[0] * num_classes for _ in range(num_classes)]
    for true in range(num_classes):
        counts[true][true] = 100
        counts[true][(true + 1) % num_classes] = 10
    return counts


def test_columns_have_names_if_they_fit():
    assert _lines(["negative", "positive"], [[90, 10], [7, 1234]]) == [
        "rows: true class, columns: predicted",
        "          negative  positive",
        "negative        90        10",
        "positive         7      1234",
    ]


def test_confusions_are_listed_if_the_matrix_is_too_wide():
    names = [f"a class with a rather long name {number}" for number in range(12)]
    title, head, *rows = _lines(names, _diagonal(12))
    assert title == "12 of 12 kinds of confusion among 12 classes; --json has all"
    assert head.split() == ["true", "class", "predicted", "rows", "share"]
    assert all(len(line) <= 80 for line in (head, *rows))
    assert rows[0].split()[-2:] == ["10", "9.1%"]  # of 110


def test_wide_characters_count_twice():
    names = ["\u975e\u5e38\u597d" * 6, "b"]  # 18 characters, 36 cells
    assert _lines(names, [[1, 0], [0, 1]])[0] == "rows: true class, columns: predicted"
    assert _lines(names, [[1, 0], [0, 1]], width=60)[0].startswith("0 of 0 kinds")


def test_many_classes_show_only_the_most_frequent_confusions():
    counts = _diagonal(40)
    counts[5][3] = 50
    title, head, *rows = _lines([f"class {number}" for number in range(40)], counts)
    assert title == "20 of 41 kinds of confusion among 40 classes; --json has all"
    assert head.split() == ["true", "class", "predicted", "rows", "share"]
    assert rows[0].split() == ["class", "5", "class", "3", "50", "31.2%"]  # of 160
    assert rows[1].split() == ["class", "0", "class", "1", "10", "9.1%"]  # of 110
    assert len(rows) == 20
    assert all(len(line) <= 80 for line in rows)


def test_class_names_are_not_markup():
    lines = _lines(["[red]x[/red]", "a\x1b[2Jb"], [[1, 0], [0, 1]])
    assert lines[1].split() == ["[red]x[/red]", r"a\x1b[2Jb"]


def test_a_matrix_with_more_classes_than_the_terminal_is_wide_is_a_list():
    names = [f"c{number}" for number in range(20_000)]
    title, _, row = _lines(names, {"num_classes": 20_000, "counts": [[7, 7, 3], [19_999, 7, 1]]})
    assert title == "1 of 1 kinds of confusion among 20000 classes; --json has all"
    assert row.split() == ["c19999", "c7", "1", "100.0%"]
