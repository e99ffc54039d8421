"""Looking into a corpus: texts at random, also of those that were dropped, and texts in which something stands."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.corpus.made import Made, finished_stages
from paratune.corpus.store.database import connection, parquet
from paratune.corpus.store.figures import SCRATCH, THREADS
from paratune.errors import CheckpointError, ConfigError, did_you_mean, require

_HOST = r"regexp_extract(lower(url), '^[a-z]+://(?:[^/?#@]*@)?(?:www\.)?([^/?#:]+)', 1)"
_CONTEXT = 80
"""Characters on each side of what was found."""


@dataclass(frozen=True)
class TextFilter:
    """Which texts are looked at; None leaves it open."""

    unit: str = "documents"
    """documents or sentences."""
    stage: str | None = None
    """Whose rows, such as clean/quality; those of the finished corpus when None."""
    language: str | None = None
    variety: str | None = None
    year: int | None = None
    host: str | None = None
    """Its name without "www.", with all below it."""


def draw_kept(work: Path, wanted: TextFilter, *, num: int, seed: int) -> list[dict[str, Any]]:
    """Return rows that a stage kept, drawn at random: the same for the same seed on every machine.

    Raises:
        CheckpointError: The stage is not finished.
        ConfigError: There is no such stage, or its rows lack what is asked for.
    """
    stage = _kept_in(work, wanted)
    if not stage.parts:
        return []
    key = "id" if "id" in _columns(stage) else "concat(url, timestamp)"
    key = "concat(document_id, position)" if "document_id" in _columns(stage) else key
    without = " EXCLUDE (payload)" if "payload" in _columns(stage) else ""
    where, values = _conditions(stage, wanted)
    return _rows(
        work,
        f"SELECT *{without} FROM {parquet(stage.parts)}{where} ORDER BY md5(concat(?, ' ', {key})), {key} LIMIT ?",
        [*values, seed, num],
    )


def draw_dropped(work: Path, *, stage: str | None, reason: str | None, num: int, seed: int) -> list[dict[str, Any]]:
    """Return what was dropped, drawn at random, with the text where the stage before has it.

    Args:
        work: The folder of all stages.
        stage: By which stage, such as clean/quality; by any when None.
        reason: For which reason; for any when None.
        num: Most rows.
        seed: The same gives the same rows.

    Returns:
        For each row stage, id, url, reason, detail and text, which may be None.

    Raises:
        CheckpointError: The stage is not finished.
        ConfigError: There is no such stage, or it dropped nothing for that reason.
    """
    stages = [each for each in finished_stages(work) if not each.is_stale or each.name == stage]
    chosen = [_named(stages, stage)] if stage is not None else stages
    reasons = dict.fromkeys(found for each in chosen for found in each.totals["dropped"])
    if reason is not None and reason not in reasons:
        known = ", ".join(reasons) or "nothing was dropped"
        raise ConfigError(
            f"--reason {reason}: nothing was dropped for it{did_you_mean(reason, reasons)} ({known})",
            code="cli.unknown_name",
            option="--reason",
        )
    chosen = [each for each in chosen if each.totals["dropped"]]
    if not chosen:
        return []
    union = " UNION ALL ".join(f"SELECT ? AS stage, * FROM {parquet(each.dropped)}" for each in chosen)
    where = "" if reason is None else " WHERE reason = ?"
    key = "concat_ws(' ', stage, id, url, reason, detail)"
    rows = _rows(
        work,
        f"SELECT * FROM ({union}){where} ORDER BY md5(concat(?, ' ', {key})), {key} LIMIT ?",
        [*(each.name for each in chosen), *([] if reason is None else [reason]), seed, num],
    )
    _add_texts(work, stages, rows)
    return rows


def _add_texts(work: Path, stages: Sequence[Made], rows: Sequence[dict[str, Any]]) -> None:
    """Give rows that were dropped their text, from what the stage before kept."""
    for row in rows:
        row["text"] = None
    for name in {row["stage"] for row in rows}:
        at = next(at for at, each in enumerate(stages) if each.name == name)
        of_stage = [row for row in rows if row["stage"] == name and row["id"] is not None]
        before = [each for each in stages[:at] if {"id", "text"} <= set(_columns(each))]
        if not of_stage or not before or name.startswith("sentences"):  # which has the sentence as the detail
            continue
        asked = ", ".join("?" * len(of_stage))
        sql = f"SELECT id, text FROM {parquet(before[-1].parts)} WHERE id IN ({asked})"
        texts = {row["id"]: row["text"] for row in _rows(work, sql, [row["id"] for row in of_stage])}
        for row in of_stage:
            row["text"] = texts.get(row["id"])


def search(work: Path, asked: Sequence[str], wanted: TextFilter, *, is_regex: bool, limit: int) -> list[dict[str, Any]]:
    r"""Return the first texts, in the order of the corpus, in which all that is asked for stands.

    Args:
        work: The folder of all stages.
        asked: Words or phrases, found as whole words, whatever their case and accents; or regular expressions of RE2.
        wanted: Of which texts.
        is_regex: Whether they are regular expressions.
        limit: Most texts.

    Returns:
        For each text id (of its document), url, timestamp, and `found`: the first of what was asked for, with what
        stands around it, and "…" where the text goes on.

    Raises:
        CheckpointError: The stage is not finished.
        ConfigError: Nothing is asked for, or an expression is none.
    """
    patterns = [each if is_regex else word_pattern(each) for each in asked]
    if not patterns or "" in patterns:
        raise ConfigError("name a word to search for", code="cli.argument_missing")
    stage = _kept_in(work, wanted)
    if not stage.parts:
        return []
    columns = _columns(stage)
    if not {"url", "timestamp", "text"} <= set(columns):
        raise ConfigError(
            f"--stage {stage.name}: its rows have no text with an url",
            code="cli.no_effect",
            option="--stage",
            name=stage.name,
        )
    where, values = _conditions(stage, wanted)
    tests = " AND ".join(["regexp_matches(text, ?)"] * len(patterns))
    name = "document_id" if "document_id" in columns else "id"
    beside = f"(?s:.{{0,{_CONTEXT}}})"
    around = f"{beside}(?:{patterns[0]}){beside}"
    sql = (
        f"SELECT {name} AS id, url, timestamp, if(starts_with(text, part), '', '…') || part || "
        f"if(ends_with(text, part), '', '…') AS found FROM (SELECT *, regexp_extract(text, ?) AS part "
        f"FROM {parquet(stage.parts)}{where}{' AND ' if where else ' WHERE '}{tests} LIMIT ?)"
    )
    return _rows(work, sql, [around, *values, *patterns, limit])


def word_pattern(phrase: str) -> str:
    r"""Return an expression of RE2 for a word or phrase as whole words: `Acao` finds "ação" and "AÇÃO", not "ações"."""
    words = re.findall(r"[^\W_]+", _bare(phrase))
    if not words:
        return ""
    inside = r"[^\pL\pN]+".join("".join(map(_letter, word)) for word in words)
    return rf"(?:^|[^\pL\pN]){inside}(?:$|[^\pL\pN])"


def _letter(letter: str) -> str:
    return f"[{_variants().get(letter, '')}{letter}{letter.upper()}]" if letter.isalpha() else re.escape(letter)


@cache
def _variants() -> dict[str, str]:
    """Return the accented forms, in both cases, of letters without accents."""
    forms: dict[str, str] = {}
    for point in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)):
        letter = chr(point)
        bare = _bare(letter)
        if letter.isalpha() and len(bare) == 1 and bare != letter:
            forms[bare] = forms.get(bare, "") + letter
    return forms


def _bare(text: str) -> str:
    """Return a text in lower case without accents."""
    return "".join(each for each in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(each))


def _kept_in(work: Path, wanted: TextFilter) -> Made:
    """Return the stage whose rows are looked at."""
    stages = finished_stages(work)
    name = wanted.stage or f"store/{wanted.unit}"
    if wanted.stage is None and name not in {each.name for each in stages}:
        raise CheckpointError(
            f"{work} has no finished {name}; run the stage store first, or name a --stage",
            code="corpus.not_finished",
            folder=work,
            name=name,
        )
    return _named(stages, name)


def _named(stages: Sequence[Made], name: str) -> Made:
    known = [each.name for each in stages]
    if name not in known:
        raise ConfigError(
            f"--stage {name}: no such stage is finished{did_you_mean(name, known)} ({', '.join(known)})",
            code="cli.unknown_name",
            option="--stage",
            name=name,
        )
    return stages[known.index(name)]


def _columns(stage: Made) -> list[str]:
    return list(pq.read_schema(stage.parts[0]).names) if stage.parts else []


def _conditions(stage: Made, wanted: TextFilter) -> tuple[str, list[Any]]:
    """Return the WHERE of what is wanted, and its values."""
    columns = _columns(stage)
    conditions, values = [], []
    for column in ("language", "variety"):
        value = getattr(wanted, column)
        if value is not None:
            _require(column, columns, stage)
            conditions.append(f"{column} = ?")
            values.append(value)
    if wanted.year is not None:
        _require("timestamp", columns, stage)
        conditions.append("timestamp[:4] = ?")
        values.append(f"{wanted.year:04d}")
    if wanted.host is not None:
        _require("url", columns, stage)
        conditions.append(f"('.' || {_HOST}).ends_with(?)")
        values.append("." + wanted.host.lower().removeprefix("www."))
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), values


def _require(column: str, columns: Iterable[str], stage: Made) -> None:
    if column not in columns:
        raise ConfigError(
            f"rows of {stage.name} have no {column}; leave that condition out",
            code="cli.no_effect",
            name=stage.name,
            column=column,
        )


def _rows(work: Path, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    duckdb = require("duckdb", extra="corpus")
    with connection(work / SCRATCH, threads=THREADS) as db:
        try:
            found = db.execute(sql, values)
            names = [each[0] for each in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        except duckdb.InvalidInputException as error:
            raise ConfigError(f"that cannot be searched for: {error}", code="cli.invalid_value") from error
