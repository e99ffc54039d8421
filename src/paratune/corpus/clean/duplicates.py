"""The step `duplicates`: keeps the first document of each cluster of equal texts or near-duplicates by MinHash.

Documents are in the order of the input. Two documents are near-duplicates if the estimated Jaccard similarity of their
shingles is at least the threshold; clusters are the connected components of such pairs. Pairs are compared if their
signatures agree in a band (locality-sensitive hashing). Queries of DuckDB sort the bands and join pairs to clusters.

Intermediate results, which are deleted at the end:

    signatures/   for each shard its signatures, and the keys of each document: a hash of its words, and its bands
    pairs/        for each range of keys the pairs that are similar enough, by position in the corpus
    clusters/     for each document but the first of a cluster, the first one

Source: Broder, On the resemblance and containment of documents, SEQUENCES 1997; Leskovec, Rajaraman and Ullman, Mining
of Massive Datasets, chapter 3.
"""

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import accumulate, groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.corpus.clean import signatures as minhash
from paratune.corpus.clean.settings import Near
from paratune.corpus.clean.step import Document, drop
from paratune.corpus.database import NUM_FETCHED, connection, parquet, query
from paratune.corpus.rows import DOCUMENT_SCHEMA, DroppedRow
from paratune.corpus.settings import Corpus
from paratune.corpus.shard import part_file, read_rows
from paratune.corpus.stage import RunStage, Stage, begin, finished_record, is_finished, stage_output, stage_tables
from paratune.errors import DataError, require_installed

