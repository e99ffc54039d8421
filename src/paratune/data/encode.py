"""The sequences of tokens of rows: for each kind of task the texts that are encoded, how long ones are cut, and groups.

`LAYOUTS` has them as a table. Imports no torch. Dimensions: `N` samples, `Q` sequences, `n` tokens of a context.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from paratune.base.token_characters import token_characters
from paratune.config.task_sections import MaskedLMTask, Task
from paratune.data.columns import IntArray, Samples
from paratune.data.labels import first_rows
from paratune.data.token_store import DROPPED_WINDOWS, EXAMPLE, TokenStore
from paratune.data.tokenizers import (
    PAIRED_TEXT,
    cut_long_texts,
    mask_vocabulary,
    num_tokens,
    pair_separator,
    require_fast,
    special_frame,
)
from paratune.errors import ConfigError, DataError

Truncation = Literal["longest_first", "only_first", "only_second", "head_tail"]
Progress = Callable[[int, int], None]
"""Called with the number of tokenized samples and of all samples, after each chunk."""
Stop = Callable[[], bool]

WORD: Final = "word"
"""(num_tokens,), int32: the word of its sentence that begins with a token; -1 for other tokens."""
WORD_START: Final = "word_start"
"""(num_tokens,), uint8: 1 where a word begins, or the rest of one that a cut divides."""
CHAR_START: Final = "char_start"
CHAR_END: Final = "char_end"
"""(num_tokens,), int32: first character of a token in the context and the character after its last, without white
space around them; -1 for tokens outside the context."""
BOUNDS: Final = "bounds"
"""(Q, 3), int32: the token for "no answer", the first token of the context, and the token after its last."""
NUM_MASKABLE: Final = "num_maskable"
"""(Q,), int32: tokens of a window that are not special."""
WINDOW: Final = "window"
"""(Q,), int32, `task.windows: separate` only: the window of a piece of a document."""
ASKED: Final = "asked"
"""(Q,), int64: the position in a sequence of the mask that is to be filled in."""


@dataclass(frozen=True)
class TokenizeOptions:
    """Options of `tokens.tokenize`: tokenizer, limits, cache and callbacks."""

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


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of a split that are encoded, and how."""

    samples: Samples
    """A sample for each text, or pair of texts, that is encoded."""
    options: TokenizeOptions
    task: Any
    """A `Task`; None for texts, or pairs, that are truncated."""
    source: str
    """Name of the file in messages."""

    def mark(self) -> str:
        """Return the text between the texts of a pair; "" for single texts."""
        return "" if self.samples.text_pairs is None else pair_separator(self.options.tokenizer)

    def require_tokens(self, part: slice, lengths: Sequence[int], *, what: str = "") -> None:
        """Raise a `DataError` that names the rows of a chunk whose texts (`what`) have no tokens."""
        if len(empty := np.flatnonzero(np.asarray(lengths) == 0)):
            texts = f"{what}{first_rows(self.samples.rows[part][empty].tolist())}"
            message = f"{self.source}: the tokenizer returns no tokens for {texts}; correct or remove such rows"
            raise DataError(message, code="data.no_tokens", source=self.source)


@dataclass
class Sequences:
    """The sequences of a chunk of texts, with values of them and of their tokens."""

    ids: list[list[int]] = field(default_factory=list)
    type_ids: list[list[int]] = field(default_factory=list)
    """Not used where the model takes none."""
    full_lengths: list[int] = field(default_factory=list)
    """Tokens of each sequence before truncation."""
    token_values: dict[str, list[list[int]]] = field(default_factory=dict)
    row_values: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenLayout:
    """How the rows of a task become sequences: a row of the table `LAYOUTS`."""

    encode: Callable[[Texts, Iterator[slice]], Iterator[Sequences]]
    """Yields the sequences of each chunk of texts, in order, with long texts cut."""
    texts: Callable[[Samples], tuple[Samples, IntArray | None]] = lambda samples: (samples, None)
    """Returns a sample for each text, and the number of them for each row, (N,); None where each row is one."""
    token_values: Mapping[str, str] = field(default_factory=dict)
    row_values: Mapping[str, str] = field(default_factory=dict)
    """Dtypes of the values of tokens, and of sequences, by name."""
    settings: Callable[[Texts], dict[str, Any]] = lambda texts: {}
    """What the sequences depend on besides texts, tokenizer and lengths, for the fingerprint."""
    groups: str | None = None
    """Name of the value of which all sequences with the same are one sample, such as `EXAMPLE`; None: each is one."""


