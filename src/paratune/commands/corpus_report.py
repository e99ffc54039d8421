"""report.html and report.md in the work folder of a corpus: its figures, and samples of what was kept and dropped."""

from pathlib import Path

from paratune.corpus.made import finished_stages
from paratune.corpus.store.figures import corpus_figures
from paratune.corpus.store.look import TextFilter, draw_dropped, draw_kept
from paratune.report.corpus_page import ShownTexts, corpus_html, corpus_markdown
from paratune.sweep.run import write_text

PAGE, TEXT = "report.html", "report.md"
SEED = 0
_KEPT, _DROPPED = 8, 3
"""Texts that are shown, of the corpus and for each reason."""
_MOST_REASONS = 6
"""Of a stage whose samples are shown, the commonest."""


def write_report(work: Path) -> None:
    """Write the report of a finished corpus; the samples are the same whenever it is written.

    Raises:
        CheckpointError: The store is not finished, or the files cannot be written.
    """
    found = corpus_figures(work)
    samples = [*_kept(work, found["sentences"] is not None), *_dropped(work)]
    title = f"Corpus {work.resolve().name}"
    write_text(work / PAGE, corpus_html(title, found, samples))
    write_text(work / TEXT, corpus_markdown(title, found, samples))


def _kept(work: Path, has_sentences: bool) -> list[ShownTexts]:
    units = ["documents", *(["sentences"] if has_sentences else [])]
    return [
        ShownTexts(f"Samples of the {unit}", draw_kept(work, TextFilter(unit=unit), num=_KEPT, seed=SEED))
        for unit in units
    ]


def _dropped(work: Path) -> list[ShownTexts]:
    groups = []
    for stage in finished_stages(work):
        dropped = stage.totals["dropped"]
        reasons = sorted(dropped, key=lambda reason: (-dropped[reason], reason))[:_MOST_REASONS]
        if stage.is_stale or not reasons:
            continue
        rows = [
            row
            for reason in reasons
            for row in draw_dropped(work, stage=stage.name, reason=reason, num=_DROPPED, seed=SEED)
        ]
        groups.append(ShownTexts(f"Dropped by {stage.name}", rows))
    return groups
