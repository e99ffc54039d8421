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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np

from paratune.base.token_ids import num_token_ids
from paratune.data.columns import Samples
from paratune.data.labels import first_rows
from paratune.data.token_store import (
    FORMAT_VERSION,
    StoreWriter,
    TokenStore,
    explain_disk_errors,
    open_store,
    remove_folder,
)
from paratune.data.tokenizers import (
    PAIRED_TEXT,
    cut_long_texts,
    pair_separator,
    preserve_state,
    tokenizer_fingerprint,
)
from paratune.errors import ConfigError, DataError, Stopped, coded

Truncation = Literal["longest_first", "only_first", "only_second", "head_tail"]
Progress = Callable[[int, int], None]
"""Called with the number of tokenized samples and of all samples, after each chunk."""
Stop = Callable[[], bool]

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


@dataclass
class Encoded:
    """Sequences of tokens to write, with values of their tokens and of them."""

    ids: list[list[int]] = field(default_factory=list)
    type_ids: list[list[int]] = field(default_factory=list)
    """Not used where the model takes none."""
    full_lengths: list[int] = field(default_factory=list)
    """Tokens of each sequence before truncation."""
    token_values: dict[str, list[list[int]]] = field(default_factory=dict)
    row_values: dict[str, list[Any]] = field(default_factory=dict)