def _each_text(samples: Samples) -> tuple[Samples, IntArray | None]:
    """Return each text of pairs or triplets by itself."""
    columns = [column for column in (samples.texts, samples.text_pairs, samples.negatives) if column is not None]
    texts = [text for row in zip(*columns, strict=True) for text in row]
    counts = np.full(len(samples), len(columns))
    return _flat(samples, texts, None, counts), None if len(columns) == 1 else counts


def text_numbers(store: TokenStore) -> IntArray:
    """Return a number for each text of pairs or triplets, (N, K); texts with the same tokens have the same."""
    tokens, offsets = np.asarray(store.tokens), np.asarray(store.offsets).tolist()
    numbers: dict[bytes, int] = {}
    of_text = [numbers.setdefault(tokens[begin:end].tobytes(), len(numbers)) for begin, end in pairwise(offsets)]
    return np.asarray(of_text, dtype=np.int64).reshape(len(store), -1)


def _each_choice(samples: Samples) -> tuple[Samples, IntArray | None]:
    """Return each choice with its question, as pairs: [CLS] text [SEP] choice [SEP]."""
    assert samples.choices is not None
    prefixes = samples.text_pairs or [""] * len(samples)
    second = [text + choice for text, choices in zip(prefixes, samples.choices, strict=True) for choice in choices]
    first = [text for text, choices in zip(samples.texts, samples.choices, strict=True) for _ in choices]
    counts = np.array([len(choices) for choices in samples.choices], dtype=np.int64)
    return _flat(samples, first, second, counts), counts


def _flat(samples: Samples, texts: list[str], pairs: list[str] | None, counts: IntArray) -> Samples:
    return Samples(texts, pairs, None, None, np.repeat(samples.rows, counts), None, {})


def _truncated(given: Texts, parts: Iterator[slice]) -> Iterator[Sequences]:
    """Yield a sequence for each text or pair, truncated; the full length of a very long text is a lower limit."""
    options, tokenizer, is_pair = given.options, given.options.tokenizer, given.samples.text_pairs is not None
    if options.truncation == "only_second" and not is_pair:
        message = "data.truncation: only_second needs a second text (data.columns.text_pair)"
        raise ConfigError(message, code="config.no_effect", key="data.truncation")
    room = options.max_length - tokenizer.num_special_tokens_to_add(pair=is_pair)
    if options.truncation == "head_tail" and (options.head_tokens or 0) > room:
        message = (
            f"data.head_tokens: {options.head_tokens} is more than the {room} tokens of a text that fit into "
            f"data.max_length: {options.max_length}"
        )
        raise ConfigError(message, code="data.max_length_unfit", key="data.head_tokens", value=options.head_tokens)
    mark, spans = given.mark(), None if is_pair else _kept_spans(options)
    cut_spans = spans if spans and options.truncation == "head_tail" else (options.max_length, 0)
    for part in parts:
        texts = given.samples.texts[part]
        pairs = None if given.samples.text_pairs is None else [mark + text for text in given.samples.text_pairs[part]]
        texts, pairs = cut_long_texts(texts, pairs, tokenizer, *cut_spans)
        whole = _call(options, texts, pairs, truncation=False)
        out = Sequences(whole["input_ids"], whole.get("token_type_ids") or [], list(map(len, whole["input_ids"])))
        given.require_tokens(part, out.full_lengths)
        long = [index for index, length in enumerate(out.full_lengths) if length > options.max_length]
        columns = [out.ids, *([out.type_ids] if options.need_token_type_ids else [])]
        if spans is not None:
            for values in columns:
                for index in long:
                    row = values[index]
                    values[index] = row[: spans[0]] + row[len(row) - spans[1] :]
        elif long:
            cut = _truncate(given, part, long, texts, pairs)
            for values, key in zip(columns, ("input_ids", "token_type_ids"), strict=False):
                for index, row in zip(long, cut[key], strict=True):
                    values[index] = row
        yield out


