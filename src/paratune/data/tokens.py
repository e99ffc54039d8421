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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np

from paratune.base.token_ids import num_token_ids
from paratune.data.columns import Samples
from paratune.data.labels import first_rows
from paratune.data.long_texts import PAIRED_TEXT, cut_long_texts
from paratune.data.token_store import (
    FORMAT_VERSION,
    StoreWriter,
    TokenStore,
    explain_disk_errors,
    open_store,
    remove_folder,
)
from paratune.data.tokenizers import pair_separator, preserve_state, tokenizer_fingerprint
from paratune.errors import ConfigError, DataError, Stopped, coded

Truncation = Literal["longest_first", "only_first", "only_second", "head_tail"]
Progress = Callable[[int, int], None]
"""Called with the number of tokenized samples and of all samples, after each chunk."""
Stop = Callable[[], bool]
Write = Callable[[StoreWriter], None]
"""Adds all samples to a writer and calls its `finish`."""

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


@dataclass(frozen=True)
class TokenizeOptions:
    """Options of `tokenize`: tokenizer, limits, cache and callbacks."""

    tokenizer: Any
    """A `transformers` tokenizer, fast or slow; its state is not changed."""
    max_length: int
    """Most tokens of a sample, special ones included."""
    truncation: Truncation = "longest_first"
    """Which text of a pair is truncated."""
    need_token_type_ids: bool = False
    """Whether the model takes token type ids."""
    cache_dir: str | Path | None = None
    """As `data.cache_dir`."""
    is_cached: bool = True
    """Whether tokens are read from the cache and written to it; if not, they are in memory and on no disk."""
    head_tokens: int | None = None
    """As `data.head_tokens`."""
    progress: Progress | None = None
    """Called after each chunk; not called when the tokens are in the cache."""
    stop: Stop = lambda: False
    """Called between chunks and while another process has the lock; true raises `Stopped`."""
    waits: Callable[[], None] = lambda: None
    """Called while another process has the lock."""


