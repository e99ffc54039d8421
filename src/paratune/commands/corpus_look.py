"""`paratune corpus stats`, `sample` and `search`: looking into a corpus, also while it is made."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from paratune.base.text import plain, plain_lines
from paratune.console import print_json, print_result
from paratune.corpus.made import naming_damage
from paratune.corpus.settings import read_settings
from paratune.corpus.store.figures import corpus_figures
from paratune.corpus.store.look import TextFilter, draw_dropped, draw_kept, search
from paratune.errors import EXIT_OK, CheckpointError, ConfigError, option_error
from paratune.report.corpus_tables import corpus_tables
from paratune.report.tabular_terminal import rich_table
from paratune.report.text import shorten

_SHOWN = 1000
"""Characters of a text in a terminal."""


def stats_command(path: Path, *, as_json: bool) -> int:
    """Print the figures of a corpus; return the exit code."""
    work = work_of(path)
    with naming_damage(work):
        found = corpus_figures(work)
    if as_json:
        print_json(found)
        return EXIT_OK
    width = Console().width
    print_result(Group(*(part for table in corpus_tables(found) for part in rich_table(table, width))))
    return EXIT_OK


def sample_command(
    path: Path, wanted: TextFilter, *, dropped: bool, reason: str | None, num: int, seed: int, as_json: bool
) -> int:
    """Print texts of a corpus at random; return the exit code."""
    if num < 1:
        raise option_error("--num", num, "at least 1", code="cli.out_of_range")
    if dropped or reason is not None:
        given = [name for name in ("language", "variety", "year", "host") if getattr(wanted, name) is not None]
        if given:
            raise ConfigError(
                f"--{given[0]} is about what was kept; what was dropped is chosen by --stage and --reason",
                code="cli.no_effect",
            )
    work = work_of(path)
    with naming_damage(work):
        if dropped or reason is not None:
            found = draw_dropped(work, stage=wanted.stage, reason=reason, num=num, seed=seed)
        else:
            found = draw_kept(work, wanted, num=num, seed=seed)
    return _print(found, as_json=as_json)


def search_command(
    path: Path, asked: Sequence[str], wanted: TextFilter, *, is_regex: bool, limit: int, as_json: bool
) -> int:
    """Print where words stand in a corpus; return the exit code."""
    if limit < 1:
        raise option_error("--limit", limit, "at least 1", code="cli.out_of_range")
    work = work_of(path)
    with naming_damage(work):
        found = search(work, asked, wanted, is_regex=is_regex, limit=limit)
    return _print(found, as_json=as_json)


def work_of(path: Path) -> Path:
    """Return the work folder that is meant: one itself, or that of a configuration.

    Raises:
        ParatuneError: There is neither.
    """
    work = path if path.is_dir() else Path(read_settings(path).work)
    if not work.is_dir():
        raise CheckpointError(
            f"{plain(work)} does not exist yet; run paratune corpus {plain(path)} first",
            code="corpus.not_finished",
            folder=work,
            path=path,
        )
    return work


def _print(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    if as_json:
        print_json(rows)
    elif rows:
        print_result(Group(*(part for row in rows for part in _shown(row))), is_prose=True)
    else:
        print_result(Text("nothing found"))
    return EXIT_OK


def _shown(row: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the lines of a row: where it is from, what is known of it, and its text."""
    known = [row.get(name) for name in ("stage", "reason", "timestamp", "language", "variety")]
    yield Text(plain(row.get("url") or "n/a"), style="bold")
    about = [plain(each) for each in known if each is not None]
    if row.get("reason") is not None and row.get("detail"):
        about.append(shorten(row["detail"], _SHOWN))
    yield Text("  ".join(about), style="dim")
    text = row.get("found") or row.get("text")
    if text:
        yield Text(plain_lines(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"))
    yield Text()
