"""Evaluates perplexity thresholds: a histogram, and the sentences that each threshold would keep and drop."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from paratune.corpus.database import connection, parquet
from paratune.corpus.settings import SentenceSettings

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
NUM_SAMPLES = 6
"""Sentences on each side of a threshold, the nearest ones."""


def evaluate_thresholds(
    folder: Path, split: Sequence[Path], scored: Sequence[Path], settings: SentenceSettings
) -> dict[str, Any]:
    """Return the content of perplexity.json.

    Args:
        folder: Folder for temporary files.
        scored: At least one table.
        settings: Settings with the thresholds; quantiles by default.

    Returns:
        scorer, num_sentences, num_unknown (sentences without a perplexity), max_perplexity, quantiles (within 0.2%),
        histogram (edges and counts, from 1, ten bins per decade); for each threshold number and share of the sentences
        above it, and the sentences nearest to it: below (or equal) and above.
    """
    with connection(folder) as db:
        db.execute(f"CREATE VIEW scored AS SELECT perplexity, file_index AS shard, row FROM {parquet(scored)}")
        ((num, num_known),) = db.execute("SELECT count(*), count(perplexity) FROM scored").fetchall()
        # By thousandths of a decade: all exact values would be in memory at once. A damaged score may be infinite.
        place = "floor(1000 * log10(least(greatest(perplexity::DOUBLE, 1), 1e10)))::INTEGER"
        counts = db.execute(
            f"SELECT {place}, count(*) FROM scored WHERE perplexity IS NOT NULL GROUP BY 1 ORDER BY 1"
        ).fetchall()
        seen = [*accumulate(count for _, count in counts)]
        quantiles = {}
        for share in QUANTILES if counts else ():
            # The upper edge of the bin of this rank, to three digits.
            upper = next(place for (place, _), rank in zip(counts, seen, strict=True) if rank >= share * num_known) + 1
            quantiles[f"{share:g}"] = float(f"{10 ** (upper / 1000):.3g}")
        wanted = {*(settings.thresholds or quantiles.values()), settings.max_perplexity} - {None}
        thresholds = [_evaluated(db, split, threshold, num_known) for threshold in sorted(wanted) if counts]
    bars = Counter[int]()
    for place, count in counts:
        bars[place // 100] += count
    tenths = range(min(bars), max(bars) + 1) if bars else range(0)
    return {
        "scorer": settings.scorer,
        "num_sentences": num,
        "num_unknown": num - num_known,
        "max_perplexity": settings.max_perplexity,
        "quantiles": quantiles,
        "histogram": {
            "edges": [float(f"{10 ** (tenth / 10):.4g}") for tenth in (*tenths, tenths.stop) if bars],
            "counts": [bars[tenth] for tenth in tenths],
        },
        "thresholds": thresholds,
    }


def _evaluated(db: Any, split: Sequence[Path], threshold: float, num_known: int) -> dict[str, Any]:
    # Compared as FLOAT, the type in the table.
    ((num_above,),) = db.execute("SELECT count(*) FROM scored WHERE perplexity > ?::FLOAT", [threshold]).fetchall()
    samples = {}
    for side, is_on_side, order in (("below", "<=", "DESC"), ("above", ">", "ASC")):
        rows = db.execute(
            f"""
            WITH nearest AS (
                SELECT * FROM scored WHERE perplexity {is_on_side} ?::FLOAT
                ORDER BY perplexity {order}, shard, row LIMIT {NUM_SAMPLES}
            )
            SELECT perplexity, text, url FROM nearest
            JOIN {parquet(split)} sentences ON sentences.file_index = shard AND sentences.file_row_number = row
            ORDER BY perplexity, shard, row
            """,
            [threshold],
        ).fetchall()
        samples[side] = [{"perplexity": value, "text": text, "url": url} for value, text, url in rows]
    return {"perplexity": threshold, "num_above": num_above, "share_above": num_above / num_known, **samples}