FORMAT = 2  # version of the rows; increased when the same input gives other rows
SIGNATURES_FOLDER, PAIRS_FOLDER, CLUSTERS_FOLDER = "signatures", "pairs", "clusters"
KEYS_SCHEMA = pa.schema({"position": pa.int64(), "highs": pa.list_(pa.uint64()), "lows": pa.list_(pa.uint64())})
"""Position of a document, and its keys of 128 bits: a hash of its words; hash and number of each band."""
PAIRS_SCHEMA = pa.schema([("first", pa.int64()), ("other", pa.int64())])
CLUSTERS_SCHEMA = pa.schema([("document", pa.int64()), ("root", pa.int64())])
KEYS_PER_RANGE = 1 << 22
"""Keys that one process compares."""
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
    """Write the first document of the cluster of each document that is not the first."""
    signatures, pairs, clusters = (stage.folder / name for name in (SIGNATURES_FOLDER, PAIRS_FOLDER, CLUSTERS_FOLDER))

    def part(name: str, folder: Path, schema: pa.Schema, work: Any) -> Stage:
        return Stage(f"duplicates: {name}", folder, schema, work, stage.settings, stage.source)

    signed = part("sign", signatures, KEYS_SCHEMA, partial(sign, near, signatures))
    run(signed, [(path, number, start) for number, (path, start) in enumerate(zip(paths, starts, strict=True))])
    compared = part("compare", pairs, PAIRS_SCHEMA, partial(compare, near, signatures, starts))
    num_keys = num_documents * (1 + (0 if near is None else near.bands))
    num_ranges = max(1, -(-num_keys // KEYS_PER_RANGE))
    run(compared, list(pairwise((1 << 64) * n // num_ranges for n in range(num_ranges + 1))))
    run(part("cluster", clusters, CLUSTERS_SCHEMA, partial(find_roots, clusters)), [(stage_tables(pairs),)])


def sign(near: Near | None, folder: Path, path: Path, number: int, position: int) -> Iterator[dict[str, Any]]:
    """Write the signatures of the documents in a table, and yield their keys."""
    signatures_path, seen, all_documents = folder / minhash.signature_file(number), set[bytes](), read_rows(path)
    with replace_file(signatures_path) as temporary, temporary.open("wb") as file:
        while documents := list(islice(all_documents, BATCH_SIZE)):
            words = [minhash.normalized_words(document["text"]) for document in documents]
            rows = signed_rows(documents, words, near)
            rows.tofile(file)
            bands = None if near is None else minhash.band_keys(rows["signature"], near.bands, near.rows).tolist()
            for at, (row, document_words) in enumerate(zip(rows, words, strict=True)):
                sha256 = row["sha256"].tobytes()
                high, low = np.frombuffer(sha256[:16], "<u8").tolist()
                # Equal texts have equal bands: those of the first one are enough. Texts without words have no shingles.
                own = bands[at] if bands is not None and document_words and sha256 not in seen else []
                seen.add(sha256)
                yield {"position": position, "highs": [high, *own], "lows": [low, *range(len(own))]}
                position += 1


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
    near: Near | None, folder: Path, starts: tuple[int, ...], start: int, stop: int
) -> Iterator[dict[str, int]]:
    """Yield the pairs of documents that have an equal key, from `start` to below `stop`, and are similar enough."""
    tables = stage_tables(folder)
    if not tables:
        return
    rows = query(
        folder,
        f"""
        SELECT high, low, position
        FROM (SELECT unnest(highs) AS high, unnest(lows) AS low, position FROM {parquet(tables)})
        WHERE high BETWEEN ?::UBIGINT AND ?::UBIGINT
        QUALIFY count(*) OVER (PARTITION BY high, low) > 1
        ORDER BY ALL
        """,
        [start, stop - 1],
    )
    representatives = np.empty((MAX_REPRESENTATIVES, num_hashes(near)), np.uint32)
    for _, members in groupby(rows, key=itemgetter(0, 1)):
        positions: list[int] = []
        for _, _, position in members:
            if near is None:
                similar = positions[:1]
            else:
                signature = minhash.signature_at(folder, starts, num_hashes(near), position)["signature"]
                equal = np.count_nonzero(representatives[: len(positions)] == signature, axis=1)
                similar = [positions[at] for at in np.flatnonzero(equal >= near.threshold * num_hashes(near))]
            if similar:
                yield {"first": similar[0], "other": position}
            elif len(positions) < MAX_REPRESENTATIVES:
                if near is not None:
                    representatives[len(positions)] = signature
                positions.append(position)


def find_roots(folder: Path, tables: Sequence[Path]) -> Iterator[dict[str, int]]:
    """Yield each document that is not the first of its cluster, with the first one, its root; in order.

    The clusters are the connected components of the pairs. Each round joins every root to the smallest root that a pair
    connects it with, and halves the ways to the roots.

    Source: Shiloach and Vishkin, An O(log n) parallel connectivity algorithm, Journal of Algorithms 1982.
    """
    with connection(folder) as db:
        db.execute(f"CREATE TABLE pairs AS SELECT DISTINCT first, other FROM {parquet(tables)}")
        documents = "SELECT first AS document FROM pairs UNION SELECT other FROM pairs"
        db.execute(f"CREATE TABLE roots AS SELECT document, document AS root FROM ({documents})")
        while True:
            db.execute(
                """
                CREATE OR REPLACE TABLE joined AS
                SELECT greatest(a.root, b.root) AS document, min(least(a.root, b.root)) AS root
                FROM pairs JOIN roots a ON a.document = first JOIN roots b ON b.document = other
                WHERE a.root <> b.root GROUP BY 1
                """
            )
            if not db.execute("SELECT count(*) FROM joined").fetchone()[0]:
                break
            db.execute(
                """
                CREATE OR REPLACE TABLE roots AS
                SELECT roots.document, coalesce(joined.root, roots.root) AS root
                FROM roots LEFT JOIN joined ON joined.document = roots.root
                """
            )
            db.execute(
                """
                CREATE OR REPLACE TABLE roots AS
                SELECT roots.document, above.root FROM roots JOIN roots above ON above.document = roots.root
                """
            )
        rows = db.execute("SELECT document, root FROM roots WHERE document <> root ORDER BY document")
        while batch := rows.fetchmany(NUM_FETCHED):
            yield from ({"document": document, "root": root} for document, root in batch)


def drop_duplicates(
    folder: Path, starts: tuple[int, ...], num_hashes: int, path: Path, start: int, count: int
) -> Iterator[Document | DroppedRow]:
    """Yield the documents that are the first of their cluster, and drop the others with the id of the first one."""
    clusters, signatures = folder / CLUSTERS_FOLDER / part_file(0), folder / SIGNATURES_FOLDER
    own_range = [("document", ">=", start), ("document", "<", start + count)]
    columns = pq.read_table(clusters, filters=own_range, partitioning=None).to_pydict()
    roots = dict(zip(columns["document"], columns["root"], strict=True))
    for position, document in enumerate(read_rows(path), start=start):
        if position not in roots:
            yield document
            continue
        own, first = (
            minhash.signature_at(signatures, starts, num_hashes, place) for place in (position, roots[position])
        )
        name = first["id"].decode()
        if bytes(own["sha256"]) == bytes(first["sha256"]):
            yield drop(document, "duplicate", name)
        else:
            similarity = np.count_nonzero(own["signature"] == first["signature"]) / num_hashes
            yield drop(document, "near-duplicate", f"{name} {similarity:.3f}")
