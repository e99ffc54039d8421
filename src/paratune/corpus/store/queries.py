"""Samples kept and dropped texts of a corpus."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from paratune.corpus.database import connection, parquet
from paratune.corpus.finished import FinishedStage, finished_stages
from paratune.errors import CheckpointError, ConfigError, did_you_mean

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
        raise ConfigError(message, code="cli.unknown_name", option="--reason")
    chosen = [found for found in chosen if found.totals["dropped"]]
    if not chosen:
        return []
    union = " UNION ALL ".join(f"SELECT ? AS stage, * FROM {parquet(found.dropped)}" for found in chosen)
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
        raise ConfigError(message, code="cli.unknown_name", option="--stage", name=name)
    return stages[name]


def _columns(stage: FinishedStage) -> list[str]:
    return list(pq.read_schema(stage.parts[0]).names) if stage.parts else []


def _rows(work: Path, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    with connection(work) as db:
        result = db.execute(sql, values)
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
