"""Tokenizing once: in parallel, cached by content, whole or absent, and never under a barrier that can time out.

Ranks do not wait for each other in a collective, which gives up after some minutes, but for a file lock, which does
not; the first one makes the tokens, and the others find them.

Floor 3, without torch.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
    disk_errors_explained,
    open_store,
    remove_folder,
)
from paratune.errors import ConfigError, DataError, Stopped, coded

Truncation = Literal["longest_first", "only_first", "only_second"]
Progress = Callable[[int, int], None]
"""Called with the samples done and all samples, after each chunk."""
Stop = Callable[[], bool]

CHUNK_SIZE = 1000
"""Most samples between two looks at `stop`."""
CHUNK_CHARACTERS = 2_000_000
"""A chunk ends with the sample that reaches so many characters: about a second of work."""
MAX_UNKNOWN_SHARE = 0.5
"""Most tokens of a split that may stand for text which the vocabulary does not have. A tokenizer that has lost its
vocabulary knows special tokens alone, so that rows of three words and more are above it."""
MIN_JUDGED_TOKENS = 100
"""Fewer tokens are not judged: a few rows of one emoji each are no sign of a damaged tokenizer."""
WARNED_UNKNOWN_SHARE = 0.01
"""From here on `data`, `train`, `evaluate` and `predict` warn."""
_log = logging.getLogger(__name__)


def _never() -> bool:
    return False


def _nothing() -> None:
    return None


def cache_folder(cache_dir: str | Path | None) -> Path:
    """Return where token files are kept: `data.cache_dir`, else $PARATUNE_CACHE, else ~/.cache/paratune."""
    return Path(cache_dir or os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune").expanduser()


@dataclass(frozen=True)
class Tokenizing:
    """How texts become tokens, and who is told."""

    tokenizer: Any
    """A `transformers` tokenizer, fast or slow; it is left as it was."""
    max_length: int
    """Most tokens of a sample, special ones included."""
    truncation: Truncation = "longest_first"
    """Which text of a pair loses tokens."""
    need_token_type_ids: bool = False
    """Whether the model takes them."""
    cache_dir: str | Path | None = None
    """As `data.cache_dir`."""
    progress: Progress | None = None
    """Told how far it is; not called when the tokens are found."""
    stop: Stop = _never
    """Asked between chunks, and while another process has the lock, whether to give up."""
    waits: Callable[[], None] = _nothing
    """Called while another process has the lock."""


def tokenize(samples: Samples, how: Tokenizing, *, source: str = "data") -> TokenStore:
    """Return the tokens of all samples, made now or found in the cache.

    Args:
        samples: Texts, or pairs of texts; at least one.
        how: Tokenizer, limits, cache.
        source: Name of the samples in messages.

    Raises:
        ConfigError: `how.max_length` leaves no room, or `how.truncation` needs a second text.
        DataError: A text has no tokens, or the cache cannot be written.
        Stopped: `how.stop` said so; nothing half-made is left.
    """
    _require_room(samples, how)

    def write(writer: StoreWriter) -> None:
        for part in chunks(samples, how, source):
            writer.add(*encode(samples, part, how, source))
        writer.finish(how.max_length)

    return cached_store(token_fingerprint(samples, how), how, write, source=source)


def chunks(samples: Samples, how: Tokenizing, source: str) -> Iterator[slice]:
    """Yield the samples in parts of a size that can be tokenized at once, telling how far it is.

    Raises:
        Stopped: `how.stop` said so.
    """
    start = 0
    while start < len(samples):
        if how.stop():
            raise Stopped(
                f"stopped while tokenizing {source}, at sample {start} of {len(samples)}",
                code="stopped.signal",
                source=source,
                start=start,
            )
        end = _end_of_chunk(samples, start)
        yield slice(start, end)
        if how.progress is not None:
            how.progress(end, len(samples))
        start = end


def _end_of_chunk(samples: Samples, start: int) -> int:
    """Return the first sample behind the chunk that begins with `start`."""
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
    how: Tokenizing,
    write: Callable[[StoreWriter], None],
    *,
    source: str,
    of_tokens: Mapping[str, str] | None = None,
) -> TokenStore:
    """Return the tokens of this fingerprint: found in the cache, or made by one process while the others wait.

    Args:
        fingerprint: Of all that the tokens depend on; name of the folder.
        how: Tokenizer, cache, and whether to give up.
        write: Adds all samples and finishes.
        source: Name of the samples in messages.
        of_tokens: As for `StoreWriter`.

    Raises:
        DataError: The cache cannot be written, or the vocabulary does not have most of the text.
        Stopped: `how.stop` said so; nothing half-made is left.
    """
    store = _found_or_made(fingerprint, how, write, of_tokens)
    require_known(store, how.tokenizer, source)
    return store


def require_known(store: TokenStore, tokenizer: Any, source: str) -> None:
    """Refuse tokens that are mostly the one for unknown text: the tokenizer is damaged, or of another language.

    Raises:
        DataError: More than `MAX_UNKNOWN_SHARE` of at least `MIN_JUDGED_TOKENS` tokens.
    """
    share = store.share_unknown
    if share is not None and share > MAX_UNKNOWN_SHARE and store.num_tokens >= MIN_JUDGED_TOKENS:
        raise DataError(
            f"{source}: {store.num_unknown} of {store.num_tokens} tokens ({share:.0%}) are {tokenizer.unk_token}: the "
            f"vocabulary of the tokenizer ({len(tokenizer)} tokens) does not have the text; at most "
            f"{MAX_UNKNOWN_SHARE:.0%} is allowed. Look whether its files are whole and the text is in a language of "
            "the model; for training, model.tokenizer names another one",
            code="data.unknown_tokens",
            source=source,
        )


def _unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the token for unknown text; None where there is none, or it stands for something else too."""
    others = ("bos", "eos", "cls", "sep", "pad", "mask")
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in {getattr(tokenizer, f"{name}_token_id", None) for name in others} else unknown


