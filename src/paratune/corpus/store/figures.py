"""Computes statistics of a corpus: kept and dropped rows of each stage, documents and sentences of the store."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from paratune.corpus.database import connection, parquet
from paratune.corpus.finished import finished_stages

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
    by_name = {stage.name: stage for stage in stages}
    documents, sentences = by_name.get("store/documents"), by_name.get("store/sentences")
    with connection(work) as db:
        return {
            "funnel": [
                {"stage": stage.name}
                | {key: stage.totals[key] for key in ("shards", "kept", "dropped")}
                | {"is_stale": stage.is_stale}
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
    rows = db.execute(
        f"SELECT {column}, count(*), sum(num_words)::BIGINT FROM {source} GROUP BY 1 ORDER BY {order}{limit}"
    )
    return [{"value": value, "num": num, "num_words": words} for value, num, words in rows.fetchall()]


def _sentences(db: Any, tables: Sequence[Path]) -> dict[str, Any]:
    source = parquet(tables)
    # A sentence has one space between its words.
    words = "length(text) - length(replace(text, ' ', '')) + 1"
    counts = dict(db.execute(f"SELECT {words}, count(*) FROM {source} GROUP BY 1").fetchall())
    # Rounded to half a per cent: all exact values would be in memory at once.
    known = db.execute(
        f"SELECT round(ln(perplexity), 2), count(*) FROM {source} WHERE perplexity > 0 GROUP BY 1"
    ).fetchall()
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
    return {
        "mean": sum(value * count for value, count in ordered) / num,
        "quantiles": {
            f"{share:g}": ordered[min(bisect_left(seen, share * num), len(seen) - 1)][0] for share in QUANTILES
        },
    }
