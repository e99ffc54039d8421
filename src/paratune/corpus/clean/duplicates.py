"""The step `duplicates`: keeps the first document of each cluster of equal texts or near-duplicates by MinHash.

Documents are in the order of the input. Two documents are near-duplicates if the estimated Jaccard similarity of their
shingles is at least the threshold; clusters are the connected components of such pairs. Pairs are compared if their
signatures agree in a band (locality-sensitive hashing). Bands are sorted and merged on disk.

Intermediate results, which are deleted at the end:

    signatures/   for each shard its signatures, and sorted records of the bands: key, position
    pairs/        for each range of keys the pairs that are similar enough, by position in the corpus
    clusters/     for each document the first document of its cluster

Source: Broder, On the resemblance and containment of documents, SEQUENCES 1997; Leskovec, Rajaraman and Ullman, Mining
of Massive Datasets, chapter 3.
"""

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.corpus.clean import signatures as minhash
from paratune.corpus.clean.clusters import ROOTS_FILE, read_roots, write_roots
from paratune.corpus.clean.settings import Near
from paratune.corpus.clean.step import Document, drop
from paratune.corpus.rows import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import read_rows
from paratune.corpus.sorted_runs import NAMES_SCHEMA, RunWriter, all_runs, groups, merge, run_names, spans
from paratune.corpus.stage import RunStage, Stage, begin, finished_record, is_finished, stage_output, stage_tables
from paratune.errors import DataError, require_installed

FORMAT = 2  # version of the rows; increased when the same input gives other rows
SIGNATURES_FOLDER, PAIRS_FOLDER, CLUSTERS_FOLDER = "signatures", "pairs", "clusters"
PAIRS_SCHEMA = pa.schema([("first", pa.int64()), ("other", pa.int64())])
MAX_REPRESENTATIVES = 16
"""Dissimilar documents with the same key, with which each later one is compared."""
BATCH_SIZE = 200
"""Documents in memory."""


