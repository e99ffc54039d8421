"""The steps `duplicates` and `decontaminate`: drop documents that repeat others, or texts of evaluation sets.

Documents are in the order of the input, and the first one of each cluster of equal texts or near-duplicates by MinHash
is kept. Two documents are near-duplicates if the estimated Jaccard similarity of their shingles is at least the
threshold; clusters are the connected components of such pairs. Pairs are compared if their signatures agree in a band
(locality-sensitive hashing). Queries of DuckDB sort the bands and join pairs to clusters.

Intermediate results of `duplicates`, which are deleted at the end:

    signatures/   for each shard the signatures of its documents, and their keys: a hash of the words, and the bands
    pairs/        for each range of keys the pairs that are similar enough, by position in the corpus
    clusters/     for each document but the first of a cluster, the first one

A document contains an evaluation text if it contains any sequence of 13 words of the text, of 8 words of one of fewer
than 26, or all words of a shorter one. Sequences are compared by 64-bit hashes of their words, without case and
punctuation.

Sources: Broder, On the resemblance and containment of documents, SEQUENCES 1997; Leskovec, Rajaraman and Ullman, Mining
of Massive Datasets, chapter 3; Brown et al., Language Models are Few-Shot Learners, 2020, appendix C (sequences of 13
words).
"""

import hashlib
import logging
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import accumulate, groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.corpus.clean.step import Document, drop, hash_64, normalized_words, require_unique_names
from paratune.corpus.database import NUM_FETCHED, connection, parquet, query
from paratune.corpus.inputs import file_identity, find_files, read_texts
from paratune.corpus.settings import Corpus, Decontaminate, Duplicates
from paratune.corpus.shard import DOCUMENT_SCHEMA, DroppedRow, part_file, read_rows, reading, writing
from paratune.corpus.stage import RunStage, Stage, begin, is_finished, read_record, stage_output, stage_tables
from paratune.errors import DataError, require
from paratune.records import write_json

log = logging.getLogger(__name__)

FORMAT = 2  # version of the rows; increased when the same input gives other rows
PARTS = ("signatures", "pairs", "clusters")
"""Folders of intermediate results."""
SIGNATURES_SCHEMA = pa.schema(
    {"position": pa.int64(), "id": pa.string()}
    | dict.fromkeys(("sha256", "signature"), pa.binary())
    | dict.fromkeys(("highs", "lows"), pa.list_(pa.uint64()))
)
"""Position of a document, its id, SHA-256 of its words, signature (uint32), and the upper and lower halves of its keys
of 128 bits: a hash of its words; hash and number of each band."""
PAIRS_SCHEMA = pa.schema([("first", pa.int64()), ("other", pa.int64())])
CLUSTERS_SCHEMA = pa.schema([("document", pa.int64()), ("first", pa.string()), ("similarity", pa.float64())])
"""Position of a document, id of the first document of its cluster, and similarity to it; null for equal words."""
KEYS_PER_RANGE = 1 << 22
"""Keys that one process compares."""
MAX_REPRESENTATIVES = 16
"""Dissimilar documents with the same key, with which each later one is compared."""
BATCH_SIZE = 200
"""Documents in memory."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: odd, without a pattern."""


