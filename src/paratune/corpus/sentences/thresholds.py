"""Evaluates perplexity thresholds: a histogram, and samples on both sides of some thresholds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from paratune.corpus.settings import SentenceSettings

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
NUM_SAMPLES = 6
"""Sentences on each side of a threshold, the nearest ones."""
_DECADES = 10
_FINE, _COARSE = 1000, 10
"""Bins per decade: for quantiles (within 0.2%), and for the histogram."""


def evaluate_thresholds(split: Sequence[Path], scored: Sequence[Path], settings: SentenceSettings) -> dict[str, Any]:
    """Return the content of perplexity.json, computed in two passes over the perplexities in constant memory.

    Args:
        settings: Settings with the thresholds; quantiles by default.

    Returns:
        scorer, num_sentences, num_unknown (sentences without a perplexity), max_perplexity, quantiles, histogram
        (edges and counts, from 1, ten bins per decade); for each threshold number and share of the sentences above it,
        and the sentences nearest to it: below (or equal) and above.
    """
    counts, num_unknown = np.zeros(_DECADES * _FINE, np.int64), 0
    for path in scored:
        values, _ = _known(path)
        num_unknown += pq.read_metadata(path).num_rows - len(values)
        counts += np.bincount(_bins(values), minlength=len(counts))
    num = int(counts.sum())
    quantiles = {f"{quantile:g}": _quantile(counts, quantile) for quantile in QUANTILES} if num else {}
    wanted = set(settings.thresholds or quantiles.values()) | {settings.max_perplexity}
    thresholds = sorted(threshold for threshold in wanted if threshold is not None) if num else []
    return {
        "scorer": settings.scorer,
        "num_sentences": num + num_unknown,
        "num_unknown": num_unknown,
        "max_perplexity": settings.max_perplexity,
        "quantiles": quantiles,
        "histogram": _histogram(counts),
        "thresholds": _samples(split, scored, thresholds, num),
    }


def _known(path: Path) -> tuple[Any, Any]:
    """Return the known perplexities of a shard, ascending, and their rows."""
    table = pq.read_table(path, partitioning=None)
    values, rows = (table[name].to_numpy() for name in ("perplexity", "row"))
    rows, values = rows[~np.isnan(values)], values[~np.isnan(values)]
    order = np.argsort(values, kind="stable")
    return values[order].astype(np.float64), rows[order]


def _bins(values: Any) -> Any:
    return np.clip(np.log10(np.maximum(values, 1.0)) * _FINE, 0, _DECADES * _FINE - 1).astype(np.int64)


def _quantile(counts: Any, quantile: float) -> float:
    """Return the upper edge of the bin with a quantile, to three digits."""
    place = int(np.searchsorted(np.cumsum(counts), quantile * counts.sum()))
    return float(f"{10 ** ((place + 1) / _FINE):.3g}")


def _histogram(counts: Any) -> dict[str, list[float]]:
    coarse = counts.reshape(-1, _FINE // _COARSE).sum(axis=1)
    filled = np.flatnonzero(coarse)
    if not len(filled):
        return {"edges": [], "counts": []}
    first, last = int(filled[0]), int(filled[-1])
    edges = [float(f"{10 ** (place / _COARSE):.4g}") for place in range(first, last + 2)]
    return {"edges": edges, "counts": coarse[first : last + 1].tolist()}


def _samples(
    split: Sequence[Path], scored: Sequence[Path], thresholds: Sequence[float], num: int
) -> list[dict[str, Any]]:
    num_above = [0] * len(thresholds)
    nearest: list[tuple[list[Any], list[Any]]] = [([], []) for _ in thresholds]
    for shard, path in enumerate(scored):
        values, rows = _known(path)
        for place, threshold in enumerate(thresholds):
            # Compare as float32, the type in the table.
            cut = int(np.searchsorted(values, np.float64(np.float32(threshold)), side="right"))
            num_above[place] += len(values) - cut
            for side, piece in enumerate((slice(max(0, cut - NUM_SAMPLES), cut), slice(cut, cut + NUM_SAMPLES))):
                candidates = [
                    (value, shard, row) for value, row in zip(values[piece].tolist(), rows[piece].tolist(), strict=True)
                ]
                nearest[place][side].extend(candidates)
                nearest[place][side].sort(key=lambda sample: (abs(sample[0] - threshold), *sample[1:]))
                del nearest[place][side][NUM_SAMPLES:]
    texts = _texts(split, {(shard, row) for sides in nearest for side in sides for _, shard, row in side})
    return [
        {
            "perplexity": threshold,
            "num_above": num_above[place],
            "share_above": num_above[place] / num,
            **{
                name: [{"perplexity": value, **texts[shard, row]} for value, shard, row in sorted(side)]
                for name, side in zip(("below", "above"), nearest[place], strict=True)
            },
        }
        for place, threshold in enumerate(thresholds)
    ]


def _texts(split: Sequence[Path], wanted: set[tuple[int, int]]) -> dict[tuple[int, int], dict[str, str]]:
    """Return text and URL of sentences by shard and row."""
    texts = {}
    for shard in sorted({shard for shard, _ in wanted}):
        rows = sorted(row for number, row in wanted if number == shard)
        table = pq.read_table(split[shard], columns=["text", "url"], partitioning=None).take(rows)
        texts.update({(shard, row): columns for row, columns in zip(rows, table.to_pylist(), strict=True)})
    return texts