def _found_or_made(
    fingerprint: str, how: Tokenizing, write: Callable[[StoreWriter], None], of_tokens: Mapping[str, str] | None
) -> TokenStore:
    cache_dir = cache_folder(how.cache_dir)
    folder = cache_dir / "tokens" / fingerprint
    store = _find(folder)
    if store is not None:
        return store
    with disk_errors_explained(cache_dir):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(fingerprint + ".lock"), how):
            store = _find(folder, warns=True)  # another process may have made it meanwhile
            if store is not None:
                return store
            for torn in [folder, *folder.parent.glob(fingerprint + ".*.tmp")]:
                remove_folder(torn)
            dtype, has_types = _dtype(how.tokenizer), how.need_token_type_ids
            with (
                StoreWriter(
                    folder,
                    dtype,
                    has_type_ids=has_types,
                    unknown_id=_unknown_id(how.tokenizer),
                    of_tokens=of_tokens,
                ) as writer,
                state_kept(how.tokenizer),
            ):
                write(writer)
    return open_store(folder)


def _find(folder: Path, *, warns: bool = False) -> TokenStore | None:
    """Return the finished store, or None where it is missing or damaged.

    Args:
        folder: Of the store.
        warns: Log a warning where it is damaged; for the process that holds the lock, which makes it again.
    """
    try:
        return open_store(folder)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if warns:
            _log.warning(
                "cached tokens in %s are damaged (%s); they are made again",
                folder,
                error,
                extra=coded("data.cache_damaged", folder=folder),
            )
        return None


@contextmanager
def _locked(path: Path, how: Tokenizing) -> Iterator[None]:
    lock = filelock.FileLock(path)
    while True:
        try:
            lock.acquire(timeout=0.5, poll_interval=0.05)
            break
        except filelock.Timeout:
            how.waits()
            if how.stop():
                raise Stopped("stopped while another process tokenizes the same data", code="stopped.signal") from None
    try:
        yield
    finally:
        lock.release()


def _require_room(samples: Samples, how: Tokenizing) -> None:
    if len(samples) == 0:
        raise DataError("there are no samples to tokenize", code="data.empty")
    is_pair = samples.text_pairs is not None
    if how.truncation == "only_second" and not is_pair:
        raise ConfigError(
            "data.truncation: only_second needs a second text (data.columns.text_pair)",
            code="config.no_effect",
            key="data.truncation",
        )
    num_special = how.tokenizer.num_special_tokens_to_add(pair=is_pair)
    if how.max_length <= num_special:
        raise ConfigError(
            f"data.max_length {how.max_length} leaves no room for text beside {num_special} special tokens; "
            f"at least {num_special + 1} is needed",
            code="data.max_length_too_small",
            key="data.max_length",
            value=how.max_length,
        )


def _dtype(tokenizer: Any) -> str:
    # Slow tokenizers of characters or bytes may use ids beyond their vocabulary's length.
    return "<u2" if tokenizer.is_fast and num_token_ids(tokenizer) <= 2**16 else "<u4"


def token_fingerprint(samples: Samples, how: Tokenizing, **settings_of_task: Any) -> str:
    """Return the SHA-256, in hexadecimal, over all that the tokens depend on: texts, tokenizer, settings, versions."""
    import tokenizers  # late: who makes batches of tokens imports this module, and needs neither
    import transformers

    settings = {
        "format": FORMAT_VERSION,
        "max_length": how.max_length,
        "truncation": how.truncation,
        "type_ids": how.need_token_type_ids,
        "tokenizer": tokenizer_fingerprint(how.tokenizer),
        **({"pair_mark": mark} if samples.text_pairs is not None and (mark := pair_mark(how.tokenizer)) else {}),
        "versions": [tokenizers.__version__, transformers.__version__],
        **settings_of_task,
    }
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    hash_texts(sha, samples.texts)
    hash_texts(sha, samples.text_pairs)
    return sha.hexdigest()