def tokenize(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of all samples, from the cache or newly tokenized.

    Args:
        samples: Texts, or pairs of texts; at least one.
        options: Tokenizer, limits, cache; `progress` counts samples.
        source: Name of the samples in messages.

    Raises:
        ConfigError: `options.max_length` leaves no room for text, or the tokenizer or `options.truncation` does not
            fit.
        DataError: A text has no tokens, or the cache cannot be written.
        Stopped: `options.stop` returned true; the cache has no incomplete entry.
    """
    _require_room(samples, options)

    def write(writer: StoreWriter) -> None:
        for part in chunks(samples, options, source):
            writer.add(*encode(samples, part, options, source))
        writer.finish(options.max_length)

    return cached_store(token_fingerprint(samples, options), options, write, source=source)


def chunks(samples: Samples, options: TokenizeOptions, source: str) -> Iterator[slice]:
    """Yield the slices of samples to tokenize in one call; between them, call `progress` and `stop`."""
    start = 0
    while start < len(samples):
        if options.stop():
            raise Stopped(
                f"stopped while tokenizing {source}, at sample {start} of {len(samples)}",
                code="stopped.signal",
                source=source,
                start=start,
            )
        end = _end_of_chunk(samples, start)
        yield slice(start, end)
        if options.progress is not None:
            options.progress(end, len(samples))
        start = end


def _end_of_chunk(samples: Samples, start: int) -> int:
    """Return the end of the chunk that begins with the sample `start`."""
    num_characters = 0
    most = min(start + CHUNK_SIZE, len(samples))
    for sample in range(start, most):
        num_characters += len(samples.texts[sample])
        if samples.text_pairs is not None:
            num_characters += len(samples.text_pairs[sample])
        if num_characters >= CHUNK_CHARACTERS:
            return sample + 1
    return most


def cached_store(
    fingerprint: str,
    options: TokenizeOptions,
    write: Write,
    *,
    source: str,
    token_values: Mapping[str, str] | None = None,
) -> TokenStore:
    """Return the tokens with a fingerprint from the cache; where it has none, one process writes them, others wait.

    Args:
        fingerprint: Fingerprint of all that the tokens depend on; name of the folder.
        options: Tokenizer, cache and callbacks.
        write: Adds all samples to a writer and calls its `finish`.
        source: Name of the samples in messages.
        token_values: As for `StoreWriter`.

    Raises:
        DataError: The cache cannot be written, or most tokens are unknown tokens.
        Stopped: `options.stop` returned true; the cache has no incomplete entry.
    """
    if options.is_cached:
        store = _read_or_write(fingerprint, options, write, token_values)
    else:
        in_memory = _write(None, options, write, token_values)
        assert in_memory is not None
        store = in_memory
    require_known(store, options.tokenizer, source)
    return store


def require_known(store: TokenStore, tokenizer: Any, source: str) -> None:
    """Check that most tokens are known; if not, the tokenizer is damaged, or made for another language.

    Raises:
        DataError: More than `MAX_UNKNOWN_SHARE` of at least `MIN_JUDGED_TOKENS` tokens are unknown.
    """
    share = store.share_unknown
    if share is not None and share > MAX_UNKNOWN_SHARE and store.num_tokens >= MIN_JUDGED_TOKENS:
        raise DataError(
            f"{source}: {store.num_unknown} of {store.num_tokens} tokens ({share:.0%}) are {tokenizer.unk_token}: the "
            f"vocabulary of the tokenizer ({len(tokenizer)} tokens) does not contain the text; at most "
            f"{MAX_UNKNOWN_SHARE:.0%} is allowed. Check that its files are complete and that the text is in a language "
            "of the model; for training, set model.tokenizer to another tokenizer",
            code="data.unknown_tokens",
            source=source,
        )


def _unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the unknown token; None where the tokenizer has none, or also uses it for another purpose."""
    others = ("bos", "eos", "cls", "sep", "pad", "mask")
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in {getattr(tokenizer, f"{name}_token_id", None) for name in others} else unknown


def _read_or_write(
    fingerprint: str, options: TokenizeOptions, write: Write, token_values: Mapping[str, str] | None
) -> TokenStore:
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
            for damaged in [folder, *folder.parent.glob(fingerprint + ".*.tmp")]:
                remove_folder(damaged)
            _write(folder, options, write, token_values)
    return open_store(folder)


def _write(
    folder: Path | None, options: TokenizeOptions, write: Write, token_values: Mapping[str, str] | None
) -> TokenStore | None:
    """Write tokens into a folder, or return them where it is None."""
    tokenizer = options.tokenizer
    with (
        StoreWriter(
            folder,
            _dtype(tokenizer),
            has_type_ids=options.need_token_type_ids,
            unknown_id=_unknown_id(tokenizer),
            token_values=token_values,
        ) as writer,
        preserve_state(tokenizer),
    ):
        write(writer)
    return writer.store


def _open_cached(folder: Path, *, warns: bool = False) -> TokenStore | None:
    """Return the store of a folder, or None where it is missing or damaged.

    Args:
        folder: Folder of the store.
        warns: Log a warning where it is damaged; for the process with the lock, which writes it again.
    """
    try:
        return open_store(folder)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if warns:
            _log.warning(
                "cached tokens in %s are damaged (%s); tokenizing again",
                folder,
                error,
                extra=coded("data.cache_damaged", folder=folder),
            )
        return None


@contextmanager
def locked(path: Path, stop: Stop, waits: Callable[[], None]) -> Iterator[None]:
    """Keep a file lock during the block; `waits` is called while another process has it.

    Raises:
        Stopped: `stop` returned true while another process had the lock.
    """
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


def _require_room(samples: Samples, options: TokenizeOptions) -> None:
    if len(samples) == 0:
        raise DataError("there are no samples to tokenize", code="data.empty")
    is_pair = samples.text_pairs is not None
    if options.truncation == "only_second" and not is_pair:
        raise ConfigError(
            "data.truncation: only_second needs a second text (data.columns.text_pair)",
            code="config.no_effect",
            key="data.truncation",
        )
    num_special = options.tokenizer.num_special_tokens_to_add(pair=is_pair)
    require_text_length(options, num_special)
    if options.truncation == "head_tail" and (options.head_tokens or 0) > options.max_length - num_special:
        raise ConfigError(
            f"data.head_tokens: {options.head_tokens} is more than the {options.max_length - num_special} tokens of a "
            f"text that fit into data.max_length: {options.max_length}",
            code="data.max_length_too_small",
            key="data.head_tokens",
            value=options.head_tokens,
        )


def require_text_length(options: TokenizeOptions, num_special: int) -> None:
    """Raise a ConfigError where `max_length` leaves no token for text next to the special tokens."""
    if options.max_length <= num_special:
        raise ConfigError(
            f"data.max_length: {options.max_length} leaves no tokens for text next to {num_special} special tokens; "
            f"at least {num_special + 1} is needed",
            code="data.max_length_too_small",
            key="data.max_length",
            value=options.max_length,
        )


def _dtype(tokenizer: Any) -> str:
    # Slow tokenizers of characters or bytes may use ids beyond their vocabulary's length.
    return "<u2" if tokenizer.is_fast and num_token_ids(tokenizer) <= 2**16 else "<u4"


def token_fingerprint(samples: Samples, options: TokenizeOptions, **settings_of_task: Any) -> str:
    """Return the SHA-256, in hexadecimal, over all that the tokens depend on: texts, tokenizer, settings, versions.

    It is empty where tokens are not cached, and nobody needs it.
    """
    if not options.is_cached:
        return ""
    import tokenizers  # here, because loader workers import this module and need neither package
    import transformers

    separator = "" if samples.text_pairs is None else pair_separator(options.tokenizer)
    settings = {
        "format": FORMAT_VERSION,
        "max_length": options.max_length,
        "truncation": options.truncation,
        **({"head_tokens": options.head_tokens} if options.truncation == "head_tail" else {}),
        "type_ids": options.need_token_type_ids,
        "tokenizer": tokenizer_fingerprint(options.tokenizer),
        **({"pair_mark": separator} if separator else {}),
        "versions": [tokenizers.__version__, transformers.__version__],
        **settings_of_task,
    }
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    hash_texts(sha, samples.texts)
    hash_texts(sha, samples.text_pairs)
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


def encode(
    samples: Samples, part: slice, options: TokenizeOptions, source: str
) -> tuple[list[list[int]], list[list[int]] | None, list[int]]:
    """Return ids, type ids (None where the model takes none) and untruncated lengths of a chunk.

    The first call gives the untruncated lengths; only samples that are too long are tokenized again. The length of a
    very long text is a lower limit: see `long_texts`.

    Raises:
        DataError: A sample has no tokens, or cannot be truncated by `options.truncation`.
    """
    texts = samples.texts[part]
    pairs = None if samples.text_pairs is None else samples.text_pairs[part]
    if pairs is not None and (separator := pair_separator(options.tokenizer)):
        pairs = [separator + pair for pair in pairs]
    spans = _head_tail_spans(options) if options.truncation == "head_tail" else (options.max_length, 0)
    texts, pairs = cut_long_texts(texts, pairs, options.tokenizer, *spans)
    rows, max_length, truncation = samples.rows[part], options.max_length, options.truncation

    def call(indices: list[int], **kwargs: Any) -> Any:
        return options.tokenizer(
            [texts[index] for index in indices],
            None if pairs is None else [pairs[index] for index in indices],
            return_attention_mask=False,
            return_token_type_ids=options.need_token_type_ids,
            verbose=False,  # no warning about too long samples: they are truncated below
            **kwargs,
        )

    whole = call(list(range(len(texts))), truncation=False)
    ids, types = whole["input_ids"], whole["token_type_ids"] if options.need_token_type_ids else None
    full_lengths = [len(row) for row in ids]
    require_tokens(full_lengths, rows, source)
    long = [index for index, length in enumerate(full_lengths) if length > max_length]
    if long and truncation == "head_tail":
        for index in long:
            ids[index] = _without_middle(ids[index], *spans)
            if types is not None:
                types[index] = _without_middle(types[index], *spans)
    elif long:
        if pairs is not None:
            texts, pairs = cut_long_texts(texts, pairs, options.tokenizer, *spans, most_characters=PAIRED_TEXT)
        try:
            cut = call(long, truncation=truncation, max_length=max_length)
        except Exception as error:  # the Rust library raises plain exceptions
            raise DataError(
                _too_long_message(source, rows[long], options, str(error)), code="data.cannot_truncate"
            ) from error
        uncut = [index for index, row in zip(long, cut["input_ids"], strict=True) if len(row) > max_length]
        if uncut:  # slow tokenizers log an error and return the whole sample
            raise DataError(
                _too_long_message(source, rows[uncut], options, "they are still too long"), code="data.cannot_truncate"
            )
        for place, index in enumerate(long):
            ids[index] = cut["input_ids"][place]
            if types is not None:
                types[index] = cut["token_type_ids"][place]
    return ids, types, full_lengths


def _head_tail_spans(options: TokenizeOptions) -> tuple[int, int]:
    """Return how many ids at the start and at the end of a long text `head_tail` keeps, special tokens included.

    Source: Sun et al., How to Fine-Tune BERT for Text Classification?, CCL 2019, section 5.3.1, whose 128 of 510
        tokens are a quarter.
    """
    flags = options.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    num_before, num_after = flags.index(0), flags[::-1].index(0)
    room = options.max_length - num_before - num_after
    num_head = room // 4 if options.head_tokens is None else options.head_tokens
    return num_before + num_head, room - num_head + num_after


def _without_middle(row: list[int], num_first: int, num_last: int) -> list[int]:
    return row[:num_first] + row[len(row) - num_last :]


def _too_long_message(source: str, rows: Any, options: TokenizeOptions, reason: str) -> str:
    return (
        f"{source}: samples cannot be truncated to data.max_length: {options.max_length} with data.truncation: "
        f"{options.truncation} ({reason}); {first_rows(rows.tolist())}; use longest_first, or a larger max_length"
    )


def require_tokens(lengths: Sequence[int], rows: Any, source: str) -> None:
    """Raise a `DataError` that names the rows, (N,), whose texts have no tokens."""
    empty = np.flatnonzero(np.asarray(lengths) == 0)
    if len(empty):
        raise no_tokens_error(first_rows(rows[empty].tolist()), source)


def no_tokens_error(texts: str, source: str) -> DataError:
    """Return the error for texts without tokens, such as "rows 3, 8"."""
    return DataError(
        f"{source}: the tokenizer returns no tokens for {texts}; correct or remove such rows",
        code="data.no_tokens",
        source=source,
    )
