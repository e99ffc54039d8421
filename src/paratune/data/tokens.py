"""Tokenizes the samples of a split once and keeps the tokens in a cache, by a fingerprint of all that they depend on.

Where several ranks need the same tokens, one of them tokenizes under a file lock, and the others wait for the lock and
open the cache. A file lock and not a collective: collectives time out after some minutes, and tokenizing can take
hours. Each entry of the cache is complete or absent, because its folder is renamed to its name at the end.

Imports no torch.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from paratune.base.token_ids import num_token_ids
from paratune.config.task_sections import Task
from paratune.data.columns import IntArray, Samples
from paratune.data.encode import Stop, Texts, TokenizeOptions, TokenLayout, layout_of
from paratune.data.token_store import (
    FORMAT_VERSION,
    StoreWriter,
    TokenStore,
    explain_disk_errors,
    open_store,
    remove_folder,
)
from paratune.data.tokenizers import preserve_state, tokenizer_fingerprint
from paratune.errors import ConfigError, DataError, Stopped, coded

CHUNK_SIZE = 1000
"""Most samples of a chunk; `TokenizeOptions.stop` is called between chunks."""
CHUNK_CHARACTERS = 2_000_000
"""A chunk ends with the sample that reaches this number of characters: about a second of work."""
MAX_UNKNOWN_SHARE = 0.5
"""Largest allowed share of unknown tokens in a split. A tokenizer without its vocabulary has only special tokens, and
is above this share for texts of three words or more."""
MIN_JUDGED_TOKENS = 100
"""Splits with fewer tokens are not checked: a few rows of one emoji each do not mean that the tokenizer is damaged."""
WARNED_TRUNCATED_SHARE = 0.1
"""Share of truncated samples from which `data` and `train` warn."""
WARNED_UNKNOWN_SHARE = 0.01
"""Share of unknown tokens from which `data`, `train`, `evaluate` and `predict` warn."""
_log = logging.getLogger(__name__)


def cache_folder(cache_dir: str | Path | None) -> Path:
    """Return the folder of the cache: `data.cache_dir`, else $PARATUNE_CACHE, else ~/.cache/paratune."""
    return Path(cache_dir or os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune").expanduser()


def tokenize(
    samples: Samples,
    options: TokenizeOptions,
    task: Task | None = None,
    *,
    source: str = "data",
    fills_in: bool = False,
    folder: Path | None = None,
) -> TokenStore:
    """Return the tokens of all samples, at least one, from the cache or newly tokenized.

    Args:
        samples: Rows of a split.
        options: Tokenizer, limits and cache.
        task: What is encoded, and how long texts are cut; None for texts or pairs that are truncated.
        source: Name of the file in messages.
        fills_in: Whether the texts have masks to fill in, for a masked language model.
        folder: Folder that is written in place of the cache; it does not exist yet.

    Raises:
        ConfigError: `options.max_length` leaves no room for text, or the tokenizer or `options.truncation` does not
            fit.
        DataError: A text has no tokens, or the cache cannot be written.
        Stopped: `options.stop` returned true; the cache has no incomplete entry.
    """
    if len(samples) == 0:
        raise DataError("there are no samples to tokenize", code="data.empty")
    layout = layout_of(task, fills_in=fills_in)
    flat, counts = layout.texts(samples)
    texts = Texts(flat, options, task, source)
    num_special = options.tokenizer.num_special_tokens_to_add(pair=flat.text_pairs is not None)
    if options.max_length <= num_special:
        message = (
            f"data.max_length: {options.max_length} leaves no tokens for text next to {num_special} special tokens; "
            f"at least {num_special + 1} is needed"
        )
        raise ConfigError(message, code="data.max_length_unfit", key="data.max_length", value=options.max_length)
    row_of_text = np.repeat(np.arange(len(samples)), 1 if counts is None else counts)

    def write(folder: Path | None) -> TokenStore | None:
        tokenizer = options.tokenizer
        # Slow tokenizers of characters or bytes may use ids beyond their vocabulary's length.
        dtype = "<u2" if tokenizer.is_fast and num_token_ids(tokenizer) <= 2**16 else "<u4"
        has_types, values = options.need_token_type_ids, {name: list[Any]() for name in layout.row_values}
        facts: dict[str, Any] = {"unknown_id": unknown_id(tokenizer), "token_values": layout.token_values}
        with preserve_state(tokenizer), StoreWriter(folder, dtype, has_type_ids=has_types, **facts) as writer:
            for made in layout.encode(texts, chunks(texts, row_of_text)):
                writer.add(made.ids, made.type_ids if has_types else None, made.full_lengths, made.token_values)
                for name in values:
                    values[name] += made.row_values[name]
            arrays = {name: np.asarray(values[name], dtype=kind) for name, kind in layout.row_values.items()}
            writer.finish(options.max_length, arrays)
        return writer.store

    if folder is None:
        store = cached_store(token_fingerprint(texts, layout), options, write)
        require_known(store, options.tokenizer, source)
    else:  # a part of a corpus, whose readers know the share of unknown tokens in the whole
        write(folder)
        store = open_store(folder)
    if layout.groups is not None:
        counts = np.bincount(store.row_values[layout.groups])
    return store if counts is None else store.grouped(counts)


def chunks(texts: Texts, row_of_text: IntArray) -> Iterator[slice]:
    """Yield the slices of texts to tokenize in one call; between them, call `progress` and `stop`."""
    samples, options, num_rows, start = texts.samples, texts.options, int(row_of_text[-1]) + 1, 0
    while start < len(samples):
        if options.stop():
            row = int(row_of_text[start])
            message = f"stopped while tokenizing {texts.source}, at sample {row} of {num_rows}"
            raise Stopped(message, code="stopped.signal", source=texts.source, start=row)
        end, num_characters = start, 0
        while end < min(start + CHUNK_SIZE, len(samples)) and num_characters < CHUNK_CHARACTERS:
            num_characters += len(samples.texts[end])
            num_characters += 0 if samples.text_pairs is None else len(samples.text_pairs[end])
            end += 1
        yield slice(start, end)
        if options.progress is not None:
            options.progress(int(row_of_text[end - 1]) + 1, num_rows)
        start = end


def cached_store(
    fingerprint: str, options: TokenizeOptions, write: Callable[[Path | None], TokenStore | None]
) -> TokenStore:
    """Return the tokens with a fingerprint from the cache; where it has none, one process writes them, others wait.

    `write` writes all samples into a folder or, without one, returns them.
    """
    if not options.is_cached:
        in_memory = write(None)
        assert in_memory is not None
        return in_memory
    cache_dir = cache_folder(options.cache_dir)
    folder = cache_dir / "tokens" / fingerprint
    if (store := _open_cached(folder)) is not None:
        return store
    with explain_disk_errors(cache_dir):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(fingerprint + ".lock"), options.stop, options.waits):
            # Another process may have written the tokens while this one waited for the lock.
            if (store := _open_cached(folder, warns=True)) is not None:
                return store
            # Only the process with the lock writes: a temporary folder that exists now is of one that was killed.
            remove_folder(folder)
            write(folder)
    return open_store(folder)


def require_known(store: TokenStore, tokenizer: Any, source: str) -> None:
    """Raise a DataError for too many unknown tokens: the tokenizer is damaged, or made for another language."""
    share = store.share_unknown
    if share is not None and share > MAX_UNKNOWN_SHARE and store.num_tokens >= MIN_JUDGED_TOKENS:
        message = (
            f"{source}: {store.num_unknown} of {store.num_tokens} tokens ({share:.0%}) are {tokenizer.unk_token}: the "
            f"vocabulary of the tokenizer ({len(tokenizer)} tokens) does not contain the text; at most "
            f"{MAX_UNKNOWN_SHARE:.0%} is allowed. Check that its files are complete and that the text is in a language "
            "of the model; for training, set model.tokenizer to another tokenizer"
        )
        raise DataError(message, code="data.unknown_tokens", source=source)


def unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the unknown token; None where the tokenizer has none, or also uses it for another purpose."""
    others = ("bos", "eos", "cls", "sep", "pad", "mask")
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in {getattr(tokenizer, f"{name}_token_id", None) for name in others} else unknown