def run_duplicates(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Run the step.

    Returns:
        Totals; `found_at_threshold` is the expected share of pairs at the threshold that are found.

    Raises:
        MissingDependency: rensa is not installed.
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    options = corpus.clean.duplicates
    require("rensa", extra="corpus")
    settings = {**options.model_dump(), "format": FORMAT, "rensa": version("rensa")}
    paths, source = stage_tables(before), stage_output(before)
    counts = []
    for path in paths:
        with reading(path):
            counts.append(int(pq.read_metadata(path).num_rows))
    *starts, num_documents = accumulate(counts, initial=0)
    signatures, pairs, clusters = (folder / name for name in PARTS)
    stage = Stage("duplicates", folder, DOCUMENT_SCHEMA, partial(drop_duplicates, clusters), settings, source)
    if not is_finished(stage):
        begin(stage)
        part = partial(Stage, settings=settings, source=source)
        signed = part("duplicates: sign", signatures, SIGNATURES_SCHEMA, partial(sign, options))
        run(signed, list(zip(paths, starts, strict=True)))
        compared = part("duplicates: compare", pairs, PAIRS_SCHEMA, partial(compare, options, signatures))
        num_ranges = max(1, -(-num_documents * (1 + options.bands) // KEYS_PER_RANGE))
        run(compared, list(pairwise((1 << 64) * n // num_ranges for n in range(num_ranges + 1))))
        clustered = part("duplicates: cluster", clusters, CLUSTERS_SCHEMA, partial(find_clusters, clusters))
        run(clustered, [(stage_tables(pairs), stage_tables(signatures))])
    totals = run(stage, list(zip(paths, starts, counts, strict=True)))
    for name in PARTS:
        shutil.rmtree(folder / name, ignore_errors=True)
    share = candidate_probability(options.threshold, options.bands, options.rows)
    return {**totals, "found_at_threshold": round(share, 4)}


def sign(options: Duplicates, path: Path, position: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of SIGNATURES_SCHEMA for a table of documents; `position` is that of the first one."""
    seen, all_documents = set[bytes](), read_rows(path)
    while documents := list(islice(all_documents, BATCH_SIZE)):
        words = [normalized_words(document["text"]) for document in documents]
        sets = [shingles(own, options.shingle_words) for own in words]
        signed = signatures_of(sets, options.bands * options.rows, options.seed)
        bands = band_keys(signed, options.bands, options.rows).tolist()
        for document, own, signature, keys in zip(documents, words, signed, bands, strict=True):
            sha256 = hashlib.sha256((" ".join(own) or document["text"].strip()).encode()).digest()
            high, low = np.frombuffer(sha256[:16], "<u8").tolist()
            # Equal texts have equal bands: those of the first one are enough. Texts without words have no shingles.
            own_bands = keys if own and sha256 not in seen else []
            seen.add(sha256)
            known = {"id": document["id"], "sha256": sha256, "signature": signature.tobytes()}
            yield {"position": position, **known, "highs": [high, *own_bands], "lows": [low, *range(len(own_bands))]}
            position += 1


def shingles(words: Sequence[str], size: int) -> list[str]:
    """Return all sequences of `size` words; one of all words if there are fewer."""
    return [" ".join(words[start : start + size]) for start in range(max(1, len(words) - size + 1))]


def signatures_of(documents: Sequence[Sequence[str]], num_hashes: int, seed: int) -> np.ndarray:
    """Return the MinHash signatures of sets of shingles.

    Args:
        documents: Shingles of each document; duplicates count once.

    Returns:
        (documents, num_hashes), uint32. Values of two sets with Jaccard similarity J are equal with probability J.
    """
    digests = require("rensa", extra="corpus").RMinHash.digests_from_token_sets(documents, num_hashes, seed)
    return np.array(digests, np.uint32).reshape(len(documents), num_hashes)


def band_keys(signatures: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """Return a 64-bit hash of each band, (documents, bands); it is equal if all rows of a band are equal."""
    keys = np.zeros((len(signatures), bands), np.uint64)
    values = signatures.reshape(len(signatures), bands, rows).astype(np.uint64)
    for row in range(rows):
        # Plus 1: otherwise any number of zeros would have the same hash.
        keys = (keys + values[:, :, row] + np.uint64(1)) * _FACTOR
        keys ^= keys >> np.uint64(29)
    return keys


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two documents are compared: 1 - (1 - s^r)^b.

    Args:
        similarity: Jaccard similarity of their shingles, from 0 to 1.
        bands: b, number of bands, of which at least one must be equal.
        rows: r, values of a band.

    Source: Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4.2.
    """
    return float(1 - (1 - similarity**rows) ** bands)


def compare(options: Duplicates, folder: Path, start: int, stop: int) -> Iterator[dict[str, int]]:
    """Yield the pairs of documents that have an equal key, from `start` to below `stop`, and are similar enough."""
    tables = stage_tables(folder)
    if not tables:
        return
    rows = query(
        folder,
        f"""
        WITH keys AS (
            SELECT high, low, position
            FROM (SELECT unnest(highs) AS high, unnest(lows) AS low, position FROM {parquet(tables)})
            WHERE high BETWEEN ?::UBIGINT AND ?::UBIGINT
            QUALIFY count(*) OVER (PARTITION BY high, low) > 1
        )
        SELECT high, low, position, signature FROM keys JOIN {parquet(tables)} USING (position)
        ORDER BY high, low, position
        """,
        [start, stop - 1],
    )
    least = options.threshold * options.bands * options.rows
    for _, members in groupby(rows, key=itemgetter(0, 1)):
        representatives: list[tuple[int, np.ndarray]] = []
        for _, _, position, signature in members:
            own = np.frombuffer(signature, np.uint32)
            similar = (first for first, other in representatives if np.count_nonzero(own == other) >= least)
            if (first := next(similar, None)) is not None:
                yield {"first": first, "other": position}
            elif len(representatives) < MAX_REPRESENTATIVES:
                representatives.append((position, own))


def find_clusters(folder: Path, pairs: Sequence[Path], signatures: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the rows of CLUSTERS_SCHEMA for each document that is not the first of its cluster, in order.

    The clusters are the connected components of the pairs. Each round joins every root, the first document of a
    cluster, to the smallest root that a pair connects it with, and halves the ways to the roots.

    Source: Shiloach and Vishkin, An O(log n) parallel connectivity algorithm, Journal of Algorithms 1982.
    """
    with connection(folder) as db:
        db.execute(f"CREATE TABLE pairs AS SELECT DISTINCT first, other FROM {parquet(pairs)}")
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
        if not signatures:
            return
        rows = db.execute(
            f"""
            SELECT document, kept.id, own.sha256 = kept.sha256, own.signature, kept.signature
            FROM roots JOIN {parquet(signatures)} own ON own.position = document
            JOIN {parquet(signatures)} kept ON kept.position = root
            WHERE document <> root ORDER BY document
            """
        )
        while batch := rows.fetchmany(NUM_FETCHED):
            for document, first, is_equal, *both in batch:
                one, other = (np.frombuffer(signature, np.uint32) for signature in both)
                yield {"document": document, "first": first, "similarity": None if is_equal else np.mean(one == other)}


def drop_duplicates(folder: Path, path: Path, start: int, count: int) -> Iterator[Document | DroppedRow]:
    """Yield the documents that are the first of their cluster, and drop the others with the id of the first one."""
    own_range = [("document", ">=", start), ("document", "<", start + count)]
    with reading(folder / part_file(0)):
        columns = pq.read_table(folder / part_file(0), filters=own_range, partitioning=None).to_pydict()
    found = dict(zip(columns["document"], zip(columns["first"], columns["similarity"], strict=True), strict=True))
    for position, document in enumerate(read_rows(path), start=start):
        if position not in found:
            yield document
            continue
        first, similarity = found[position]
        if similarity is None:
            yield drop(document, "duplicate", first)
        else:
            yield drop(document, "near-duplicate", f"{first} {similarity:.3f}")


DECONTAMINATE_FORMAT = 2  # version of the rows of `decontaminate`
SEQUENCE_WORDS, SHORT_SEQUENCE_WORDS = 13, 8
"""Words of a sequence by default: of a text in which one changed word always leaves so many in a row, and of others."""
COUNTS_FILE = "sets.json"
SETS_FILE = "sets.npy"
"""Sequences of all texts, (3, N), uint64, sorted: number of words, hash, number of the text. Deleted at the end."""
KNOWN_WORDS = 1 << 18
"""Maximum number of words in the cache of hashes."""


def run_decontaminate(corpus: Corpus, before: Path, folder: Path, run: RunStage) -> dict[str, Any]:
    """Run the step.

    Returns:
        Totals, and `sets`: for each set its name, num_texts, by_words (number of texts by the words of their sequences;
        "all" for texts that have fewer), and num_ignored: texts with fewer than `min_words` words.

    Raises:
        ConfigError: Two sets have the same name.
        DataError: A file of a set is unreadable, or no text of a set is long enough.
        CheckpointError: The previous stage is not finished, or the folder is not writable.
    """
    options = corpus.clean.decontaminate
    require_unique_names("clean.decontaminate.sets", options.sets)
    paths = [
        find_files(evaluation_set.files, f"clean.decontaminate.sets: {evaluation_set.name}")
        for evaluation_set in options.sets
    ]
    settings = {**options.model_dump(), "files": [*map(file_identity, paths)], "format": DECONTAMINATE_FORMAT}
    stage = Stage(
        "decontaminate", folder, DOCUMENT_SCHEMA, partial(drop_contaminated, options), settings, stage_output(before)
    )
    sets_file, starts = folder / SETS_FILE, list[int]()
    if not is_finished(stage):
        begin(stage)
        starts = write_sets(options, paths, sets_file)
    totals = run(stage, [(starts, sets_file, path) for path in stage_tables(before)])
    sets_file.unlink(missing_ok=True)
    return {**totals, **read_record(folder / COUNTS_FILE, "sets")}


def write_sets(options: Decontaminate, paths: Sequence[Sequence[Path]], target: Path) -> list[int]:
    """Write the sequences of the texts to find, SETS_FILE, and their counts; return the first number of each set."""
    found, starts, number, sets = list[np.ndarray](), list[int](), 0, list[dict[str, Any]]()
    for evaluation_set, files in zip(options.sets, paths, strict=True):
        starts.append(number)
        by_words = Counter[str]()
        for text in (text for path in files for text in read_texts(path, evaluation_set.columns)):
            words = normalized_words(text)
            if len(words) >= options.min_words:
                is_long = len(words) >= 2 * SEQUENCE_WORDS
                wanted = options.words or (SEQUENCE_WORDS if is_long else SHORT_SEQUENCE_WORDS)
                size = min(len(words), wanted)
                by_words[str(size) if size == wanted else "all"] += 1
                (*_, longest_hashes) = sequences(words, size)
                columns = np.full((3, len(longest_hashes)), size, np.uint64)
                columns[1], columns[2] = longest_hashes, number
                found.append(columns)
            number += 1
        name, num_texts = evaluation_set.name, number - starts[-1]
        num_ignored = num_texts - by_words.total()
        sets.append({"name": name, "num_texts": num_texts, "by_words": dict(by_words), "num_ignored": num_ignored})
        numbers = ", ".join(f"{num} by {size} words" for size, num in by_words.items())
        log.info("decontaminate: %s: %d texts: %s; %d too short", name, num_texts, numbers or "none", num_ignored)
        if not by_words:
            key = "clean.decontaminate.sets"
            message = f"{key}: {name} has no text of {options.min_words} words; change its files, its columns or "
            raise DataError(f"{message}min_words", code="corpus.too_little_text", key=key, name=name)
    write_json(target.with_name(COUNTS_FILE), {"sets": sets})
    joined = np.concatenate(found, axis=1)
    with writing(path=target), replace_file(target) as temporary, temporary.open("wb") as file:
        np.save(file, joined[:, np.lexsort(joined[::-1])], allow_pickle=False)
    return starts


def sequences(words: Sequence[str], longest: int) -> Iterator[np.ndarray]:
    """Yield 64-bit hashes of all sequences of 1 word, 2 words, ..., `longest` words, as uint64."""
    hashes = np.fromiter(map(_word_hash, words), np.uint64, len(words))
    sequence_hashes = np.zeros(len(hashes), np.uint64)
    for size in range(1, min(longest, len(hashes)) + 1):
        sequence_hashes = (sequence_hashes[: len(hashes) - size + 1] + hashes[size - 1 :]) * _FACTOR
        sequence_hashes ^= sequence_hashes >> np.uint64(31)
        yield sequence_hashes


@lru_cache(maxsize=KNOWN_WORDS)
def _word_hash(word: str) -> int:
    return hash_64(word.encode())


def drop_contaminated(
    options: Decontaminate, starts: Sequence[int], sets_file: Path, path: Path
) -> Iterator[Document | DroppedRow]:
    """Yield the documents that contain no text of the sets, and drop the others."""
    with reading(sets_file):
        sizes, highs, texts = np.load(sets_file, mmap_mode="r", allow_pickle=False)
    edges = {size: np.searchsorted(sizes, [size, size + 1]).tolist() for size in np.unique(sizes).tolist()}
    by_size = {size: (highs[start:stop], texts[start:stop]) for size, (start, stop) in edges.items()}
    for document in read_rows(path):
        words = normalized_words(document["text"])
        hits = []
        for size, sequence_hashes in enumerate(sequences(words, max(by_size)), start=1):
            if size in by_size:
                known, numbers = by_size[size]
                places = np.minimum(np.searchsorted(known, sequence_hashes), len(known) - 1)
                # Of equal sequences, the first place has the smallest number of a text.
                starting = np.flatnonzero(known[places] == sequence_hashes)
                hits += [(start, int(numbers[places[start]]), size) for start in starting[:1].tolist()]
        if not hits:
            yield document
            continue
        start, text, size = min(hits)
        name = options.sets[bisect_right(starts, text) - 1].name
        yield drop(document, f"text of {name}", " ".join(words[start : start + size]))
