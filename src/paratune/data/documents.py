"""From running text to windows: documents joined and cut, or each in a window of its own; and texts with masks to fill.

Floor 3, without torch. `N` windows.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paratune.data.columns import NO_MASK, IntArray, Samples
from paratune.data.labels import first_rows
from paratune.data.token_store import StoreWriter, TokenStore
from paratune.data.tokens import Tokenizing, cached_store, chunks, encode, token_fingerprint
from paratune.errors import ConfigError, DataError

Tokens = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Windows = Literal["joined", "documents"]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What hiding tokens has to know of a tokenizer."""

    mask_id: int
    """The token that hides another."""
    is_special: Flags
    """(vocabulary size,): whether a token stands for no text ([CLS], [UNK], [MASK], ...); never hidden."""
    ordinary: Tokens
    """All others, ascending."""


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return what hiding tokens has to know of a tokenizer, which has a mask token."""
    ids = np.unique(np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64))
    special = np.asarray(tokenizer.all_special_ids, dtype=np.int64)
    is_special = np.zeros(int(max(ids.max(), special.max())) + 1, dtype=bool)
    is_special[special] = True
    return Vocabulary(int(tokenizer.mask_token_id), is_special, ids[~is_special[ids]])


def check_tokenizer(tokenizer: Any, *, whole_words: bool = False) -> None:
    """Look whether a tokenizer can do what a masked LM needs.

    Raises:
        ConfigError: It has no mask token, or does not say where words begin, or takes a whole text for one word.
    """
    if tokenizer.mask_token_id is None or _is_made_up(tokenizer):
        raise ConfigError(
            f"task.kind: mlm hides tokens behind a mask token, and the vocabulary of {tokenizer.name_or_path} "
            f"({type(tokenizer).__name__}) has none; take a model that has one (BERT, RoBERTa, DeBERTa, ModernBERT, "
            "...), or set model.tokenizer",
            code="tokenizer.no_mask_token",
            key="task.kind",
            tokenizer=tokenizer.name_or_path,
        )
    if whole_words and not tokenizer.is_fast:
        raise ConfigError(
            f"task.whole_words: true needs a fast tokenizer, which says where words begin, and "
            f"{type(tokenizer).__name__} of {tokenizer.name_or_path} is a slow one; set model.tokenizer to a folder "
            "with a tokenizer.json, or task.whole_words: false",
            code="tokenizer.slow",
            key="task.whole_words",
            tokenizer=tokenizer.name_or_path,
        )
    if whole_words and set(tokenizer("a b", add_special_tokens=False, verbose=False).word_ids()) == {0}:
        raise ConfigError(
            f"task.whole_words: true needs a tokenizer that cuts a text into words first, and to "
            f"{type(tokenizer).__name__} of {tokenizer.name_or_path} 'a b' is one word; set task.whole_words: false",
            code="tokenizer.unsupported",
            key="task.whole_words",
            tokenizer=tokenizer.name_or_path,
        )


def _is_made_up(tokenizer: Any) -> bool:
    """Say whether transformers added the mask token to a WordPiece vocabulary, as a token that no model has seen.

    Vocabularies of other kinds may hold theirs beside the pieces (XLM-R), so that nothing can be told of them.
    """
    if not tokenizer.is_fast or type(tokenizer.backend_tokenizer.model).__name__ != "WordPiece":
        return False
    return tokenizer.mask_token not in tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)


@dataclass(frozen=True)
class _Frame:
    """The special tokens of a window."""

    before: list[int]
    after: list[int]
    between: list[int]
    """What stands between two documents: the separator token, or the end token where there is none."""

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)


def _frame(tokenizer: Any) -> _Frame:
    """Find what a tokenizer puts around a text, by trying it: no two say it in the same way.

    Raises:
        ConfigError: The text is not found between special tokens.
    """
    whole = tokenizer("a", verbose=False)["input_ids"]
    inner = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(len(whole) - len(inner) + 1)
    begin = next((at for at in starts if inner and whole[at : at + len(inner)] == inner), None)
    if begin is None or not {*whole[:begin], *whole[begin + len(inner) :]} <= {*tokenizer.all_special_ids}:
        raise ConfigError(
            f"task.kind: mlm puts special tokens around windows as the tokenizer does, and what "
            f"{type(tokenizer).__name__} of {tokenizer.name_or_path} makes of 'a' alone, {inner}, is not found between "
            f"special tokens in what it makes of it as a whole text, {whole}; set model.tokenizer to another one",
            code="tokenizer.unsupported",
            key="task.kind",
            tokenizer=tokenizer.name_or_path,
        )
    between = next((token for token in (tokenizer.sep_token_id, tokenizer.eos_token_id) if token is not None), None)
    return _Frame(whole[:begin], whole[begin + len(inner) :], [] if between is None else [between])


def make_windows(
    samples: Samples, how: Tokenizing, windows: Windows, *, whole_words: bool = False, source: str = "data"
) -> TokenStore:
    """Return the windows of all documents, made now or found in the cache.

    joined: the documents stand one after another, a separator token between two of them, and are cut every
    `max_length` tokens less the special ones that frame each window (FULL-SENTENCES, across documents, of the source);
    the last window has what is left. documents: a window for each, truncated where it is longer.

    Args:
        samples: Documents; at least one.
        how: Tokenizer, limits, cache.
        windows: Which of the two.
        whole_words: Whether to keep where words begin.
        source: Name of the samples in messages.

    Returns:
        The windows; `of_rows` has num_maskable (N,), the tokens that are not special, and document (N,), the sample in
        which the window begins; `of_tokens` has, for whole words, word_start: 1 where a word, or what is left of it at
        the begin of a window, begins; and `of_rows` smallest_word (N,), the tokens of the shortest word, 0 without any.

    Raises:
        ConfigError: `how.max_length` leaves no room for text, or the tokenizer frames texts in no known way.
        DataError: The tokenizer makes no token of a document, or the cache cannot be written.
        Stopped: `how.stop` said so; nothing half-made is left.

    Source: Liu et al., RoBERTa, arXiv:1907.11692, section 4.2.
    """
    frame = _frame(how.tokenizer)
    room = how.max_length - frame.size
    if room < 1:
        raise ConfigError(
            f"data.max_length {how.max_length} leaves no room for text beside {frame.size} special tokens; "
            f"at least {frame.size + 1} is needed",
            code="data.max_length_too_small",
            key="data.max_length",
            value=how.max_length,
        )
    make = _Joined if windows == "joined" else _Apart

    def write(writer: StoreWriter) -> None:
        made = make(writer, how, frame, room, whole_words)
        for part in chunks(samples, how, source):
            made.add(_document_tokens(samples, part, how, source, whole_words))
        made.finish()

    kept = "word_start, smallest_word" if whole_words else False
    fingerprint = token_fingerprint(samples, how, windows=windows, whole_words=kept)
    of_tokens = {"word_start": "|u1"} if whole_words else None
    return cached_store(fingerprint, how, write, source=source, of_tokens=of_tokens)


def _document_tokens(
    samples: Samples, part: slice, how: Tokenizing, source: str, whole_words: bool
) -> list[tuple[Tokens, Flags]]:
    """Return of each document its tokens, without special ones, and where words begin (nowhere, if not asked)."""
    encoded = how.tokenizer(
        samples.texts[part],
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    documents = [np.asarray(ids, dtype=np.int64) for ids in encoded["input_ids"]]
    empty = [int(row) for row, tokens in zip(samples.rows[part], documents, strict=True) if len(tokens) == 0]
    if empty:
        raise DataError(
            f"{source}: the tokenizer makes no token of {first_rows(empty)}; mend or remove such rows",
            code="data.no_tokens",
            source=source,
        )
    if not whole_words:
        return [(tokens, np.zeros(len(tokens), dtype=bool)) for tokens in documents]
    return [(tokens, _word_starts(encoded.word_ids(number))) for number, tokens in enumerate(documents)]


def _word_starts(word_ids: list[int | None]) -> Flags:
    """Return which tokens are not of the same word as the one before."""
    numbers = np.asarray([-1 if number is None else number for number in word_ids], dtype=np.int64)
    return np.concatenate([[True], (numbers[1:] != numbers[:-1]) | (numbers[1:] < 0)])


class _Writer:
    """Frames windows and adds them to a store."""

    def __init__(self, writer: StoreWriter, how: Tokenizing, frame: _Frame, room: int, whole_words: bool) -> None:
        self._writer, self._how, self._frame, self._room, self._whole_words = writer, how, frame, room, whole_words
        self._is_special = vocabulary_of(how.tokenizer).is_special
        self._num_maskable: list[int] = []
        self._smallest_word: list[int] = []

    def write(self, contents: list[tuple[Tokens, Flags]], full_lengths: list[int]) -> None:
        """Add windows by the tokens between their special ones."""
        before, after = self._frame.before, self._frame.after
        ids = [[*before, *tokens.tolist(), *after] for tokens, _ in contents]
        self._num_maskable += [int((~self._is_special[tokens]).sum()) for tokens, _ in contents]
        starts = None
        if self._whole_words:
            # A special token, and what a cut has left of a word, are words of their own.
            starts = [
                [*[1] * len(before), 1, *flags[1:].astype(int).tolist(), *[1] * len(after)] for _, flags in contents
            ]
            self._smallest_word += [self._smallest(tokens, flags) for tokens, flags in contents]
        types = [[0] * len(row) for row in ids] if self._how.need_token_type_ids else None
        self._writer.add(ids, types, full_lengths, {"word_start": starts} if starts is not None else None)

    def _smallest(self, tokens: Tokens, flags: Flags) -> int:
        """Return the tokens of the shortest word of a window, special ones not counted; 0 where all are special."""
        begins = np.union1d([0], np.flatnonzero(flags))
        sizes = np.add.reduceat((~self._is_special[tokens]).astype(np.int64), begins)
        return int(sizes[sizes > 0].min(initial=len(tokens))) if sizes.any() else 0

    def finish(self, document: IntArray) -> None:
        num_maskable = np.asarray(self._num_maskable, dtype=np.int32)
        of_rows: dict[str, npt.NDArray[Any]] = {"num_maskable": num_maskable, "document": document}
        if self._whole_words:
            of_rows["smallest_word"] = np.asarray(self._smallest_word, dtype=np.int32)
        self._writer.finish(self._how.max_length, of_rows)


class _Apart:
    """A window for each document."""

    def __init__(self, writer: StoreWriter, how: Tokenizing, frame: _Frame, room: int, whole_words: bool) -> None:
        self._out = _Writer(writer, how, frame, room, whole_words)
        self._frame_size, self._num_documents = frame.size, 0
        self._kept = slice(-room, None) if how.tokenizer.truncation_side == "left" else slice(room)

    def add(self, documents: list[tuple[Tokens, Flags]]) -> None:
        lengths = [len(tokens) + self._frame_size for tokens, _ in documents]
        self._out.write([(tokens[self._kept], flags[self._kept]) for tokens, flags in documents], lengths)
        self._num_documents += len(documents)

    def finish(self) -> None:
        self._out.finish(np.arange(self._num_documents, dtype=np.int64))


class _Joined:
    """Documents one after another, cut into windows; what does not fill one waits for the next documents."""

    def __init__(self, writer: StoreWriter, how: Tokenizing, frame: _Frame, room: int, whole_words: bool) -> None:
        self._out = _Writer(writer, how, frame, room, whole_words)
        self._frame, self._room = frame, room
        self._waiting: list[tuple[Tokens, Flags]] = []
        self._num_waiting = self._num_written = 0
        """Tokens."""
        self._begins: list[int] = []
        """Tokens before each document."""

    def add(self, documents: list[tuple[Tokens, Flags]]) -> None:
        for tokens, flags in documents:
            if self._begins and self._frame.between:
                between = np.asarray(self._frame.between, dtype=np.int64)
                self._wait(between, np.ones(len(between), dtype=bool))
            self._begins.append(self._num_written + self._num_waiting)
            self._wait(tokens, flags)
        self._cut(self._num_waiting // self._room * self._room)

    def finish(self) -> None:
        self._cut(self._num_waiting)
        starts = np.arange(0, self._num_written, self._room)
        self._out.finish(np.searchsorted(self._begins, starts, side="right").astype(np.int64) - 1)

    def _wait(self, tokens: Tokens, flags: Flags) -> None:
        self._waiting.append((tokens, flags))
        self._num_waiting += len(tokens)

    def _cut(self, num_tokens: int) -> None:
        """Write the first tokens that wait, in windows."""
        tokens, flags = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        edges = np.arange(self._room, num_tokens, self._room)
        contents = list(zip(np.split(tokens[:num_tokens], edges), np.split(flags[:num_tokens], edges), strict=True))
        if num_tokens:
            lengths = [len(part) + self._frame.size for part, _ in contents]
            self._out.write(contents, lengths)
        self._waiting = [(tokens[num_tokens:], flags[num_tokens:])]
        self._num_waiting -= num_tokens
        self._num_written += num_tokens


def make_questions(samples: Samples, how: Tokenizing, *, source: str = "data") -> tuple[Samples, TokenStore]:
    """Return the texts that hold mask tokens, and their tokens once for each mask.

    Args:
        samples: Texts; at least one.
        how: Tokenizer, limits, cache.
        source: Name of the samples in messages.

    Returns:
        Those of `samples` with masks, all of them within their first `max_length` tokens, the others counted by "mask";
        and a store whose `of_rows` has document (N,), the position of the text among them, and asked (N,), that of the
        mask among its tokens.

    Raises:
        DataError: No text has one.
        Stopped: `how.stop` said so.
    """
    mask_id = how.tokenizer.mask_token_id

    def write(writer: StoreWriter) -> None:
        document, asked = [], []
        for part in chunks(samples, how, source):
            texts, types, lengths = encode(samples, part, how, source)
            for number, ids in enumerate(texts):
                places = [place for place, token in enumerate(ids) if token == mask_id]
                if lengths[number] > len(ids) and _num_masks(samples.texts[part][number], how) > len(places):
                    continue  # what is asked for would be answered in part
                again = None if types is None else [types[number]] * len(places)
                writer.add([ids] * len(places), again, [lengths[number]] * len(places))
                document += [part.start + number] * len(places)
                asked += places
        if not asked:
            raise DataError(
                f"{source}: no text holds the mask token of this model, {how.tokenizer.mask_token}, within "
                f"{how.max_length} tokens, with all of its masks; write it where a word is to be filled in",
                code="data.no_tokens",
                source=source,
                max_length=how.max_length,
            )
        of_rows = {"document": np.asarray(document, dtype=np.int64), "asked": np.asarray(asked, dtype=np.int64)}
        writer.finish(how.max_length, of_rows)

    fingerprint = token_fingerprint(samples, how, windows="questions, whole")
    store = cached_store(fingerprint, how, write, source=source)
    found = np.unique(store.of_rows["document"])
    without = len(samples) - len(found)
    num_dropped = {**samples.num_dropped, **({NO_MASK: without} if without else {})}
    return samples.take(found, num_dropped=num_dropped), store


def _num_masks(text: str, how: Tokenizing) -> int:
    ids: list[int] = how.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids.count(how.tokenizer.mask_token_id)