def _call(options: TokenizeOptions, *texts: list[str] | None, **limits: Any) -> Any:
    limits |= {"return_attention_mask": False, "return_token_type_ids": options.need_token_type_ids}
    return options.tokenizer(*texts, verbose=False, **limits)  # no warning about too long samples: they are truncated


def _truncate(given: Texts, part: slice, long: list[int], texts: list[str], pairs: list[str] | None) -> Any:
    """Return the encodings of the long texts, or pairs, of a chunk, truncated by the tokenizer.

    Raises:
        DataError: `options.truncation` names a text that is too short.
    """
    options = given.options
    if pairs is not None:
        limits = {"num_first": options.max_length, "most_characters": PAIRED_TEXT}
        texts, pairs = cut_long_texts(texts, pairs, options.tokenizer, **limits)
    texts, pairs = [texts[index] for index in long], None if pairs is None else [pairs[index] for index in long]
    reason, uncut = "they are still too long", long
    try:
        cut = _call(options, texts, pairs, truncation=options.truncation, max_length=options.max_length)
        # Slow tokenizers log an error and return the whole sample.
        rows = zip(long, cut["input_ids"], strict=True)
        if not (uncut := [index for index, row in rows if len(row) > options.max_length]):
            return cut
    except Exception as error:  # the Rust library raises plain exceptions
        reason = str(error)
    raise DataError(
        f"{given.source}: samples cannot be truncated to data.max_length: {options.max_length} with data.truncation: "
        f"{options.truncation} ({reason}); {first_rows(given.samples.rows[part][uncut].tolist())}; use longest_first, "
        "or a larger max_length",
        code="data.max_length_unfit",
    )


def _kept_spans(options: TokenizeOptions) -> tuple[int, int] | None:
    """Return how many ids at the start and at the end of a long text are kept, special tokens included.

    None where only the tokenizer can truncate: a slow one does not always know its special tokens.

    Source of `head_tail`: Sun et al., How to Fine-Tune BERT for Text Classification?, CCL 2019, section 5.3.1, whose
        128 of 510 tokens are a quarter.
    """
    tokenizer, is_head_tail = options.tokenizer, options.truncation == "head_tail"
    flags = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    if not is_head_tail and (not tokenizer.is_fast or 0 not in flags):
        return None
    num_before, num_after = flags.index(0), flags[::-1].index(0)
    room = options.max_length - num_before - num_after
    num_head = 0 if tokenizer.truncation_side == "left" else room
    if is_head_tail:
        num_head = room // 4 if options.head_tokens is None else options.head_tokens
    return num_before + num_head, room - num_head + num_after


def _filled_in(given: Texts, parts: Iterator[slice]) -> Iterator[Sequences]:
    """Yield a sequence for each mask token of a text; a text that lost a mask to truncation has none.

    Raises:
        DataError: No text has a mask token.
    """
    tokenizer, options = given.options.tokenizer, given.options
    start = num_masks = 0
    for rows in _truncated(given, parts):
        out = Sequences(row_values={EXAMPLE: [], ASKED: []})
        for number, (ids, full_length) in enumerate(zip(rows.ids, rows.full_lengths, strict=True)):
            positions = [position for position, token in enumerate(ids) if token == tokenizer.mask_token_id]
            if full_length > len(ids):
                text = given.samples.texts[start + number]
                whole = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
                if whole.count(tokenizer.mask_token_id) > len(positions):
                    continue  # only a part of the text could be filled in
            out.ids += [ids] * len(positions)
            out.type_ids += rows.type_ids[number : number + 1] * len(positions)
            out.full_lengths += [full_length] * len(positions)
            out.row_values[EXAMPLE] += [start + number] * len(positions)
            out.row_values[ASKED] += positions
        start, num_masks = start + len(rows.ids), num_masks + len(out.ids)
        yield out
    if not num_masks:
        message = (
            f"{given.source}: no text has the mask token of this model, {tokenizer.mask_token}, with all of its masks "
            f"within {options.max_length} tokens; write it in the places of the words to fill in"
        )
        raise DataError(message, code="data.no_tokens", source=given.source, max_length=options.max_length)


