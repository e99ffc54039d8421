"""Tables of a report in a terminal: what is broken where a line is short."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from paratune.reports.tables.table import make_table
from paratune.reports.terminal import rich_table

TABLE = make_table("t", "", ["run", "step predicted (ms)", "interval"], [["a", "394.2", "339.5 to 478.6"]], 1)


def lines(width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as found:
        for part in rich_table(TABLE, width):
            console.print(part)
    return [line.rstrip() for line in found.get().splitlines()]


def test_a_header_is_broken_between_words_and_figures_are_not() -> None:
    assert lines(30) == [
        "          step",  # 3 + 2 + 9 (predicted) + 2 + 14 cells
        "     predicted",
        "run       (ms)        interval",
        "a        394.2  339.5 to 478.6",
    ]


def test_wide_terminals_do_not_divide_the_table() -> None:
    assert lines(40) == ["run  step predicted (ms)        interval", "a                  394.2  339.5 to 478.6"]


def test_columns_that_do_not_fit_are_below_with_the_names_repeated() -> None:
    assert lines(29) == [
        "run  step predicted (ms)",
        "a                  394.2",
        "",
        "run        interval",
        "a    339.5 to 478.6",
    ]


def test_lines_are_aligned_as_rich_aligns_them() -> None:
    header = ["run", "device", "f1"]
    rows = [["日本", "A100", "0.91"], ["a longer one", "é", "n/a"], ["c", "T4", "1,000.25"]]
    console = Console(width=60)
    with console.capture() as ours:
        for part in rich_table(make_table("t", "", header, rows, 2), 60):
            console.print(part)
    by_rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in zip(header, ("left", "left", "right"), strict=True):
        by_rich.add_column(name, justify=side)
    for row in rows:
        by_rich.add_row(*map(Text, row))
    with console.capture() as theirs:
        console.print(by_rich)
    assert ours.get() == theirs.get()


def test_marked_lines_are_bold() -> None:
    console = Console(width=40, force_terminal=True, color_system="standard")
    with console.capture() as found:
        for part in rich_table(make_table("t", "", ["a", "b"], [["x", "1"], ["y", "2"]], 1, (), (1,)), 40):
            console.print(part)
    assert "\nx  1\n\x1b[1my" in found.get()
