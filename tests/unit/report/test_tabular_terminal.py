"""Tables of a report in a terminal: what is broken where a line is short."""

from rich.console import Console

from paratune.report.tabular import table_of_texts
from paratune.report.tabular_terminal import rich_table

TABLE = table_of_texts("t", "", ["run", "step predicted (ms)", "interval"], [["a", "394.2", "339.5 to 478.6"]], 1)


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
        "",
    ]


def test_nothing_is_broken_where_there_is_room() -> None:
    assert lines(40) == ["run  step predicted (ms)        interval", "a                  394.2  339.5 to 478.6", ""]


def test_columns_that_do_not_fit_stand_below_with_the_names() -> None:
    assert lines(29) == [
        "run  step predicted (ms)",
        "a                  394.2",
        "",
        "run        interval",
        "a    339.5 to 478.6",
        "",
    ]