def _cut(
    texts: list[str],
    pairs: list[str] | None,
    options: TokenizeOptions,
    start: int,
    *,
    most: int | None = None,
    stride: int = 0,
    second: bool = False,
) -> tuple[list[list[Any]], Sequences]:
    """Return the encodings of all windows of each text, cut by a fast tokenizer, and the first `most` of each.

    Of a pair, the `second` text is cut, or the first. Windows have `max_length` tokens, of which neighbours share
    `stride` tokens of the cut text. `start` is the number of the first text.
    """
    limits = {"max_length": options.max_length, "stride": stride, "truncation": ("only_first", "only_second")[second]}
    encoded = options.tokenizer(
        texts, pairs, return_overflowing_tokens=True, return_attention_mask=False, verbose=False, **limits
    )
    by_text: list[list[Any]] = [[] for _ in texts]
    for number, encoding in zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True):
        by_text[int(number)].append(encoding)
    out = Sequences(row_values={EXAMPLE: [], DROPPED_WINDOWS: []})
    for number, encodings in enumerate(by_text, start):
        kept = [encoding.ids for encoding in encodings[:most]]
        lengths, left_out = list(map(len, kept)), encodings[len(kept) :]
        # The last window of a text has the tokens and windows behind it, which `most` leaves out.
        lengths[-1] += sum(other.sequence_ids.count(int(second)) - stride for other in left_out)
        out.ids += kept
        out.type_ids += [encoding.type_ids for encoding in encodings[:most]]
        out.full_lengths += lengths
        out.row_values[EXAMPLE] += [number] * len(kept)
        out.row_values[DROPPED_WINDOWS] += [0] * (len(kept) - 1) + [len(left_out)]
    return by_text, out


def _text_windows(given: Texts, parts: Iterator[slice]) -> Iterator[Sequences]:
    """Yield the windows of each text; a text that fits into `max_length` is one window, as if it was truncated.

    Of a pair, each window has the whole other text; `options.truncation` names the text that is cut.
    """
    options, tokenizer, windows = given.options, given.options.tokenizer, given.task.windows
    texts, pairs = given.samples.texts, given.samples.text_pairs
    require_fast(tokenizer, "task.windows needs", returns="the windows of a text")
    most = options.max_length - tokenizer.num_special_tokens_to_add(pair=pairs is not None) - 1
    if windows.stride > most:
        message = (
            f"task.windows.stride: {windows.stride} leaves no new tokens of a text in windows of {options.max_length} "
            f"tokens (data.max_length); at most {most}"
        )
        raise ConfigError(message, code="task.stride", key="task.windows.stride", value=windows.stride, most=most)
    second = pairs is not None and options.truncation == "only_second"
    if pairs is not None:
        mark = given.mark()
        pairs = [mark + text for text in pairs]
        lengths = np.array(num_tokens(texts if second else pairs, tokenizer))
        if len(too_long := np.flatnonzero(lengths + windows.stride > most)):
            message = (
                f"{given.source}: in {len(too_long)} rows, the text that is not cut (data.truncation: "
                f"{options.truncation}) leaves no tokens for the other one in windows of {options.max_length} tokens: "
                f"{first_rows(given.samples.rows[too_long].tolist())}; set a larger data.max_length, or shorten these "
                "texts"
            )
            raise DataError(message, code="data.max_length_unfit", source=given.source)
    cut: dict[str, Any] = {"stride": windows.stride, "most": windows.max_windows, "second": second}
    for part in parts:
        by_text, out = _cut(texts[part], None if pairs is None else pairs[part], options, part.start, **cut)
        given.require_tokens(part, [len(encodings[0].ids) for encodings in by_text])
        yield out


def _tagged(given: Texts, parts: Iterator[slice]) -> Iterator[Sequences]:
    """Yield a truncated sequence for each sentence; its words are joined by spaces.

    A token belongs to the word of its last character.
    """
    options, tokenizer, sentences = given.options, given.options.tokenizer, given.samples.words
    assert sentences is not None
    for part in parts:
        texts, _ = cut_long_texts(given.samples.texts[part], None, tokenizer, options.max_length)
        by_text, out = _cut(texts, None, options, part.start, most=1)
        words = list(map(_first_tokens, by_text, texts, sentences[part]))
        given.require_tokens(part, [int((starts >= 0).sum()) for starts in words])
        out.token_values = {WORD: [starts.tolist() for starts in words]}
        yield out