def pair_mark(tokenizer: Any) -> str:
    """Return what has to stand before the second text of a pair: a line break where the tokenizer puts nothing between.

    Tokenizers of BERT's family put a special token there; those of most decoders run the two texts together, and the
    model could not know where the second one begins.
    """
    with state_kept(tokenizer):
        flags = tokenizer("a", "a", return_special_tokens_mask=True)["special_tokens_mask"]
    inner = flags[flags.index(0) : len(flags) - flags[::-1].index(0)] if 0 in flags else flags
    return "" if 1 in inner else "\n"


def hash_texts(sha: Any, texts: list[str] | None) -> None:
    """Feed texts to a hash so that no two different lists feed the same bytes: their count, lengths, then content."""
    if texts is None:
        sha.update(b"none")
        return
    encoded = [text.encode() for text in texts]
    sha.update(len(texts).to_bytes(8, "little"))
    sha.update(np.cumsum([0, *map(len, encoded)], dtype="<i8").tobytes())
    for each in encoded:
        sha.update(each)


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the SHA-256, in hexadecimal, over all that a tokenizer's output depends on."""
    about = [type(tokenizer).__name__, tokenizer.special_tokens_map, tokenizer.truncation_side, len(tokenizer)]
    sha = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        # What the last call left there, and not part of the tokenizer.
        content["truncation"] = content["padding"] = None
        sha.update(json.dumps(content, sort_keys=True).encode())
        return sha.hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                sha.update(file.name.encode() + b"\0" + file.read_bytes())
    return sha.hexdigest()


@contextmanager
def state_kept(tokenizer: Any) -> Iterator[None]:
    """Give a fast tokenizer its truncation and padding back, which calls change and saving would write down."""
    if not tokenizer.is_fast:
        yield
        return
    inner = tokenizer.backend_tokenizer
    truncation, padding = inner.truncation, inner.padding
    try:
        yield
    finally:
        inner.no_truncation() if truncation is None else inner.enable_truncation(**truncation)
        inner.no_padding() if padding is None else inner.enable_padding(**padding)


def encode(
    samples: Samples, part: slice, how: Tokenizing, source: str
) -> tuple[list[list[int]], list[list[int]] | None, list[int]]:
    """Return ids, types (None where the model takes none) and untruncated lengths of a chunk.

    Only samples that are too long are encoded twice.

    Raises:
        DataError: A sample has no tokens, or cannot be truncated as it is asked for.
    """
    texts = samples.texts[part]
    pairs = None if samples.text_pairs is None else samples.text_pairs[part]
    if pairs is not None and (mark := pair_mark(how.tokenizer)):
        pairs = [mark + pair for pair in pairs]
    rows = samples.rows[part]
    max_length, truncation, need_token_type_ids = how.max_length, how.truncation, how.need_token_type_ids

    def call(indices: list[int], **options: Any) -> Any:
        return how.tokenizer(
            [texts[index] for index in indices],
            None if pairs is None else [pairs[index] for index in indices],
            return_attention_mask=False,
            return_token_type_ids=need_token_type_ids,
            verbose=False,  # else it warns of samples that are longer than the model allows, which are truncated below
            **options,
        )

    whole = call(list(range(len(texts))), truncation=False)
    ids, types = whole["input_ids"], whole["token_type_ids"] if need_token_type_ids else None
    full_lengths = [len(row) for row in ids]
    _require_tokens(full_lengths, rows, source)
    long = [index for index, length in enumerate(full_lengths) if length > max_length]
    if long:
        try:
            cut = call(long, truncation=truncation, max_length=max_length)
        except Exception as error:  # the Rust library raises nothing more special
            raise DataError(
                _uncut(source, rows[long], max_length, truncation, str(error)), code="data.cannot_truncate"
            ) from error
        uncut = [index for index, row in zip(long, cut["input_ids"], strict=True) if len(row) > max_length]
        if uncut:  # slow tokenizers log an error and go on
            raise DataError(
                _uncut(source, rows[uncut], max_length, truncation, "they stayed too long"), code="data.cannot_truncate"
            )
        for place, index in enumerate(long):
            ids[index] = cut["input_ids"][place]
            if types is not None:
                types[index] = cut["token_type_ids"][place]
    return ids, types, full_lengths


def _uncut(source: str, rows: Any, max_length: int, truncation: str, reason: str) -> str:
    return (
        f"{source}: samples cannot be truncated to data.max_length {max_length} with data.truncation: {truncation} "
        f"({reason}); among {first_rows(rows.tolist())}; use longest_first, or a larger max_length"
    )


def _require_tokens(lengths: list[int], rows: Any, source: str) -> None:
    empty = np.flatnonzero(np.asarray(lengths) == 0)
    if len(empty):
        raise DataError(
            f"{source}: the tokenizer makes no token of {first_rows(rows[empty].tolist())}; mend or remove such rows",
            code="data.no_tokens",
            source=source,
        )
