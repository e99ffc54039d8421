"""Evaluates perplexity thresholds: a histogram, and samples on both sides of some thresholds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from paratune.corpus.database import connection, parquet
from paratune.corpus.settings import SentenceSettings

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
NUM_SAMPLES = 6
"""Sentences on each side of a threshold, the nearest ones."""
_FINE, _COARSE = 1000, 10
"""Bins per decade: for quantiles (within 0.2%), and for the histogram."""
_LAST = 10 * _FINE - 1
"""Last bin, from which all perplexities count as 10^10."""


def evaluate_thresholds(
    folder: Path, split: Sequence[Path], scored: Sequence[Path], settings: SentenceSettings
) -> dict[str, Any]:
    """Return the content of perplexity.json.

    Args:
        folder: Folder for temporary files.
        settings: Settings with the thresholds; quantiles by default.

    Returns:
        scorer, num_sentences, num_unknown (sentences without a perplexity), max_perplexity, quantiles, histogram
        (edges and counts, from 1, ten bins per decade); for each threshold number and share of the sentences above it,
        and the sentences nearest to it: below (or equal) and above.
    """
    with connection(folder) as db:
        fine = f"least(floor(log10(greatest(perplexity::DOUBLE, 1)) * {_FINE})::INTEGER, {_LAST})"
        places = f"SELECT if(perplexity IS NULL, NULL, {fine}) AS place FROM {parquet(scored)}"
        sql = f"SELECT place, count(*) FROM ({places}) GROUP BY place ORDER BY place"
        counts = dict(db.execute(sql).fetchall() if scored else ())
        num_unknown = counts.pop(None, 0)
        num = sum(counts.values())
        quantiles = {f"{share:g}": _quantile(counts, share * num) for share in QUANTILES} if num else {}
        wanted = set(settings.thresholds or quantiles.values()) | {settings.max_perplexity}
        chosen = sorted(threshold for threshold in wanted if threshold is not None) if num else []
        thresholds = [_evaluated(db, split, scored, threshold, num) for threshold in chosen]
    return {
        "scorer": settings.scorer,
        "num_sentences": num + num_unknown,
        "num_unknown": num_unknown,
        "max_perplexity": settings.max_perplexity,
        "quantiles": quantiles,
        "histogram": _histogram(counts),
        "thresholds": thresholds,
    }


def _quantile(counts: Mapping[int, int], rank: float) -> float:
    """Return the upper edge of the bin of a rank, to three digits."""
    place = next(place for place, seen in zip(counts, accumulate(counts.values()), strict=True) if seen >= rank)
    return float(f"{10 ** ((place + 1) / _FINE):.3g}")


def _histogram(counts: Mapping[int, int]) -> dict[str, list[float]]:
    coarse = Counter[int]()
    for place, count in counts.items():
        coarse[place * _COARSE // _FINE] += count
    if not coarse:
        return {"edges": [], "counts": []}
    first, last = min(coarse), max(coarse)
    edges = [float(f"{10 ** (place / _COARSE):.4g}") for place in range(first, last + 2)]
    return {"edges": edges, "counts": [coarse[place] for place in range(first, last + 1)]}


def _evaluated(db: Any, split: Sequence[Path], scored: Sequence[Path], threshold: float, num: int) -> dict[str, Any]:
    # Compared as FLOAT, the type in the table.
    count = f"SELECT count(*) FROM {parquet(scored)} WHERE perplexity > ?::FLOAT"
    ((num_above,),) = db.execute(count, [threshold]).fetchall()
    samples = {}
    for side, is_on_side in (("below", "<="), ("above", ">")):
        rows = db.execute(
            f"""
            WITH nearest AS (
                SELECT perplexity, file_index AS shard, row FROM {parquet(scored)}
                WHERE perplexity {is_on_side} ?::FLOAT ORDER BY abs(perplexity - ?), shard, row LIMIT {NUM_SAMPLES}
            )
            SELECT perplexity, text, url FROM nearest
            JOIN {parquet(split)} sentences ON sentences.file_index = shard AND sentences.file_row_number = row
            ORDER BY perplexity, shard, row
            """,
            [threshold, threshold],
        ).fetchall()
        samples[side] = [{"perplexity": value, "text": text, "url": url} for value, text, url in rows]
    return {"perplexity": threshold, "num_above": num_above, "share_above": num_above / num, **samples}
