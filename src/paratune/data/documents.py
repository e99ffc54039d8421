"""Windows of running text for masked language models, and texts with masks to fill in.

Imports no torch. Dimension: `N` windows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paratune.data.columns import NO_MASK, IntArray, Samples
from paratune.data.token_store import StoreWriter, TokenStore
from paratune.data.tokens import (
    TokenizeOptions,
    cached_store,
    chunks,
    encode,
    require_text_length,
    require_tokens,
    token_fingerprint,
)
from paratune.errors import ConfigError, DataError

Tokens = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Document = tuple[Tokens, Flags]
"""Tokens without special tokens, and which of them begin a word."""
Windows = Literal["joined", "documents"]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The token ids of a tokenizer by their role in masking."""

    mask_id: int
    is_special: Flags
    """(vocabulary size,): whether a token is special ([CLS], [UNK], [MASK], ...); these are never hidden."""
    ordinary: Tokens
    """All other tokens, ascending."""


def mask_vocabulary(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer that has a mask token."""
    ids = np.unique(np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64))
    special = np.asarray(tokenizer.all_special_ids, dtype=np.int64)
    is_special = np.zeros(int(max(ids.max(), special.max())) + 1, dtype=bool)
    is_special[special] = True
    return Vocabulary(int(tokenizer.mask_token_id), is_special, ids[~is_special[ids]])


def check_tokenizer(tokenizer: Any, *, whole_words: bool = False) -> None:
    """Check that a tokenizer has a mask token and, for `whole_words`, returns where words begin.

    Raises:
        ConfigError: It has no mask token, is a slow tokenizer, or treats a whole text as one word.
    """
    if tokenizer.mask_token_id is None or _has_added_mask(tokenizer):
        raise ConfigError(
            f"task.kind: mlm needs a mask token, and the vocabulary of {tokenizer.name_or_path} "
            f"({type(tokenizer).__name__}) has none; use a model that has one (BERT, RoBERTa, DeBERTa, ModernBERT, "
            "...), or set model.tokenizer",
            code="tokenizer.no_mask_token",
            key="task.kind",
            tokenizer=tokenizer.name_or_path,
        )
    if whole_words and not tokenizer.is_fast:
        raise ConfigError(
            f"task.whole_words: true needs a fast tokenizer, which returns where words begin; "
            f"{type(tokenizer).__name__} of {tokenizer.name_or_path} is slow; set model.tokenizer to a folder "
            "with a tokenizer.json, or task.whole_words: false",
            code="tokenizer.slow",
            key="task.whole_words",
            tokenizer=tokenizer.name_or_path,
        )
    if whole_words and set(tokenizer("a b", add_special_tokens=False, verbose=False).word_ids()) == {0}:
        raise ConfigError(
            f"task.whole_words: true needs a tokenizer that first splits a text into words; for "
            f"{type(tokenizer).__name__} of {tokenizer.name_or_path} 'a b' is one word; set task.whole_words: false",
            code="tokenizer.unsupported",
            key="task.whole_words",
            tokenizer=tokenizer.name_or_path,
        )


def _has_added_mask(tokenizer: Any) -> bool:
    """Return whether transformers added the mask token to a WordPiece vocabulary; no model was trained with it.

    Other kinds of vocabularies may keep their own mask token among the added tokens (XLM-R): False.
    """
    if not tokenizer.is_fast or type(tokenizer.backend_tokenizer.model).__name__ != "WordPiece":
        return False
    return tokenizer.mask_token not in tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)


@dataclass(frozen=True)
class _Frame:
    """The special tokens around and inside a window."""

    before: list[int]
    after: list[int]
    between: list[int]
    """Between two documents: the separator token, or the end token where there is none."""

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)


def _frame(tokenizer: Any) -> _Frame:
    """Return the special tokens that a tokenizer puts around a text, found by tokenizing one.

    Raises:
        ConfigError: The tokens of the text alone are not between special tokens in the tokens of the whole text.
    """
    whole = tokenizer("a", verbose=False)["input_ids"]
    inner = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(len(whole) - len(inner) + 1)
    begin = next((at for at in starts if inner and whole[at : at + len(inner)] == inner), None)
    if begin is None or not {*whole[:begin], *whole[begin + len(inner) :]} <= {*tokenizer.all_special_ids}:
        raise ConfigError(
            f"task.kind: mlm puts the special tokens of the tokenizer around windows, but {type(tokenizer).__name__} "
            f"of {tokenizer.name_or_path} gives {inner} for 'a' without special tokens and {whole} with them, which is "
            "not the same tokens between special ones; set model.tokenizer to another tokenizer",
            code="tokenizer.unsupported",
            key="task.kind",
            tokenizer=tokenizer.name_or_path,
        )
    between = next((token for token in (tokenizer.sep_token_id, tokenizer.eos_token_id) if token is not None), None)
    return _Frame(whole[:begin], whole[begin + len(inner) :], [] if between is None else [between])


def make_windows(
    samples: Samples, options: TokenizeOptions, windows: Windows, *, whole_words: bool = False, source: str = "data"
) -> TokenStore:
    """Return the windows of all documents; arguments and errors as in `tokens.tokenize`.

    joined: documents follow each other with a separator token between them, and are cut into windows of `max_length`
    tokens, special tokens included (FULL-SENTENCES, across documents, in the source); the last window has the rest.
    documents: one window for each document, truncated where it is longer.

    Returns:
        The windows. `row_values`: num_maskable (N,), tokens that are not special; document (N,), the sample in which
        the window begins; for whole words smallest_word (N,), tokens of the shortest word, 0 without words.
        `token_values`, for whole words: word_start, 1 where a word begins, or the rest of a word that a cut divides.

    Source: Liu et al., RoBERTa, arXiv:1907.11692, section 4.2.
    """
    frame = _frame(options.tokenizer)
    require_text_length(options, frame.size)

    def write(writer: StoreWriter) -> None:
        content_length = options.max_length - frame.size
        out = _WindowWriter(writer, options, frame, content_length=content_length, whole_words=whole_words)
        parts = (
            _document_tokens(samples, part, options, source, whole_words) for part in chunks(samples, options, source)
        )
        if windows == "joined":
            _write_joined(out, parts, frame.between)
        else:
            _write_documents(out, parts)

    word_settings = "word_start, smallest_word" if whole_words else False
    fingerprint = token_fingerprint(samples, options, windows=windows, whole_words=word_settings)
    token_values = {"word_start": "|u1"} if whole_words else None
    return cached_store(fingerprint, options, write, source=source, token_values=token_values)


def _document_tokens(
    samples: Samples, part: slice, options: TokenizeOptions, source: str, whole_words: bool
) -> list[Document]:
    """Return the documents of a chunk; without `whole_words`, no token begins a word."""
    encoded = options.tokenizer(
        samples.texts[part],
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    documents = [np.asarray(ids, dtype=np.int64) for ids in encoded["input_ids"]]
    require_tokens(list(map(len, documents)), samples.rows[part], source)
    if not whole_words:
        return [(tokens, np.zeros(len(tokens), dtype=bool)) for tokens in documents]
    return [(tokens, _word_starts(encoded.word_ids(number))) for number, tokens in enumerate(documents)]


def _word_starts(word_ids: list[int | None]) -> Flags:
    """Return which tokens belong to another word than the token before."""
    numbers = np.asarray([-1 if number is None else number for number in word_ids], dtype=np.int64)
    return np.concatenate([[True], (numbers[1:] != numbers[:-1]) | (numbers[1:] < 0)])


class _WindowWriter:
    """Puts special tokens around the content of windows and adds the windows to a store."""

    def __init__(
        self, writer: StoreWriter, options: TokenizeOptions, frame: _Frame, *, content_length: int, whole_words: bool
    ) -> None:
        self._writer, self._options, self._frame, self._whole_words = writer, options, frame, whole_words
        self._is_special = mask_vocabulary(options.tokenizer).is_special
        self._num_maskable: list[int] = []
        self._smallest_word: list[int] = []
        self.content_length = content_length
        """Most tokens of a window without its special tokens."""
        self.keeps_end = options.tokenizer.truncation_side == "left"

    def write(self, contents: list[Document], full_lengths: list[int] | None = None) -> None:
        """Add windows, from their tokens without special tokens.

        `full_lengths` are the tokens of each content before truncation; the same as in `contents` when not given.
        """
        before, after = self._frame.before, self._frame.after
        ids = [[*before, *tokens.tolist(), *after] for tokens, _ in contents]
        self._num_maskable += [int((~self._is_special[tokens]).sum()) for tokens, _ in contents]
        starts = None
        if self._whole_words:
            # Each special token is a separate word. So is the rest of a word that a cut divides: it begins a window.
            starts = [
                [*[1] * len(before), 1, *flags[1:].astype(int).tolist(), *[1] * len(after)] for _, flags in contents
            ]
            self._smallest_word += [self._shortest(tokens, flags) for tokens, flags in contents]
        types = [[0] * len(row) for row in ids] if self._options.need_token_type_ids else None
        lengths = [len(tokens) for tokens, _ in contents] if full_lengths is None else full_lengths
        with_special = [length + self._frame.size for length in lengths]
        self._writer.add(ids, types, with_special, {"word_start": starts} if starts is not None else None)

    def _shortest(self, tokens: Tokens, flags: Flags) -> int:
        """Return the tokens of the shortest word of a window, without special tokens; 0 where all are special."""
        begins = np.union1d([0], np.flatnonzero(flags))
        sizes = np.add.reduceat((~self._is_special[tokens]).astype(np.int64), begins)
        return int(sizes[sizes > 0].min(initial=len(tokens))) if sizes.any() else 0

    def finish(self, document: IntArray) -> None:
        """Finish the store; `document` is (N,), the document in which each window begins."""
        values: dict[str, npt.NDArray[Any]] = {
            "num_maskable": np.asarray(self._num_maskable, dtype=np.int32),
            "document": document,
        }
        if self._whole_words:
            values["smallest_word"] = np.asarray(self._smallest_word, dtype=np.int32)
        self._writer.finish(self._options.max_length, values)


def _write_documents(out: _WindowWriter, parts: Iterable[list[Document]]) -> None:
    """Write a window for each document, truncated on the side that the tokenizer truncates."""
    first_kept = slice(-out.content_length, None) if out.keeps_end else slice(out.content_length)
    num_documents = 0
    for documents in parts:
        contents = [(tokens[first_kept], flags[first_kept]) for tokens, flags in documents]
        out.write(contents, [len(tokens) for tokens, _ in documents])
        num_documents += len(documents)
    out.finish(np.arange(num_documents, dtype=np.int64))


def _write_joined(out: _WindowWriter, parts: Iterable[list[Document]], between: list[int]) -> None:
    """Write windows of documents that follow each other, with the tokens `between` them.

    Tokens that do not fill a window wait for the next documents; only the last window may be shorter.
    """
    separator = np.asarray(between, dtype=np.int64), np.ones(len(between), dtype=bool)
    tokens, flags = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    num_written = 0
    begins: list[int] = []  # position of each document in the stream of all tokens
    for documents in parts:
        pieces, length = [(tokens, flags)], len(tokens)
        for document in documents:
            if begins:
                pieces.append(separator)
                length += len(between)
            begins.append(num_written + length)
            pieces.append(document)
            length += len(document[0])
        tokens, flags = (np.concatenate(values) for values in zip(*pieces, strict=True))
        num_full = length // out.content_length * out.content_length
        out.write(_cut(tokens[:num_full], flags[:num_full], out.content_length))
        tokens, flags = tokens[num_full:], flags[num_full:]
        num_written += num_full
    out.write(_cut(tokens, flags, out.content_length))
    starts = np.arange(0, num_written + len(tokens), out.content_length)
    out.finish(np.searchsorted(begins, starts, side="right").astype(np.int64) - 1)


def _cut(tokens: Tokens, flags: Flags, size: int) -> list[Document]:
    """Return the tokens in pieces of `size`, the last one with the rest."""
    return [(tokens[start : start + size], flags[start : start + size]) for start in range(0, len(tokens), size)]


def make_questions(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> tuple[Samples, TokenStore]:
    """Return texts with mask tokens, and their tokens once for each mask; arguments as in `tokens.tokenize`.

    Returns:
        The samples whose masks are all within the first `max_length` tokens, with the others dropped as "mask"; and a
        store with `row_values` document (N,), the position of the text in these samples, and asked (N,), the position
        of the mask in the tokens of the text.

    Raises:
        DataError: No text has a mask token.
    """
    mask_id = options.tokenizer.mask_token_id

    def write(writer: StoreWriter) -> None:
        document, asked = [], []
        for part in chunks(samples, options, source):
            texts, types, lengths = encode(samples, part, options, source)
            for number, ids in enumerate(texts):
                positions = [position for position, token in enumerate(ids) if token == mask_id]
                if lengths[number] > len(ids) and _num_masks(samples.texts[part][number], options) > len(positions):
                    continue  # truncation removed a mask: only a part of the text could be filled in
                copies = len(positions)
                repeated_types = None if types is None else [types[number]] * copies
                writer.add([ids] * copies, repeated_types, [lengths[number]] * copies)
                document += [part.start + number] * copies
                asked += positions
        if not asked:
            raise DataError(
                f"{source}: no text has the mask token of this model, {options.tokenizer.mask_token}, with all of its "
                f"masks within {options.max_length} tokens; write it in the places of the words to fill in",
                code="data.no_tokens",
                source=source,
                max_length=options.max_length,
            )
        row_values = {"document": np.asarray(document, dtype=np.int64), "asked": np.asarray(asked, dtype=np.int64)}
        writer.finish(options.max_length, row_values)

    fingerprint = token_fingerprint(samples, options, windows="questions, whole")
    store = cached_store(fingerprint, options, write, source=source)
    with_masks = np.unique(store.row_values["document"])
    without = len(samples) - len(with_masks)
    num_dropped = {**samples.num_dropped, **({NO_MASK: without} if without else {})}
    return samples.take(with_masks, num_dropped=num_dropped), store


def _num_masks(text: str, options: TokenizeOptions) -> int:
    ids: list[int] = options.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids.count(options.tokenizer.mask_token_id)
