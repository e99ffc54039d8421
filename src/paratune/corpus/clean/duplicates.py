"""Documents that are those before them: the same text, or nearly so by MinHash. Of each cluster the first one stays.

First is first in the order of the input. Two documents are near-duplicates when the estimate of the Jaccard similarity
of their shingles is the threshold or more; a cluster is what such pairs connect. The pairs that are compared are those
whose signatures agree in a band (locality-sensitive hashing). Bands are sorted and merged on disk.

While the step runs, and deleted after it:

    signatures/   of each shard of documents their signatures, and records of the bands: key and position; sorted
    pairs/        of each span of the keys the pairs that are similar enough, by their positions in the corpus
    clusters/     the first document of the cluster of each document

Source: Broder, On the resemblance and containment of documents, SEQUENCES 1997; Leskovec, Rajaraman and Ullman, Mining
of Massive Datasets, chapter 3.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.console import Display
from paratune.corpus.clean.clusters import ROOTS_FILE, read_roots, write_roots
from paratune.corpus.clean.settings import Duplicates, Near
from paratune.corpus.clean.signatures import (
    ID_BYTES,
    Signatures,
    band_keys,
    candidate_probability,
    layout,
    sha256_of,
    shingles,
    signature_file,
    signatures,
    words_of,
)
from paratune.corpus.clean.step import Document, lost, read_batches, read_documents
from paratune.corpus.rows import DOCUMENT_SCHEMA, Lost
from paratune.corpus.runs import NAMES_SCHEMA, RunWriter, groups, merge, named_runs, spans
from paratune.corpus.settings import Corpus
from paratune.corpus.stage import Stage, begin, finished_record, is_finished, output_of, parts, run_stage
from paratune.errors import DataError, require_installed

FORMAT = 2
"""Of the rows: raised when the same input gives others than before."""
SIGNATURES_FOLDER, PAIRS_FOLDER, CLUSTERS_FOLDER = "signatures", "pairs", "clusters"
PAIRS_SCHEMA = pa.schema([("first", pa.int64()), ("other", pa.int64())])
MAX_REPRESENTATIVES = 16
"""Documents of a bucket, none similar to another, with which each later one is compared."""


@dataclass(frozen=True)
class _Documents:
    """A table of documents, its number, the position of its first document, and where what is made of it belongs."""

    path: Path
    number: int
    start: int
    folder: Path
    near: Near | None


@dataclass(frozen=True)
class _Span:
    """Keys whose documents are compared."""

    runs: tuple[Path, ...]
    span: tuple[int, int]
    starts: tuple[int, ...]
    folder: Path
    near: Near | None


@dataclass(frozen=True)
class _Clustered:
    """A table of documents, with all that tells which of them stay."""

    path: Path
    start: int
    count: int
    starts: tuple[int, ...]
    folder: Path
    num_hashes: int


def run_duplicates(corpus: Corpus, before: Path, folder: Path, workers: int, display: Display) -> dict[str, Any]:
    """Run the step: the first document of each cluster of duplicates.

    Returns:
        Its totals; `pairs` is how many were found, `found_at_threshold` the share that is expected to be found of the
        pairs that are just similar enough, null where only equal texts are sought.

    Raises:
        DataError: A document has an id of more than 16 bytes.
        MissingDependency: rensa is not installed.
        CheckpointError: The stage before is not finished, or the folder cannot be written.
    """
    options = corpus.clean.duplicates
    settings = {**options.model_dump(), "format": FORMAT}
    if options.near is not None:
        require_installed("rensa", extra="corpus")
        settings["rensa"] = version("rensa")
    stage = Stage("duplicates", folder, DOCUMENT_SCHEMA, drop_duplicates, settings, output_of(before))
    paths = parts(before)
    counts = [pq.read_metadata(path).num_rows for path in paths]
    starts = tuple(accumulate(counts[:-1], initial=0)) if counts else ()
    if not is_finished(stage):
        begin(stage)
        _cluster(stage, paths, starts, sum(counts), options, workers, display)
    inputs = [
        _Clustered(path, start, count, starts, folder, num_hashes(options.near))
        for path, start, count in zip(paths, starts, counts, strict=True)
    ]
    totals = run_stage(stage, inputs, workers=workers, display=display, more=lambda: _more(folder, options.near))
    for name in (SIGNATURES_FOLDER, PAIRS_FOLDER, CLUSTERS_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    return totals


def num_hashes(near: Near | None) -> int:
    """Return the length of a signature; 0 where only equal texts are sought."""
    return 0 if near is None else near.bands * near.rows


def _more(folder: Path, near: Near | None) -> dict[str, Any]:
    share = None if near is None else round(candidate_probability(near.threshold, near.bands, near.rows), 4)
    return {"pairs": finished_record(folder / PAIRS_FOLDER)["kept"], "found_at_threshold": share}


def _cluster(
    stage: Stage,
    paths: Sequence[Path],
    starts: tuple[int, ...],
    num_documents: int,
    options: Duplicates,
    workers: int,
    display: Display,
) -> None:
    """Write which document is the first of the cluster of each, phase by phase."""
    folder, near = stage.folder / SIGNATURES_FOLDER, options.near
    signed = Stage("duplicates: sign", folder, NAMES_SCHEMA, sign, stage.settings, stage.source)
    documents = [
        _Documents(path, number, start, folder, near)
        for number, (path, start) in enumerate(zip(paths, starts, strict=True))
    ]
    run_stage(signed, documents, workers=workers, display=display)
    runs = tuple(path for each in named_runs(folder) for path in each)
    compared = Stage(
        "duplicates: compare", stage.folder / PAIRS_FOLDER, PAIRS_SCHEMA, compare, stage.settings, stage.source
    )
    cut = [_Span(runs, span, starts, folder, near) for span in spans(runs)]
    run_stage(compared, cut, workers=workers, display=display)
    roots = stage.folder / CLUSTERS_FOLDER / ROOTS_FILE
    if not roots.exists():
        shutil.rmtree(roots.parent, ignore_errors=True)  # of a process that was killed
        roots.parent.mkdir()
        write_roots(roots, num_documents, _pairs(parts(compared.folder)))


def sign(each: _Documents) -> Iterator[dict[str, str]]:
    """Write signatures of documents and records of their bands; yield the names of the runs of these."""
    path = each.folder / signature_file(each.number)
    position, seen = each.start, set[bytes]()
    with replace_file(path) as temporary, temporary.open("wb") as file, RunWriter(each.folder, each.number) as writer:
        for documents in read_batches(each.path):
            words = [words_of(document["text"]) for document in documents]
            rows = signed_rows(documents, words, each.near)
            rows.tofile(file)
            positions = np.arange(position, position + len(rows))
            exact = np.ascontiguousarray(rows["sha256"][:, :16]).view("<u8")
            writer.add(exact[:, 0], exact[:, 1], positions)
            # The bands of an equal text are those of the first one: it would be found with all that is near to that.
            # Texts without words have no sets to compare.
            is_new = [
                bool(found) and not (key in seen or seen.add(key))  # type: ignore[func-returns-value]
                for key, found in zip(map(bytes, rows["sha256"]), words, strict=True)
            ]
            if each.near is not None:
                keys = band_keys(rows["signature"][is_new], each.near.bands, each.near.rows)
                writer.add(keys, np.arange(each.near.bands), positions[is_new][:, None])
            position += len(rows)
    yield from ({"name": name} for name in writer.names)


def signed_rows(documents: Sequence[Document], words: Sequence[Sequence[str]], near: Near | None) -> np.ndarray:
    """Return the rows of a file of signatures, see `layout`; `words` are those of each document.

    Raises:
        DataError: A document has an id of more than 16 bytes.
    """
    rows = np.zeros(len(documents), layout(num_hashes(near)))
    for row, each, found in zip(rows, documents, words, strict=True):
        if len(each["id"].encode()) > ID_BYTES:
            raise DataError(
                f"the id {each['id']} is longer than {ID_BYTES} bytes; extract the documents again",
                code="corpus.id_too_long",
            )
        row["id"], row["sha256"] = each["id"], np.frombuffer(sha256_of(each["text"], found), np.uint8)
    if near is not None:
        sets = [shingles(found, near.shingle_words) for found in words]
        rows["signature"] = signatures(sets, num_hashes(near), near.seed)
    return rows


def compare(each: _Span) -> Iterator[dict[str, int]]:
    """Yield the pairs of documents that share a key and are similar enough."""
    found = groups(merge(each.runs, each.span))
    if each.near is None:
        first = 0
        for is_first, position in found:
            if is_first:
                first = position
            else:
                yield {"first": first, "other": position}
        return
    least = each.near.threshold * num_hashes(each.near)
    positions: list[int] = []
    chosen = np.empty((MAX_REPRESENTATIVES, num_hashes(each.near)), np.uint32)
    with Signatures(each.folder, each.starts, num_hashes(each.near)) as signed:
        for is_first, position in found:
            positions = [] if is_first else positions
            signature = signed[position]["signature"]
            equal = np.count_nonzero(chosen[: len(positions)] == signature, axis=1)
            similar = np.flatnonzero(equal >= least)
            if len(similar):
                yield {"first": positions[similar[0]], "other": position}
            elif len(positions) < MAX_REPRESENTATIVES:
                chosen[len(positions)] = signature
                positions.append(position)


def _pairs(tables: Sequence[Path]) -> Iterator[tuple[int, int]]:
    for path in tables:
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches():
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def drop_duplicates(each: _Clustered) -> Iterator[Document | Lost]:
    """Yield the documents that are the first of their cluster, and which one each of the others is a duplicate of."""
    roots = read_roots(each.folder / CLUSTERS_FOLDER / ROOTS_FILE, each.start, each.count)
    with Signatures(each.folder / SIGNATURES_FOLDER, each.starts, each.num_hashes) as signed:
        for position, document in enumerate(read_documents(each.path), start=each.start):
            root = roots[position - each.start]
            if root == position:
                yield document
                continue
            own, first = signed[position], signed[root]
            name = first["id"].decode()
            if bytes(own["sha256"]) == bytes(first["sha256"]):
                yield lost(document, "duplicate", name)
            else:
                similarity = np.count_nonzero(own["signature"] == first["signature"]) / each.num_hashes
                yield lost(document, "near-duplicate", f"{name} {similarity:.3f}")
