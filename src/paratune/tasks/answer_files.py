"""Writes files of answers: a table, and SQuAD's layouts (predictions, n-best lists, null odds) by question id.

Dimension: `N` questions.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.data.labels import first_rows
from paratune.data.load import Split
from paratune.metrics.squad import RawScores, with_threshold
from paratune.records import write_json
from paratune.records.predictions import write_predictions
from paratune.tasks.protocol import Outputs
from paratune.tasks.spans import Answers, nbest_lists


def write_answers(
    folder: Path,
    split: Split,
    outputs: Outputs,
    answers: Answers,
    raw: RawScores | None,
    chosen: Sequence[str],
    threshold: float | None,
) -> None:
    """Write the files of a split of questions, from the row outputs by window and the best answer of each question.

    `raw` are the scores of these answers, None without gold answers. `chosen`, (N,), are the predicted answers: the
    empty text where the null odds are above `threshold`, which is None where every question is answered.
    """
    ids, golds = question_ids(split), split.samples.answers
    columns: dict[str, Any] = {}
    if golds is not None:
        columns["label"] = [gold[0].text if gold else "" for gold in golds]
    columns["prediction"] = chosen
    if raw is not None:
        for name, scores in (("exact", raw.exact), ("f1", raw.f1)):
            columns[name] = scores if threshold is None else with_threshold(scores, raw, answers.null_odds, threshold)
    if threshold is not None:
        columns["null_odds"] = answers.null_odds
    samples = split.samples
    write_predictions(folder, split.name, rows=samples.rows, ids=ids, columns=columns, sources=samples.sources,
        clusters=samples.clusters,
    )  # fmt: skip
    write_json(folder / f"predictions.{split.name}.json", dict(zip(ids, chosen, strict=True)))
    lists = nbest_lists(split, outputs, may_lack_answers=threshold is not None)
    write_json(folder / f"nbest_{split.name}.json", dict(zip(ids, lists, strict=True)))
    if threshold is not None:
        odds = answers.null_odds.tolist()
        write_json(folder / f"null_odds_{split.name}.json", dict(zip(ids, odds, strict=True)))


def question_ids(split: Split) -> list[str]:
    """Return the ids of the questions; without ids, their rows, with the file name where there are several files."""
    samples = split.samples
    if samples.ids is not None:
        return samples.ids
    rows = [str(row) for row in samples.rows.tolist()]
    sources = samples.sources
    return rows if sources is None else [f"{source}:{row}" for source, row in zip(sources, rows, strict=True)]


def why_no_ids(split: Split) -> str | None:
    """Return why the ids of a split do not identify its questions; None where they do."""
    ids = split.samples.ids
    if ids is None:
        return None
    if absent := [row for row, name in zip(split.samples.rows.tolist(), ids, strict=True) if not name.strip()]:
        return f"{split.source} has no id in {first_rows(absent)}"
    if len(set(ids)) == len(ids):
        return None
    return f"{split.source} has the same id twice ({Counter(ids).most_common(1)[0][0]})"
