"""Samples kept and dropped texts of a corpus, and searches texts for words."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.corpus.database import connection, parquet
from paratune.corpus.finished import FinishedStage, finished_stages
from paratune.errors import CheckpointError, ConfigError, did_you_mean, require

_HOST = r"regexp_extract(lower(url), '^[a-z]+://(?:[^/?#@]*@)?(?:www\.)?([^/?#:]+)', 1)"
_CONTEXT = 80
"""Characters on each side of a match."""


@dataclass(frozen=True)
class TextFilter:
    """Conditions for texts; None is no condition."""

    unit: str = "documents"
    """documents or sentences."""
    stage: str | None = None
    """Stage of the rows, such as clean/quality; None for the finished corpus."""
    language: str | None = None
    variety: str | None = None
    year: int | None = None
    host: str | None = None
    """Host without "www."; includes its subdomains."""


def draw_kept(work: Path, wanted: TextFilter, *, num: int, seed: int) -> list[dict[str, Any]]:
    """Return a random sample of the kept rows of a stage; it depends only on the rows and the seed.

    Raises:
        CheckpointError: The stage is not finished.
        ConfigError: The stage does not exist, or its rows lack a column of the filter.
    """
    stage = _filtered_stage(work, wanted)
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
    """Return a random sample of dropped rows, with their text if the previous stage has it.

    Args:
        stage: Stage that dropped the rows, such as clean/quality; None for any.

    Returns:
        For each row stage, id, url, reason, detail and text (may be None).

    Raises:
        CheckpointError: The stage is not finished.
        ConfigError: The stage does not exist, or dropped no row for this reason.
    """
    stages = [finished for finished in finished_stages(work) if not finished.is_stale or finished.name == stage]
    chosen = [_stage_by_name(stages, stage)] if stage is not None else stages
    reasons = dict.fromkeys(name for finished in chosen for name in finished.totals["dropped"])
    if reason is not None and reason not in reasons:
        known = ", ".join(reasons) or "nothing was dropped"
        message = f"--reason {reason}: nothing was dropped for it{did_you_mean(reason, reasons)} ({known})"
        raise ConfigError(message, code="cli.unknown_name", option="--reason")
    chosen = [finished for finished in chosen if finished.totals["dropped"]]
    if not chosen:
        return []
    union = " UNION ALL ".join(f"SELECT ? AS stage, * FROM {parquet(finished.dropped)}" for finished in chosen)
    where = "" if reason is None else " WHERE reason = ?"
    key = "concat_ws(' ', stage, id, url, reason, detail)"
    rows = _rows(
        work,
        f"SELECT * FROM ({union}){where} ORDER BY md5(concat(?, ' ', {key})), {key} LIMIT ?",
        [*(finished.name for finished in chosen), *([] if reason is None else [reason]), seed, num],
    )
    _add_texts(work, stages, rows)
    return rows


def _add_texts(work: Path, stages: Sequence[FinishedStage], rows: Sequence[dict[str, Any]]) -> None:
    """Set the text of dropped rows, from the kept rows of the previous stage."""
    for row in rows:
        row["text"] = None
    for name in {row["stage"] for row in rows}:
        at = next(at for at, finished in enumerate(stages) if finished.name == name)
        of_stage = [row for row in rows if row["stage"] == name and row["id"] is not None]
        before = [finished for finished in stages[:at] if {"id", "text"} <= set(_columns(finished))]
        if not of_stage or not before or name.startswith("sentences"):  # whose detail is the sentence
            continue
        asked = ", ".join("?" * len(of_stage))
        sql = f"SELECT id, text FROM {parquet(before[-1].parts)} WHERE id IN ({asked})"
        texts = {row["id"]: row["text"] for row in _rows(work, sql, [row["id"] for row in of_stage])}
        for row in of_stage:
            row["text"] = texts.get(row["id"])


def search(
    work: Path, phrases: Sequence[str], wanted: TextFilter, *, is_regex: bool, limit: int
) -> list[dict[str, Any]]:
    r"""Return the first texts, in the order of the corpus, that contain all phrases.

    Args:
        phrases: Words or phrases, which match whole words without case and accents; or regular expressions of RE2.
        is_regex: Whether `phrases` are regular expressions.

    Returns:
        For each text id (of its document), url, timestamp, and `found`: the first match with its context, and "…" where
        the text is cut.

    Raises:
        CheckpointError: The stage is not finished.
        ConfigError: There is no phrase, or a regular expression is invalid.
    """
    patterns = [phrase if is_regex else word_pattern(phrase) for phrase in phrases]
    if not patterns or "" in patterns:
        raise ConfigError("name a word to search for", code="cli.argument_missing")
    stage = _filtered_stage(work, wanted)
    if not stage.parts:
        return []
    columns = _columns(stage)
    if not {"url", "timestamp", "text"} <= set(columns):
        message = f"--stage {stage.name}: its rows have no text with a URL"
        raise ConfigError(message, code="cli.no_effect", option="--stage", name=stage.name)
    where, values = _conditions(stage, wanted)
    tests = " AND ".join(["regexp_matches(text, ?)"] * len(patterns))
    name = "document_id" if "document_id" in columns else "id"
    context = f"(?s:.{{0,{_CONTEXT}}})"
    with_context = f"{context}(?:{patterns[0]}){context}"
    sql = (
        f"SELECT {name} AS id, url, timestamp, if(starts_with(text, part), '', '…') || part || "
        f"if(ends_with(text, part), '', '…') AS found FROM (SELECT *, regexp_extract(text, ?) AS part "
        f"FROM {parquet(stage.parts)}{where}{' AND ' if where else ' WHERE '}{tests} LIMIT ?)"
    )
    return _rows(work, sql, [with_context, *values, *patterns, limit])


def word_pattern(phrase: str) -> str:
    r"""Return a regular expression (RE2) that matches whole words: `Acao` matches "ação" and "AÇÃO", not "ações"."""
    words = re.findall(r"[^\W_]+", _bare(phrase))
    if not words:
        return ""
    inside = r"[^\pL\pN]+".join("".join(map(_letter, word)) for word in words)
    return rf"(?:^|[^\pL\pN]){inside}(?:$|[^\pL\pN])"


def _letter(letter: str) -> str:
    return f"[{_variants().get(letter, '')}{letter}{letter.upper()}]" if letter.isalpha() else re.escape(letter)


@cache
def _variants() -> dict[str, str]:
    """Return the accented forms, in both cases, of each letter without accents."""
    forms: dict[str, str] = {}
    for point in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)):
        letter = chr(point)
        bare = _bare(letter)
        if letter.isalpha() and len(bare) == 1 and bare != letter:
            forms[bare] = forms.get(bare, "") + letter
    return forms


def _bare(text: str) -> str:
    """Return a text in lower case without accents."""
    return "".join(
        character for character in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(character)
    )


def _filtered_stage(work: Path, wanted: TextFilter) -> FinishedStage:
    """Return the stage of a filter."""
    stages = finished_stages(work)
    name = wanted.stage or f"store/{wanted.unit}"
    if wanted.stage is None and name not in {stage.name for stage in stages}:
        message = f"{work} has no finished {name}; run the stage store first, or name a --stage"
        raise CheckpointError(message, code="corpus.not_finished", folder=work, name=name)
    return _stage_by_name(stages, name)


def _stage_by_name(stages: Sequence[FinishedStage], name: str) -> FinishedStage:
    known = [stage.name for stage in stages]
    if name not in known:
        message = f"--stage {name}: no such stage is finished{did_you_mean(name, known)} ({', '.join(known)})"
        raise ConfigError(message, code="cli.unknown_name", option="--stage", name=name)
    return stages[known.index(name)]


def _columns(stage: FinishedStage) -> list[str]:
    return list(pq.read_schema(stage.parts[0]).names) if stage.parts else []


def _conditions(stage: FinishedStage, wanted: TextFilter) -> tuple[str, list[Any]]:
    """Return the WHERE clause of a filter, and its values.

    Raises:
        ConfigError: The rows of the stage lack a column of the filter.
    """
    year = None if wanted.year is None else f"{wanted.year:04d}"
    host = None if wanted.host is None else "." + wanted.host.lower().removeprefix("www.")
    columns, conditions, values = _columns(stage), [], []
    for column, condition, value in (
        ("language", "language = ?", wanted.language),
        ("variety", "variety = ?", wanted.variety),
        ("timestamp", "timestamp[:4] = ?", year),
        ("url", f"('.' || {_HOST}).ends_with(?)", host),
    ):
        if value is None:
            continue
        if column not in columns:
            message = f"rows of {stage.name} have no {column}; leave this condition out"
            raise ConfigError(message, code="cli.no_effect", name=stage.name, column=column)
        conditions.append(condition)
        values.append(value)
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), values


def _rows(work: Path, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    duckdb = require("duckdb", extra="corpus")
    with connection(work) as db:
        try:
            result = db.execute(sql, values)
            names = [column[0] for column in result.description]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        except duckdb.InvalidInputException as error:
            raise ConfigError(f"that cannot be searched for: {error}", code="cli.invalid_value") from error