def _open_cached(folder: Path, *, warns: bool = False) -> TokenStore | None:
    """Return the store of a folder, or None where it is missing or damaged; only who writes it again warns of that."""
    try:
        return open_store(folder)
    except (FileNotFoundError, ValueError) as error:
        if warns and isinstance(error, ValueError):
            extra = coded("data.cache_damaged", folder=folder)
            _log.warning("cached tokens in %s are damaged (%s); tokenizing again", folder, error, extra=extra)
        return None


@contextmanager
def locked(path: Path, stop: Stop, waits: Callable[[], None]) -> Iterator[None]:
    """Keep a file lock during the block; `waits` is called while another process has it; `stop` ends this."""
    lock = filelock.FileLock(path)
    while True:
        try:
            lock.acquire(timeout=0.5, poll_interval=0.05)
            break
        except filelock.Timeout:
            waits()
            if stop():
                raise Stopped("stopped while another process prepares the same data", code="stopped.signal") from None
    try:
        yield
    finally:
        lock.release()


def token_fingerprint(texts: Texts, layout: TokenLayout) -> str:
    """Return the SHA-256, in hexadecimal, over all that the tokens depend on: texts, tokenizer, settings, versions.

    It is empty where tokens are not cached, and nobody needs it.
    """
    options = texts.options
    if not options.is_cached:
        return ""
    import tokenizers  # here, because loader workers import this module and need neither package
    import transformers

    settings = {
        "format": FORMAT_VERSION,
        "max_length": options.max_length,
        "truncation": options.truncation,
        **({"head_tokens": options.head_tokens} if options.truncation == "head_tail" else {}),
        "type_ids": options.need_token_type_ids,
        "tokenizer": tokenizer_fingerprint(options.tokenizer),
        "pair_mark": texts.mark(),
        "versions": [tokenizers.__version__, transformers.__version__],
        **layout.settings(texts),
    }
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    hash_texts(sha, texts.samples.texts)
    hash_texts(sha, texts.samples.text_pairs)
    return sha.hexdigest()


def hash_texts(sha: Any, texts: list[str] | None) -> None:
    """Add texts to a hash: their number, lengths and content, so that different lists never add the same bytes."""
    if texts is None:
        sha.update(b"none")
        return
    encoded = [text.encode() for text in texts]
    sha.update(len(texts).to_bytes(8, "little"))
    sha.update(np.cumsum([0, *map(len, encoded)], dtype="<i8").tobytes())
    for text in encoded:
        sha.update(text)