def _first_tokens(windows: Sequence[Any], text: str, words: Sequence[str]) -> IntArray:
    """Return the word that begins with each token of the first window, or -1; `text` is the words with spaces."""
    begins = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    offsets = np.asarray(token_characters(windows, [text])[0], dtype=np.int64).reshape(-1, 2)
    is_text = np.asarray([number == 0 for number in windows[0].sequence_ids]) & (offsets[:, 1] > offsets[:, 0])
    word = np.where(is_text, np.searchsorted(begins, offsets[:, 1] - 1, side="right") - 1, -1)
    seen = np.maximum.accumulate(np.concatenate([[-1], word]))[:-1]
    return np.where(word > seen, word, -1)


def tags_by_word(values: npt.NDArray[Any], store: TokenStore, row: int, num_words: int) -> IntArray:
    """Return the tag of each word of a sentence, (num_words,), words behind `max_length` included; -1 without a token.

    `values`, of at least as many as the tokens of the sentence, are those of tokens; `row` is the sentence.
    """
    begin, end = store.offsets[row : row + 2].tolist()
    word = np.asarray(store.token_values[WORD][begin:end])
    places = np.flatnonzero(word >= 0)
    tags = np.full(num_words, -1, dtype=np.int64)
    tags[word[places]] = values[places].astype(np.int64)
    return tags


def _word_places(given: Texts) -> dict[str, Any]:
    """Return where words begin, as a hash: the joined texts do not show it where a word contains a space."""
    sha = hashlib.sha256()
    for sentence in given.samples.words or ():
        sha.update(np.asarray([len(sentence), *map(len, sentence)], dtype="<i8").tobytes())
    return {"words": sha.hexdigest()}


def question_room(options: TokenizeOptions, stride: int) -> int:
    """Return the most tokens of a question and its mark with which each window has a new token of the context.

    Raises:
        ConfigError: The tokenizer is slow, which cannot return the characters of tokens; or no token is left for text.
    """
    tokenizer = options.tokenizer
    require_fast(tokenizer, "question answering needs")
    num_special: int = tokenizer.num_special_tokens_to_add(pair=True) + (_end_token(tokenizer) is not None)
    num_marks = num_tokens([mark], tokenizer)[0] if (mark := pair_separator(tokenizer)) else 0
    most = options.max_length - num_special - num_marks - 2
    if stride > most:
        message = (
            f"task.stride: {stride} and {num_special + num_marks} special tokens leave no tokens for a question in "
            f"windows of {options.max_length} tokens (data.max_length); at most {most}, a third of the window is usual"
        )
        raise ConfigError(message, code="task.stride", key="task.stride", value=stride, most=most)
    return options.max_length - num_special - stride - 1


def are_too_long(questions: Sequence[str], options: TokenizeOptions, stride: int) -> list[bool]:
    """Return for each question whether it is too long for a window; see `question_room`."""
    room, mark = question_room(options, stride), pair_separator(options.tokenizer)
    counts = num_tokens([text + mark for text in questions], options.tokenizer) if questions else []
    return [count > room for count in counts]


def _end_token(tokenizer: Any) -> int | None:
    """Return the token for "no answer" that is added at the end where the tokenizer has no CLS token."""
    end_token: int | None = tokenizer.eos_token_id if tokenizer.cls_token_id is None else None
    return end_token


