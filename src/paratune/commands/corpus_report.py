"""report.html in the work folder of a corpus: figures, and samples of kept and dropped texts."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paratune.corpus.finished import finished_stages
from paratune.corpus.store.figures import corpus_figures
from paratune.corpus.store.queries import draw_dropped, draw_kept
from paratune.reports.corpus import corpus_html
from paratune.sweeps.run import write_text

PAGE = "report.html"
SEED = 0
_NUM_KEPT, _NUM_DROPPED = 8, 3
"""Number of texts shown: of the corpus, and for each reason."""
_MAX_REASONS = 6
"""The most frequent reasons of a stage are shown, at most this many."""


def write_report(work: Path) -> None:
    """Write the report of a finished corpus; the samples are always the same.

    Raises:
        CheckpointError: The store is not finished, or the files cannot be written.
    """
    figures = corpus_figures(work)
    samples = [*_kept(work, figures["sentences"] is not None), *_dropped(work)]
    title = f"Corpus {work.resolve().name}"
    write_text(work / PAGE, corpus_html(title, figures, samples))


def _kept(work: Path, has_sentences: bool) -> list[tuple[str, Iterable[Mapping[str, Any]]]]:
    units = ["documents", *(["sentences"] if has_sentences else [])]
    return [
        (f"Samples of the {unit}", draw_kept(work, stage=f"store/{unit}", num=_NUM_KEPT, seed=SEED)) for unit in units
    ]


def _dropped(work: Path) -> list[tuple[str, Iterable[Mapping[str, Any]]]]:
    groups: list[tuple[str, Iterable[Mapping[str, Any]]]] = []
    for stage in finished_stages(work):
        dropped = stage.totals["dropped"]
        reasons = sorted(dropped, key=lambda reason: (-dropped[reason], reason))[:_MAX_REASONS]
        if stage.is_stale or not reasons:
            continue
        rows = [
            row
            for reason in reasons
            for row in draw_dropped(work, stage=stage.name, reason=reason, num=_NUM_DROPPED, seed=SEED)
        ]
        groups.append((f"Dropped by {stage.name}", rows))
    return groups