def run_duplicates(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Run the step.

    Returns:
        Totals; `pairs` is the number of pairs, `found_at_threshold` the expected share of pairs at the threshold that
        are found, None without near-duplicates.

    Raises:
        DataError: A document has an id of more than 16 bytes.
        MissingDependency: rensa is not installed.
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    options = corpus.clean.duplicates
    settings = {**options.model_dump(), "format": FORMAT}
    if options.near is not None:
        require_installed("rensa", extra="corpus")
        settings["rensa"] = version("rensa")
    paths = stage_tables(before)
    counts = [pq.read_metadata(path).num_rows for path in paths]
    starts = tuple(accumulate(counts[:-1], initial=0)) if counts else ()
    work = partial(drop_duplicates, folder, starts, num_hashes(options.near))
    stage = Stage("duplicates", folder, DOCUMENT_SCHEMA, work, settings, stage_output(before))
    if not is_finished(stage):
        begin(stage)
        _cluster(stage, paths, starts, sum(counts), options.near, run)
    inputs = list(zip(paths, starts, counts, strict=True))
    totals = run(stage, inputs, more=lambda: _more(folder, options.near))
    for name in (SIGNATURES_FOLDER, PAIRS_FOLDER, CLUSTERS_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    return totals


def num_hashes(near: Near | None) -> int:
    """Return the length of a signature; 0 without near-duplicates."""
    return 0 if near is None else near.bands * near.rows


def _more(folder: Path, near: Near | None) -> dict[str, Any]:
    share = None if near is None else round(minhash.candidate_probability(near.threshold, near.bands, near.rows), 4)
    return {"pairs": finished_record(folder / PAIRS_FOLDER)["kept"], "found_at_threshold": share}


def _cluster(
    stage: Stage, paths: Sequence[Path], starts: tuple[int, ...], num_documents: int, near: Near | None, run: RunStage
) -> None:
    """Write the first document of the cluster of each document."""
    folder = stage.folder / SIGNATURES_FOLDER
    signed = Stage("duplicates: sign", folder, NAMES_SCHEMA, partial(sign, near, folder), stage.settings, stage.source)
    documents = [(path, number, start) for number, (path, start) in enumerate(zip(paths, starts, strict=True))]
    run(signed, documents)
    runs = all_runs(folder)
    pairs, work = stage.folder / PAIRS_FOLDER, partial(compare, near, folder, runs, starts)
    compared = Stage("duplicates: compare", pairs, PAIRS_SCHEMA, work, stage.settings, stage.source)
    run(compared, [(span,) for span in spans(runs)])
    roots = stage.folder / CLUSTERS_FOLDER / ROOTS_FILE
    if not roots.exists():
        shutil.rmtree(roots.parent, ignore_errors=True)  # left by a killed process
        roots.parent.mkdir()
        rows = (row for path in stage_tables(pairs) for row in read_rows(path, batch_size=1 << 16))
        write_roots(roots, num_documents, ((row["first"], row["other"]) for row in rows))


def sign(near: Near | None, folder: Path, path: Path, number: int, position: int) -> Iterator[dict[str, str]]:
    """Write signatures and records of bands of the documents in a table; yield the names of the runs."""
    signatures_path, seen, all_documents = folder / minhash.signature_file(number), set[bytes](), read_rows(path)
    with (
        replace_file(signatures_path) as temporary,
        temporary.open("wb") as file,
        RunWriter(folder, number) as writer,
    ):
        while documents := list(islice(all_documents, BATCH_SIZE)):
            words = [minhash.normalized_words(document["text"]) for document in documents]
            rows = signed_rows(documents, words, near)
            rows.tofile(file)
            positions = np.arange(position, position + len(rows))
            exact = np.ascontiguousarray(rows["sha256"][:, :16]).view("<u8")
            writer.add(exact[:, 0], exact[:, 1], positions)
            # Equal texts have equal bands: those of the first one are enough. Texts without words have no shingles.
            is_new = [
                bool(document_words) and not (key in seen or seen.add(key))  # type: ignore[func-returns-value]
                for key, document_words in zip(map(bytes, rows["sha256"]), words, strict=True)
            ]
            if near is not None:
                keys = minhash.band_keys(rows["signature"][is_new], near.bands, near.rows)
                writer.add(keys, np.arange(near.bands), positions[is_new][:, None])
            position += len(rows)
    yield from run_names(writer)


def signed_rows(documents: Sequence[Document], words: Sequence[Sequence[str]], near: Near | None) -> np.ndarray:
    """Return the rows of a file of signatures, see `row_dtype`; `words` are those of each document.

    Raises:
        DataError: A document has an id of more than 16 bytes.
    """
    rows = np.zeros(len(documents), minhash.row_dtype(num_hashes(near)))
    for row, document, document_words in zip(rows, documents, words, strict=True):
        if len(document["id"].encode()) > minhash.ID_BYTES:
            message = f"the id {document['id']} is longer than {minhash.ID_BYTES} bytes; extract the documents again"
            raise DataError(message, code="corpus.id_too_long")
        row["id"] = document["id"]
        row["sha256"] = np.frombuffer(minhash.words_sha256(document["text"], document_words), np.uint8)
    if near is not None:
        sets = [minhash.shingles(document_words, near.shingle_words) for document_words in words]
        rows["signature"] = minhash.signatures(sets, num_hashes(near), near.seed)
    return rows


def compare(
    near: Near | None, folder: Path, runs: tuple[Path, ...], starts: tuple[int, ...], span: tuple[int, int]
) -> Iterator[dict[str, int]]:
    """Yield the pairs of documents with equal keys that are similar enough."""
    members = groups(merge(runs, span))
    if near is None:
        first = 0
        for is_first, position in members:
            if is_first:
                first = position
            else:
                yield {"first": first, "other": position}
        return
    min_equal = near.threshold * num_hashes(near)
    positions: list[int] = []
    representatives = np.empty((MAX_REPRESENTATIVES, num_hashes(near)), np.uint32)
    with minhash.Signatures(folder, starts, num_hashes(near)) as signed:
        for is_first, position in members:
            positions = [] if is_first else positions
            signature = signed[position]["signature"]
            equal = np.count_nonzero(representatives[: len(positions)] == signature, axis=1)
            similar = np.flatnonzero(equal >= min_equal)
            if len(similar):
                yield {"first": positions[similar[0]], "other": position}
            elif len(positions) < MAX_REPRESENTATIVES:
                representatives[len(positions)] = signature
                positions.append(position)


def drop_duplicates(
    folder: Path, starts: tuple[int, ...], num_hashes: int, path: Path, start: int, count: int
) -> Iterator[Document | DroppedRow]:
    """Yield the documents that are the first of their cluster, and drop the others with the id of the first one."""
    roots = read_roots(folder / CLUSTERS_FOLDER / ROOTS_FILE, start, count)
    with minhash.Signatures(folder / SIGNATURES_FOLDER, starts, num_hashes) as signed:
        for position, document in enumerate(read_rows(path), start=start):
            root = roots[position - start]
            if root == position:
                yield document
                continue
            own, first = signed[position], signed[root]
            name = first["id"].decode()
            if bytes(own["sha256"]) == bytes(first["sha256"]):
                yield drop(document, "duplicate", name)
            else:
                similarity = np.count_nonzero(own["signature"] == first["signature"]) / num_hashes
                yield drop(document, "near-duplicate", f"{name} {similarity:.3f}")