def _question_windows(given: Texts, parts: Iterator[slice]) -> Iterator[Sequences]:
    """Yield the windows of each question: the whole question, and a part of its context.

    Neighbouring parts share `task.stride` tokens. Windows do not depend on answers. No question is too long.
    """
    options, tokenizer = given.options, given.options.tokenizer
    question_room(options, given.task.stride)
    assert given.samples.text_pairs is not None
    mark, end_token = given.mark(), _end_token(tokenizer)
    if end_token is not None:
        options = replace(options, max_length=options.max_length - 1)
    for part in parts:
        contexts = given.samples.text_pairs[part]
        # The mark is added to the question, not to the context, so that positions in contexts do not change.
        questions = [question + mark for question in given.samples.texts[part]]
        by_text, out = _cut(questions, contexts, options, part.start, stride=given.task.stride, second=True)
        of_context = [min(encoding.sequence_ids.count(1) for encoding in encodings) for encodings in by_text]
        given.require_tokens(part, of_context, what="the context of ")
        out.token_values, out.row_values[BOUNDS] = {CHAR_START: [], CHAR_END: []}, []
        rows = zip(out.ids, out.type_ids, strict=True)
        for encodings, question, context in zip(by_text, questions, contexts, strict=True):
            white = np.strings.isspace(np.frombuffer(context.encode("utf-32-le", "surrogatepass"), dtype="<U1"))
            characters = token_characters(encodings, [question, context])
            for encoding, spans, (ids, type_ids) in zip(encodings, characters, rows, strict=False):
                of_text = encoding.sequence_ids
                begin, end = of_text.index(1), len(of_text) - of_text[::-1].index(1)
                # The token for "no answer": CLS, else the added end token, else the first token.
                null = ids.index(tokenizer.cls_token_id) if end_token is None and tokenizer.cls_token_id in ids else 0
                if end_token is not None:
                    null = len(ids)
                    ids.append(end_token)
                    type_ids.append(type_ids[-1])
                out.row_values[BOUNDS].append((null, begin, end))
                places = _trimmed(np.asarray(spans[begin:end], dtype=np.int64), white)
                for name, values in zip((CHAR_START, CHAR_END), places, strict=True):
                    out.token_values[name].append([-1] * begin + values.tolist() + [-1] * (len(ids) - end))
        out.full_lengths = list(map(len, out.ids))
        yield out


