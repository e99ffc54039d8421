"""Reads finished corpora: the stages of a work folder, statistics, and samples of kept and dropped texts."""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.base.text import plain
from paratune.corpus.database import connection, parquet
from paratune.corpus.shard import part_file, reading
from paratune.corpus.stage import STAGE_FILE, finished_record
from paratune.errors import CheckpointError, ConfigError, did_you_mean

PATTERNS = ("[0-9]_*", "[0-9]_*/[0-9]_*", "1_index/read", "6_store/documents", "6_store/sentences")
"""Folders of stages and steps that keep and drop rows; other folders are intermediate results."""


@dataclass(frozen=True)
class FinishedStage:
    """A finished stage, or a finished step of a stage."""

    name: str
    """`index`; `index/read` for a step."""
    folder: Path
    totals: dict[str, Any]
    """Content of stage.json."""
    is_stale: bool
    """Whether it was made from an older output of the previous stage."""

    @property
    def parts(self) -> list[Path]:
        """Tables of kept rows."""
        return [self.folder / part_file(number) for number in range(self.totals["shards"])]


def finished_stages(work: Path) -> list[FinishedStage]:
    """Return the finished stages of a work folder; the steps of a stage come before it.

    Raises:
        CheckpointError: No stage is finished, or a record is damaged.
    """
    stages: list[FinishedStage] = []
    outputs: list[str] = []
    records = (path for pattern in PATTERNS for path in work.glob(f"{pattern}/{STAGE_FILE}"))
    found = [path.parent.relative_to(work).parts for path in records]
    for parts in sorted(found, key=lambda parts: (parts[0], len(parts) == 1, parts[-1])):
        folder = work.joinpath(*parts)
        totals = finished_record(folder)
        if "fingerprint" not in totals:  # the sum of its steps
            continue
        # The first stage reads files, which have no fingerprint.
        source = json.dumps(totals["input"])
        is_stale = not parts[0].startswith("1_") and not any(output in source for output in outputs)
        if not is_stale:
            outputs.append(totals["output"])
        # 4_clean/2_language is clean/language.
        name = "/".join(part.partition("_")[2] if part[0].isdigit() else part for part in parts)
        stages.append(FinishedStage(name, folder, totals, is_stale))
    if not stages:
        message = f"{plain(work)} has no finished stage of a corpus; run paratune corpus CONFIG first"
        raise CheckpointError(message, code="corpus.not_finished", folder=work)
    return stages


MOST_HOSTS = 50
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_GROUPS = ("language", "variety", "year", "mime", "extractor", "charset", "licence", "split")
"""Columns of documents whose values are counted, besides hosts."""


def corpus_figures(work: Path) -> dict[str, Any]:
    """Return the statistics of the finished stages in a work folder.

    Returns:
        funnel: for each stage in order stage, shards, kept, dropped (by reason), is_stale.
        documents: num, num_characters, num_words, num_masked, num_hosts; by_language and so on, for each value its num
            and num_words, the most frequent first (years in order); words: number of words, see `distribution`; None
            before the store is finished.
        sentences: num, words, perplexity (see `distribution`, None if unknown); None without sentences.

    Raises:
        CheckpointError: No stage is finished, or a record is damaged.
        MissingDependency: DuckDB is not installed.
    """
    stages = finished_stages(work)
    by_name, counts = {stage.name: stage for stage in stages}, ("shards", "kept", "dropped")
    documents, sentences = by_name.get("store/documents"), by_name.get("store/sentences")
    with connection(work) as db:
        return {
            "funnel": [
                {"stage": stage.name, **{key: stage.totals[key] for key in counts}, "is_stale": stage.is_stale}
                for stage in stages
            ],
            "documents": _documents(db, documents.parts) if documents and documents.parts else None,
            "sentences": _sentences(db, sentences.parts) if sentences and sentences.parts else None,
        }


def _documents(db: Any, tables: Sequence[Path]) -> dict[str, Any]:
    source = parquet(tables)
    names = ("num", "num_characters", "num_words", "num_masked", "num_hosts")
    (totals,) = db.execute(
        "SELECT count(*), coalesce(sum(num_characters), 0)::BIGINT, coalesce(sum(num_words), 0)::BIGINT, "
        f"sum(num_masked)::BIGINT, count(DISTINCT host) FROM {source}"
    ).fetchall()
    groups = {f"by_{name}": _by(db, source, name) for name in _GROUPS}
    counts = dict(db.execute(f"SELECT num_words, count(*) FROM {source} GROUP BY 1").fetchall())
    return {
        **dict(zip(names, totals, strict=True)),
        **groups,
        "by_host": _by(db, source, "host", most=MOST_HOSTS),
        "words": distribution(counts),
    }


def _by(db: Any, source: str, column: str, *, most: int | None = None) -> list[dict[str, Any]]:
    """Return the values of a column with their numbers of documents and words, the most frequent first."""
    order = "1" if column == "year" else "2 DESC, 1"
    limit = "" if most is None else f" LIMIT {most}"
    sql = f"SELECT {column}, count(*), sum(num_words)::BIGINT FROM {source} GROUP BY 1 ORDER BY {order}{limit}"
    return [dict(zip(("value", "num", "num_words"), row, strict=True)) for row in db.execute(sql).fetchall()]