def tokenize(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of all samples, at least one, from the cache or newly tokenized; `source` is for messages.

    Raises:
        ConfigError: `options.max_length` leaves no room for text, or the tokenizer or `options.truncation` does not
            fit.
        DataError: A text has no tokens, or the cache cannot be written.
        Stopped: `options.stop` returned true; the cache has no incomplete entry.
    """
    _require_room(samples, options)

    def encode_part(part: slice) -> Encoded:
        ids, type_ids, full_lengths = encode(samples, part, options, source)
        return Encoded(ids, type_ids or [], full_lengths)

    return tokenize_with(encode_part, samples, options, source=source)


def tokenize_with(
    encode_part: Callable[[slice], Encoded],
    samples: Samples,
    options: TokenizeOptions,
    *,
    source: str,
    token_values: Mapping[str, str] | None = None,
    row_values: Mapping[str, str] | None = None,
    **settings_of_task: Any,
) -> TokenStore:
    """Return the sequences that a function makes of each chunk of samples, from the cache or newly tokenized.

    `encode_part` is called with consecutive slices of all samples, in order. `token_values` and `row_values` are the
    dtypes of those of `Encoded`; `settings_of_task` are what the sequences also depend on, for the fingerprint. Errors
    as in `tokenize`.
    """

    def write(writer: StoreWriter) -> None:
        rows: dict[str, list[Any]] = {name: [] for name in row_values or {}}
        for part in chunks(samples, options, source):
            encoded = encode_part(part)
            type_ids = encoded.type_ids if options.need_token_type_ids else None
            writer.add(encoded.ids, type_ids, encoded.full_lengths, encoded.token_values)
            for name, values in rows.items():
                values += encoded.row_values[name]
        arrays = {name: np.asarray(rows[name], dtype=kind) for name, kind in (row_values or {}).items()}
        writer.finish(options.max_length, arrays)

    store = cached_store(token_fingerprint(samples, options, **settings_of_task), options, write, token_values)
    _require_known(store, options.tokenizer, source)
    return store


def chunks(samples: Samples, options: TokenizeOptions, source: str) -> Iterator[slice]:
    """Yield the slices of samples to tokenize in one call; between them, call `progress` and `stop`."""
    start = 0
    while start < len(samples):
        if options.stop():
            message = f"stopped while tokenizing {source}, at sample {start} of {len(samples)}"
            raise Stopped(message, code="stopped.signal", source=source, start=start)
        end, num_characters = start, 0
        while end < min(start + CHUNK_SIZE, len(samples)) and num_characters < CHUNK_CHARACTERS:
            num_characters += len(samples.texts[end])
            num_characters += 0 if samples.text_pairs is None else len(samples.text_pairs[end])
            end += 1
        yield slice(start, end)
        if options.progress is not None:
            options.progress(end, len(samples))
        start = end


def cached_store(
    fingerprint: str,
    options: TokenizeOptions,
    write: Callable[[StoreWriter], None],
    token_values: Mapping[str, str] | None = None,
) -> TokenStore:
    """Return the tokens with a fingerprint from the cache; where it has none, one process writes them, others wait.

    `write` adds all samples to a writer and calls its `finish`; `token_values` are those of the writer.
    """

    def written(folder: Path | None) -> TokenStore | None:
        tokenizer = options.tokenizer
        with (
            preserve_state(tokenizer),
            StoreWriter(
                folder,
                # Slow tokenizers of characters or bytes may use ids beyond their vocabulary's length.
                "<u2" if tokenizer.is_fast and num_token_ids(tokenizer) <= 2**16 else "<u4",
                has_type_ids=options.need_token_type_ids,
                unknown_id=unknown_id(tokenizer),
                token_values=token_values,
            ) as writer,
        ):
            write(writer)
        return writer.store

    if not options.is_cached:
        in_memory = written(None)
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
            for damaged in [folder, *folder.parent.glob(fingerprint + ".*.tmp")]:
                remove_folder(damaged)
            written(folder)
    return open_store(folder)


def _require_known(store: TokenStore, tokenizer: Any, source: str) -> None:
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


def _require_room(samples: Samples, options: TokenizeOptions) -> None:
    if len(samples) == 0:
        raise DataError("there are no samples to tokenize", code="data.empty")
    is_pair = samples.text_pairs is not None
    if options.truncation == "only_second" and not is_pair:
        message = "data.truncation: only_second needs a second text (data.columns.text_pair)"
        raise ConfigError(message, code="config.no_effect", key="data.truncation")
    num_special = options.tokenizer.num_special_tokens_to_add(pair=is_pair)
    require_text_length(options, num_special)
    if options.truncation == "head_tail" and (options.head_tokens or 0) > options.max_length - num_special:
        message = (
            f"data.head_tokens: {options.head_tokens} is more than the {options.max_length - num_special} tokens of a "
            f"text that fit into data.max_length: {options.max_length}"
        )
        raise ConfigError(message, code="data.max_length_unfit", key="data.head_tokens", value=options.head_tokens)


def require_text_length(options: TokenizeOptions, num_special: int) -> None:
    """Raise a ConfigError where `max_length` leaves no token for text next to the special tokens."""
    if options.max_length <= num_special:
        message = (
            f"data.max_length: {options.max_length} leaves no tokens for text next to {num_special} special tokens; "
            f"at least {num_special + 1} is needed"
        )
        raise ConfigError(message, code="data.max_length_unfit", key="data.max_length", value=options.max_length)


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

    Only samples that are too long are tokenized again. The length of a very long text is a lower limit.
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
            for values in (ids, *([] if types is None else [types])):
                row = values[index]
                values[index] = row[: spans[0]] + row[len(row) - spans[1] :]
    elif long:
        if pairs is not None:
            texts, pairs = cut_long_texts(texts, pairs, options.tokenizer, *spans, most_characters=PAIRED_TEXT)
        reason, uncut = "they are still too long", long
        try:
            cut = call(long, truncation=truncation, max_length=max_length)
            # Slow tokenizers log an error and return the whole sample.
            uncut = [index for index, row in zip(long, cut["input_ids"], strict=True) if len(row) > max_length]
        except Exception as error:  # the Rust library raises plain exceptions
            reason = str(error)
        if uncut:
            raise DataError(
                f"{source}: samples cannot be truncated to data.max_length: {max_length} with data.truncation: "
                f"{truncation} ({reason}); {first_rows(rows[uncut].tolist())}; use longest_first, or a larger "
                "max_length",
                code="data.max_length_unfit",
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


def require_tokens(lengths: Sequence[int], rows: Any, source: str, *, what: str = "") -> None:
    """Raise a `DataError` that names the rows, (N,), whose texts (`what`) have no tokens."""
    if len(empty := np.flatnonzero(np.asarray(lengths) == 0)):
        texts = f"{what}{first_rows(rows[empty].tolist())}"
        message = f"{source}: the tokenizer returns no tokens for {texts}; correct or remove such rows"
        raise DataError(message, code="data.no_tokens", source=source)