def _trimmed(offsets_n2: IntArray, white: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Return starts and ends of tokens without white space: some tokenizers include the space before a word.

    `white` has which characters are white space. A token of only white space gets an end before its start.
    """
    starts, ends = offsets_n2.T
    if not (white[np.minimum(starts, len(white) - 1)] | white[np.maximum(ends - 1, 0)]).any():
        return starts, ends
    places = np.arange(len(white))
    # The nearest character that is not white space, at or after each place, and at or before it.
    following = np.minimum.accumulate(np.where(white, len(white), places)[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(white, -1, places))
    return np.append(following, len(white))[starts], preceding[np.maximum(ends - 1, 0)] + 1


def _documents(given: Texts, parts: Iterator[slice]) -> Iterator[Sequences]:
    """Yield the windows of all documents, between the special tokens of the tokenizer.

    joined: documents follow each other with a separator token between them, and are cut into windows of `max_length`
    tokens, special tokens included (FULL-SENTENCES, across documents, in the source); the last window has the rest.
    separate: windows are filled with pieces of documents in order, each a sequence between special tokens. A document
    is cut where a window is full; no token is lost.
    documents: one window for each document, truncated where it is longer.

    Source: Liu et al., RoBERTa, arXiv:1907.11692, section 4.2; for separate, Zhao et al., Analysing The Impact of
        Sequence Composition on Language Model Pre-Training, ACL 2024 (intra-document masking).
    """
    options, tokenizer, task = given.options, given.options.tokenizer, given.task
    before, after, between = special_frame(tokenizer)
    size = options.max_length - len(before) - len(after)
    is_special = mask_vocabulary(tokenizer).is_special
    kept = slice(-size, None) if tokenizer.truncation_side == "left" else slice(size)
    calls = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    rest = np.zeros((3, 0), dtype=np.int64)
    last_window, room = -1, 0  # of the window that is being filled: its number, and the tokens that fit for text
    for part in parts:
        encoded = tokenizer(given.samples.texts[part], verbose=False, **calls)
        given.require_tokens(part, list(map(len, encoded["input_ids"])))
        windows: list[IntArray] = []  # of each token its id, whether it begins a word, and its document
        for number, ids in enumerate(encoded["input_ids"]):
            starts = np.ones(len(ids), dtype=np.int64)
            if task.whole_words:
                words = np.asarray([-1 if word is None else word for word in encoded.word_ids(number)])
                starts[1:] = (words[1:] != words[:-1]) | (words[1:] < 0)
            windows.append(np.stack([ids, starts, np.full(len(ids), part.start + number)]))
        if task.windows == "joined":
            # Tokens that do not fill a window wait for the next documents; only the last window may be shorter.
            pieces = [rest]
            for number, document in enumerate(windows, part.start):
                pieces += [np.array([[token], [1], [number - 1]]) for token in between if number]
                pieces.append(document)
            stream = np.concatenate(pieces, axis=1)
            end = stream.shape[1] if part.stop == len(given.samples) else stream.shape[1] // size * size
            windows, rest = [stream[:, at : min(at + size, end)] for at in range(0, end, size)], stream[:, end:]
        window_of_piece: list[int] = []
        if task.windows == "separate":
            documents, windows = windows, []
            for document in documents:
                at = 0
                while at < document.shape[1]:
                    if room <= 0:
                        last_window, room = last_window + 1, size
                    windows.append(document[:, at : at + room])
                    window_of_piece.append(last_window)
                    at += windows[-1].shape[1]
                    room -= windows[-1].shape[1] + len(before) + len(after)
        full_lengths = [window.shape[1] for window in windows]
        windows = [window[:, kept] for window in windows]
        ids = [[*before, *window[0].tolist(), *after] for window in windows]
        out = Sequences(ids, [[0] * len(row) for row in ids])
        out.full_lengths = [length + len(before) + len(after) for length in full_lengths]
        maskable = [int((~is_special[window[0]]).sum()) for window in windows]
        out.row_values = {NUM_MASKABLE: maskable, EXAMPLE: [int(window[2, 0]) for window in windows]}
        out.row_values[WINDOW] = window_of_piece
        if task.whole_words:
            # Each special token is a separate word. So is the rest of a word that a cut divides: it begins a window.
            out.token_values[WORD_START] = [
                [*[1] * len(before), 1, *window[1, 1:].tolist(), *[1] * len(after)] for window in windows
            ]
        yield out


_WINDOW = {NUM_MASKABLE: "<i4", EXAMPLE: "<i4"}
_ROWS: Final = TokenLayout(_truncated)
LAYOUTS: Final[dict[str, TokenLayout]] = {
    "embedding": TokenLayout(_truncated, _each_text),
    "multiple_choice": TokenLayout(_truncated, _each_choice),
    "windows": TokenLayout(
        _text_windows,
        row_values={EXAMPLE: "<i4", DROPPED_WINDOWS: "<i4"},
        settings=lambda given: {"text_windows": [given.task.windows.stride, given.task.windows.max_windows]},
        groups=EXAMPLE,
    ),
    "token_classification": TokenLayout(_tagged, token_values={WORD: "<i4"}, settings=_word_places),
    "qa": TokenLayout(
        _question_windows,
        token_values={CHAR_START: "<i4", CHAR_END: "<i4"},
        row_values={EXAMPLE: "<i4", BOUNDS: "<i4"},
        settings=lambda given: {"windows": given.task.stride},
    ),
    "mlm": TokenLayout(_documents, row_values=_WINDOW, settings=lambda given: {"windows": given.task.windows}),
    "mlm, whole words": TokenLayout(
        _documents,
        token_values={WORD_START: "|u1"},
        row_values=_WINDOW,
        settings=lambda given: {"windows": given.task.windows, "whole_words": True},
    ),
    "mlm, filled in": TokenLayout(
        _filled_in, row_values={EXAMPLE: "<i4", ASKED: "<i8"}, settings=lambda given: {"windows": "questions, whole"}
    ),
}
"""TokenLayout by the kind of task; other kinds, without `task.windows`, have a sequence for each row (`_ROWS`)."""


def layout_of(task: Task | None, *, fills_in: bool = False) -> TokenLayout:
    """Return the layout of a task; `fills_in` for texts with masks to fill in, instead of documents."""
    name: str = "" if task is None else task.kind
    if isinstance(task, MaskedLMTask):
        name += ", filled in" if fills_in else ", whole words" if task.whole_words else ""
        if task.windows == "separate" and not fills_in:
            return replace(LAYOUTS[name], row_values={**_WINDOW, WINDOW: "<i4"}, groups=WINDOW)
    elif getattr(task, "windows", None) is not None:
        name = "windows"
    return LAYOUTS.get(name, _ROWS)