def _sentences(db: Any, tables: Sequence[Path]) -> dict[str, Any]:
    source = parquet(tables)
    # A sentence has one space between its words.
    words = "length(text) - length(replace(text, ' ', '')) + 1"
    counts = dict(db.execute(f"SELECT {words}, count(*) FROM {source} GROUP BY 1").fetchall())
    # Rounded to half a per cent: all exact values would be in memory at once.
    sql = f"SELECT round(ln(perplexity), 2), count(*) FROM {source} WHERE perplexity > 0 GROUP BY 1"
    known = db.execute(sql).fetchall()
    return {
        "num": sum(counts.values()),
        "words": distribution(counts),
        "perplexity": distribution({math.exp(value): count for value, count in known}) if known else None,
    }


def distribution(counts: Mapping[float, int]) -> dict[str, Any]:
    """Return the distribution of a quantity, given the count of each value.

    Returns:
        mean; quantiles, by share ("0.5" is the median). None and empty without values.
    """
    num = sum(counts.values())
    if not num:
        return {"mean": None, "quantiles": {}}
    ordered = sorted(counts.items())
    seen = list(accumulate(count for _, count in ordered))
    quantiles = {f"{share:g}": ordered[min(bisect_left(seen, share * num), len(seen) - 1)][0] for share in QUANTILES}
    return {"mean": sum(value * count for value, count in ordered) / num, "quantiles": quantiles}


DOCUMENTS = "store/documents"


def draw_kept(work: Path, *, stage: str | None, num: int, seed: int) -> list[dict[str, Any]]:
    """Return a random sample of the kept rows of a stage; it depends only on the rows and the seed.

    Args:
        stage: Such as clean/quality or store/sentences; None for the documents of the finished corpus.

    Raises:
        CheckpointError: The corpus is not finished.
        ConfigError: There is no such stage.
    """
    stages = {finished.name: finished for finished in finished_stages(work)}
    if stage is None and DOCUMENTS not in stages:
        message = f"{work} has no finished {DOCUMENTS}; run the stage store first, or name a --stage"
        raise CheckpointError(message, code="corpus.not_finished", folder=work, name=DOCUMENTS)
    chosen = _stage_by_name(stages, stage or DOCUMENTS)
    columns = _columns(chosen)
    if not columns:
        return []
    key = "id" if "id" in columns else "concat(url, timestamp)"
    key = "concat(document_id, position)" if "document_id" in columns else key
    without = " EXCLUDE (payload)" if "payload" in columns else ""
    sql = f"SELECT *{without} FROM {parquet(chosen.parts)} ORDER BY md5(concat(?, ' ', {key})), {key} LIMIT ?"
    return _rows(work, sql, [seed, num])


def draw_dropped(work: Path, *, stage: str | None, reason: str | None, num: int, seed: int) -> list[dict[str, Any]]:
    """Return a random sample of dropped rows, with their text if the previous stage has it.

    Args:
        stage: Stage that dropped the rows, such as clean/quality; None for any.

    Returns:
        For each row stage, id, url, reason, detail and text (may be None).

    Raises:
        CheckpointError: No stage is finished.
        ConfigError: The stage does not exist, or dropped no row for this reason.
    """
    finished = [found for found in finished_stages(work) if not found.is_stale or found.name == stage]
    stages = {found.name: found for found in finished}
    chosen = list(stages.values()) if stage is None else [_stage_by_name(stages, stage)]
    reasons = dict.fromkeys(name for found in chosen for name in found.totals["dropped"])
    if reason is not None and reason not in reasons:
        known = ", ".join(reasons) or "nothing was dropped"
        message = f"--reason {reason}: nothing was dropped for it{did_you_mean(reason, reasons)} ({known})"
        raise ConfigError(message, code="cli.invalid_value", option="--reason")
    chosen = [found for found in chosen if found.totals["dropped"]]
    if not chosen:
        return []
    tables = [
        [found.folder / part_file(number, "dropped") for number in range(found.totals["shards"])] for found in chosen
    ]
    union = " UNION ALL ".join(f"SELECT ? AS stage, * FROM {parquet(of_stage)}" for of_stage in tables)
    where = "" if reason is None else " WHERE reason = ?"
    key = "concat_ws(' ', stage, id, url, reason, detail)"
    rows = _rows(
        work,
        f"SELECT *, NULL AS text FROM ({union}){where} ORDER BY md5(concat(?, ' ', {key})), {key} LIMIT ?",
        [*(found.name for found in chosen), *([] if reason is None else [reason]), seed, num],
    )
    for name in {row["stage"] for row in rows}:
        of_stage = [row for row in rows if row["stage"] == name and row["id"] is not None]
        before = [found for found in finished[: list(stages).index(name)] if {"id", "text"} <= set(_columns(found))]
        if not of_stage or not before or name.startswith("sentences"):  # whose detail is the sentence
            continue
        asked = ", ".join("?" * len(of_stage))
        sql = f"SELECT id, text FROM {parquet(before[-1].parts)} WHERE id IN ({asked})"
        texts = {row["id"]: row["text"] for row in _rows(work, sql, [row["id"] for row in of_stage])}
        for row in of_stage:
            row["text"] = texts.get(row["id"])
    return rows


def _stage_by_name(stages: Mapping[str, FinishedStage], name: str) -> FinishedStage:
    if name not in stages:
        message = f"--stage {name}: no such stage is finished{did_you_mean(name, stages)} ({', '.join(stages)})"
        raise ConfigError(message, code="cli.invalid_value", option="--stage", name=name)
    return stages[name]


def _columns(stage: FinishedStage) -> list[str]:
    if not stage.parts:
        return []
    with reading(stage.parts[0]):
        return list(pq.read_schema(stage.parts[0]).names)


def _rows(work: Path, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    with connection(work) as db:
        result = db.execute(sql, values)
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
