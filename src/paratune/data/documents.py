"""Windows of running text for masked language models, and texts with masks to fill in.

Imports no torch. Dimension: `N` windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paratune.data.columns import NO_MASK, Samples
from paratune.data.token_store import TokenStore
from paratune.data.tokens import (
    Encoded,
    TokenizeOptions,
    encode,
    require_text_length,
    require_tokens,
    tokenize_with,
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
    kind, name = type(tokenizer).__name__, tokenizer.name_or_path
    has_mask = tokenizer.mask_token_id is not None
    if has_mask and tokenizer.is_fast and type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece":
        # Else transformers added the mask token to the vocabulary; no model was trained with it. Other kinds of
        # vocabularies may keep their own mask token among the added tokens (XLM-R).
        has_mask = tokenizer.mask_token in tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    if not has_mask:
        message = (
            f"task.kind: mlm needs a mask token, and the vocabulary of {name} ({kind}) has none; use a model that has "
            "one (BERT, RoBERTa, DeBERTa, ModernBERT, ...), or set model.tokenizer"
        )
        raise ConfigError(message, code="tokenizer.token_missing", key="task.kind", tokenizer=name)
    if whole_words and not tokenizer.is_fast:
        message = (
            f"task.whole_words: true needs a fast tokenizer, which returns where words begin; {kind} of {name} is "
            "slow; set model.tokenizer to a folder with a tokenizer.json, or task.whole_words: false"
        )
        raise ConfigError(message, code="tokenizer.unsupported", key="task.whole_words", tokenizer=name)
    if whole_words and set(tokenizer("a b", add_special_tokens=False, verbose=False).word_ids()) == {0}:
        message = (
            "task.whole_words: true needs a tokenizer that first splits a text into words; for "
            f"{kind} of {name} 'a b' is one word; set task.whole_words: false"
        )
        raise ConfigError(message, code="tokenizer.unsupported", key="task.whole_words", tokenizer=name)


def _frame(tokenizer: Any) -> tuple[list[int], list[int], list[int]]:
    """Return the special tokens before and after a text, found by tokenizing one, and those between two documents.

    Between two documents is the separator token, or the end token where there is none.

    Raises:
        ConfigError: The tokens of the text alone are not between special tokens in the tokens of the whole text.
    """
    whole = tokenizer("a", verbose=False)["input_ids"]
    inner = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(len(whole) - len(inner) + 1)
    begin = next((at for at in starts if inner and whole[at : at + len(inner)] == inner), None)
    if begin is None or not {*whole[:begin], *whole[begin + len(inner) :]} <= {*tokenizer.all_special_ids}:
        message = (
            f"task.kind: mlm puts the special tokens of the tokenizer around windows, but {type(tokenizer).__name__} "
            f"of {tokenizer.name_or_path} gives {inner} for 'a' without special tokens and {whole} with them, which is "
            "not the same tokens between special ones; set model.tokenizer to another tokenizer"
        )
        raise ConfigError(message, code="tokenizer.unsupported", key="task.kind", tokenizer=tokenizer.name_or_path)
    between = next((token for token in (tokenizer.sep_token_id, tokenizer.eos_token_id) if token is not None), None)
    return whole[:begin], whole[begin + len(inner) :], [] if between is None else [between]


def make_windows(
    samples: Samples, options: TokenizeOptions, windows: Windows, *, whole_words: bool = False, source: str = "data"
) -> TokenStore:
    """Return the windows of all documents; arguments and errors as in `tokens.tokenize`.

    joined: documents follow each other with a separator token between them, and are cut into windows of `max_length`
    tokens, special tokens included (FULL-SENTENCES, across documents, in the source); the last window has the rest.
    documents: one window for each document, truncated where it is longer.

    `row_values` are num_maskable (N,), tokens that are not special, and document (N,), the sample in which the window
    begins; `token_values`, for whole words: word_start, 1 where a word begins, or the rest of one that a cut divides.

    Source: Liu et al., RoBERTa, arXiv:1907.11692, section 4.2.
    """
    before, after, between = _frame(options.tokenizer)
    num_special = len(before) + len(after)
    require_text_length(options, num_special)
    size = options.max_length - num_special
    is_special = mask_vocabulary(options.tokenizer).is_special
    stream = _Stream(size, between)
    kept = slice(-size, None) if options.tokenizer.truncation_side == "left" else slice(size)

    def encode_part(part: slice) -> Encoded:
        contents = _document_tokens(samples, part, options, source, whole_words)
        full_lengths = [len(tokens) + num_special for tokens, _ in contents]
        document: Sequence[int] = range(part.start, part.stop)
        if windows == "joined":
            contents, document = stream.cut(contents, is_last=part.stop == len(samples))
            full_lengths = [len(tokens) + num_special for tokens, _ in contents]
        else:
            contents = [(tokens[kept], flags[kept]) for tokens, flags in contents]
        ids = [[*before, *tokens.tolist(), *after] for tokens, _ in contents]
        num_maskable = [int((~is_special[tokens]).sum()) for tokens, _ in contents]
        out = Encoded(ids, [[0] * len(row) for row in ids], full_lengths)
        out.row_values = {"num_maskable": num_maskable, "document": list(document)}
        if whole_words:
            # Each special token is a separate word. So is the rest of a word that a cut divides: it begins a window.
            out.token_values["word_start"] = [
                [*[1] * len(before), 1, *flags[1:].astype(int).tolist(), *[1] * len(after)] for _, flags in contents
            ]
        return out

    kinds = {"num_maskable": "<i4", "document": "<i8"}
    arrays: dict[str, Any] = {"token_values": {"word_start": "|u1"} if whole_words else None, "row_values": kinds}
    return tokenize_with(
        encode_part, samples, options, source=source, **arrays, windows=windows, whole_words=whole_words
    )  # fmt: skip


def _document_tokens(
    samples: Samples, part: slice, options: TokenizeOptions, source: str, whole_words: bool
) -> list[Document]:
    """Return the documents of a chunk; without `whole_words`, no token begins a word."""
    limits = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    encoded = options.tokenizer(samples.texts[part], verbose=False, **limits)
    documents = [np.asarray(ids, dtype=np.int64) for ids in encoded["input_ids"]]
    require_tokens(list(map(len, documents)), samples.rows[part], source)
    if not whole_words:
        return [(tokens, np.zeros(len(tokens), dtype=bool)) for tokens in documents]
    flags = []
    for number in range(len(documents)):
        words = np.asarray([-1 if word is None else word for word in encoded.word_ids(number)], dtype=np.int64)
        flags.append(np.concatenate([[True], (words[1:] != words[:-1]) | (words[1:] < 0)]))
    return list(zip(documents, flags, strict=True))


class _Stream:
    """Documents that follow each other with the tokens `between` them, cut into windows of `size` tokens.

    Tokens that do not fill a window wait for the next documents; only the last window may be shorter.
    """

    def __init__(self, size: int, between: list[int]) -> None:
        self._size = size
        self._between = np.asarray(between, dtype=np.int64), np.ones(len(between), dtype=bool)
        self._rest: Document = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
        self._num_cut = 0
        self._begins: list[int] = []
        """Position in the stream of each document from `_first` on, whose end may not be cut yet."""
        self._first = 0

    def cut(self, documents: list[Document], *, is_last: bool) -> tuple[list[Document], list[int]]:
        """Return the windows that documents fill, and the number of the document in which each begins."""
        pieces, length = [self._rest], len(self._rest[0])
        for document in documents:
            if self._begins:
                pieces.append(self._between)
                length += len(self._between[0])
            self._begins.append(self._num_cut + length)
            pieces.append(document)
            length += len(document[0])
        tokens, flags = (np.concatenate(values) for values in zip(*pieces, strict=True))
        num_new = length if is_last else length // self._size * self._size
        starts = np.arange(0, num_new, self._size)
        windows = [(tokens[start : start + self._size], flags[start : start + self._size]) for start in starts]
        begins = np.searchsorted(self._begins, [*(starts + self._num_cut), self._num_cut + num_new], side="right") - 1
        numbers = (begins + self._first).tolist()
        self._rest = tokens[num_new:], flags[num_new:]
        self._num_cut += num_new
        self._begins, self._first = self._begins[begins[-1] :], numbers[-1]
        return windows, numbers[:-1]


def make_questions(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> tuple[Samples, TokenStore]:
    """Return texts with mask tokens, and their tokens once for each mask; arguments as in `tokens.tokenize`.

    Returns:
        The samples whose masks are all within the first `max_length` tokens, with the others dropped as "mask"; and a
        store with `row_values` document (N,), the position of the text in these samples, and asked (N,), the position
        of the mask in the tokens of the text.

    Raises:
        DataError: No text has a mask token.
    """
    tokenizer, has_masks = options.tokenizer, False

    def encode_part(part: slice) -> Encoded:
        nonlocal has_masks
        out = Encoded(row_values={"document": [], "asked": []})
        rows, types, lengths = encode(samples, part, options, source)
        for number, ids in enumerate(rows):
            positions = [position for position, token in enumerate(ids) if token == tokenizer.mask_token_id]
            if lengths[number] > len(ids):
                whole = tokenizer(samples.texts[part][number], add_special_tokens=False, verbose=False)["input_ids"]
                if whole.count(tokenizer.mask_token_id) > len(positions):
                    continue  # truncation removed a mask: only a part of the text could be filled in
            for position in positions:
                out.ids.append(ids)
                out.type_ids += [] if types is None else [types[number]]
                out.full_lengths.append(lengths[number])
                out.row_values["document"].append(part.start + number)
                out.row_values["asked"].append(position)
        has_masks = has_masks or bool(out.ids)
        if part.stop == len(samples) and not has_masks:
            message = (
                f"{source}: no text has the mask token of this model, {tokenizer.mask_token}, with all of its "
                f"masks within {options.max_length} tokens; write it in the places of the words to fill in"
            )
            raise DataError(message, code="data.no_tokens", source=source, max_length=options.max_length)
        return out

    kinds = {"document": "<i8", "asked": "<i8"}
    store = tokenize_with(encode_part, samples, options, source=source, row_values=kinds, windows="questions, whole")
    with_masks = np.unique(store.row_values["document"])
    without = len(samples) - len(with_masks)
    num_dropped = {**samples.num_dropped, **({NO_MASK: without} if without else {})}
    return samples.take(with_masks, num_dropped=num_dropped), store
