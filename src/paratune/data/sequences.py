"""The sequences of tokens of samples, by task: texts of a group, choices, tagged words, and windows of long texts.

Imports no torch. Dimensions: `N` sequences, `K` texts of a sample, `n` tokens of a context in a window.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paratune.base.token_characters import Span, token_characters
from paratune.config.task_sections import WindowOptions
from paratune.data.columns import AnswerSpan, IntArray, Samples
from paratune.data.labels import first_rows
from paratune.data.token_store import DROPPED_WINDOWS, TokenArray, TokenStore, offsets_of
from paratune.data.tokenizers import cut_long_texts, num_tokens, pair_separator, require_fast
from paratune.data.tokens import (
    Encoded,
    TokenizeOptions,
    require_text_length,
    require_tokens,
    tokenize,
    tokenize_with,
)
from paratune.errors import ConfigError, DataError

WORD: Final = "word"
"""(num_tokens,), int32: the word of its sentence that begins with a token; -1 for other tokens."""
CHAR_START: Final = "char_start"
CHAR_END: Final = "char_end"
"""(num_tokens,), int32: first character of a token in the context and the character after its last, without white
space around them; -1 for tokens outside the context."""
EXAMPLE: Final = "example"
"""(N,), int32: index in the samples of the question or text of a window."""
BOUNDS: Final = "bounds"
"""(N, 3), int32: the token for "no answer", the first token of the context, and the token after its last."""
_WHITE = np.asarray([ord(letter) for letter in map(chr, range(0x3001)) if letter.isspace()], dtype=np.uint32)
"""White space of Unicode; the last one is U+3000."""


def num_texts(samples: Samples) -> int:
    """Return K: the text, its pair, and its negative, as far as there are any."""
    return 1 + (samples.text_pairs is not None) + (samples.negatives is not None)


def tokenize_texts(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of texts, pairs or triplets, a sequence for each text; as `tokens.tokenize`."""
    columns = [column for column in (samples.texts, samples.text_pairs, samples.negatives) if column is not None]
    texts = [text for row in zip(*columns, strict=True) for text in row]
    return _tokenize_flat(samples, texts, None, np.full(len(samples), len(columns)), options, source)


def tokenize_choices(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of each choice with its question, [CLS] text [SEP] choice [SEP], as sequences of its sample.

    Arguments and errors as in `tokens.tokenize`; `truncation` is that of pairs of texts.
    """
    assert samples.choices is not None
    counts = np.array([len(choices) for choices in samples.choices], dtype=np.int64)
    prefixes = samples.text_pairs or [""] * len(samples)
    second = [text + choice for text, choices in zip(prefixes, samples.choices, strict=True) for choice in choices]
    first = [text for text, choices in zip(samples.texts, samples.choices, strict=True) for _ in choices]
    return _tokenize_flat(samples, first, second, counts, options, source)


def _tokenize_flat(
    samples: Samples, texts: list[str], pairs: list[str] | None, counts: IntArray, options: TokenizeOptions, source: str
) -> TokenStore:
    """Return the tokens of several texts, or pairs, for each sample; `counts` is (len(samples),), how many."""
    of_text = np.repeat(np.arange(len(samples)), counts)

    def report(done: int, _: int) -> None:
        if options.progress is not None:
            options.progress(int(of_text[done - 1]) + 1, len(samples))

    flat = Samples(texts, pairs, labels=None, ids=None, rows=samples.rows[of_text], groups=None, num_dropped={})
    store = tokenize(flat, replace(options, progress=report), source=source)
    return store if len(flat) == len(samples) and pairs is None else store.grouped(counts)


def text_numbers(store: TokenStore, count: int) -> IntArray:
    """Return a number for each text of a store, (N, K), K = `count`; texts with the same tokens have the same."""
    tokens, offsets = np.asarray(store.tokens), np.asarray(store.offsets).tolist()
    numbers: dict[bytes, int] = {}
    of_text = [numbers.setdefault(tokens[begin:end].tobytes(), len(numbers)) for begin, end in pairwise(offsets)]
    return np.asarray(of_text, dtype=np.int64).reshape(-1, count)


def joined_store(parts: Sequence[tuple[TokenStore, IntArray]]) -> TokenStore:
    """Return samples of several stores as one store in memory, without the number of unknown tokens.

    `parts`, at least one, are stores of the same tokenizer and settings, and the indices of their samples, (n,) each.
    """
    first = parts[0][0]
    counts = np.concatenate([store.num_sequences_at(indices) for store, indices in parts])
    places = [(store, store.sequences_at(indices)) for store, indices in parts]

    def of_tokens(arrays: Sequence[TokenArray | None]) -> TokenArray:
        slices = (
            array[store.offsets[index] : store.offsets[index + 1]]
            for array, (store, indices) in zip(arrays, places, strict=True)
            for index in indices
            if array is not None
        )
        return np.concatenate(list(slices))

    def of_sequences(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate([array[indices] for array, (_, indices) in zip(arrays, places, strict=True)])

    stores = [store for store, _ in parts]
    joined = TokenStore(
        of_tokens([store.tokens for store in stores]),
        None if first.type_ids is None else of_tokens([store.type_ids for store in stores]),
        offsets_of(of_sequences([store.sequence_lengths for store in stores])),
        of_sequences([store.full_lengths for store in stores]),
        first.max_length,
        fingerprint="",
        token_values={name: of_tokens([store.token_values[name] for store in stores]) for name in first.token_values},
        row_values={name: of_sequences([store.row_values[name] for store in stores]) for name in first.row_values},
    )
    return joined if first.sample_offsets is None else joined.grouped(counts)


def tokenize_words(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of all sentences, with `WORD`; arguments and errors as in `tokens.tokenize`.

    Words are joined by spaces; a token belongs to the word of its last character. The tokenizer is fast.
    """
    require_text_length(options, options.tokenizer.num_special_tokens_to_add(pair=False))
    assert samples.words is not None
    sentences = samples.words

    def encode_part(part: slice) -> Encoded:
        texts, _ = cut_long_texts(samples.texts[part], None, options.tokenizer, options.max_length)
        by_text = _cut(texts, None, options.tokenizer, is_second=False, max_length=options.max_length, stride=0)
        words = list(map(_first_tokens, by_text, texts, sentences[part]))
        require_tokens([int((starts >= 0).sum()) for starts in words], samples.rows[part], source)
        return Encoded(
            [first.ids for first, *_ in by_text],
            [first.type_ids for first, *_ in by_text],
            [len(first.ids) + sum(rest.sequence_ids.count(0) for rest in others) for first, *others in by_text],
            {WORD: [starts.tolist() for starts in words]},
        )

    # Where words begin, as a hash: the joined texts do not show it where a word contains a space.
    sha, num_words = hashlib.sha256(), sum(map(len, sentences))
    for sentence in sentences:
        sha.update(np.asarray([len(sentence), *map(len, sentence)], dtype="<i8").tobytes())
    settings: dict[str, Any] = {"words": sha.hexdigest(), "num_words": num_words, "characters": 2}
    return tokenize_with(encode_part, samples, options, source=source, token_values={WORD: "<i4"}, **settings)


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


def _cut(
    texts: list[str], pairs: list[str] | None, tokenizer: Any, *, is_second: bool, max_length: int, stride: int
) -> list[list[Any]]:
    """Return the encodings of the windows of each text, cut by a fast tokenizer.

    Of a pair, the second text is cut where `is_second`. Windows have `max_length` tokens, of which neighbours share
    `stride` tokens of the cut text.
    """
    truncation = "only_second" if is_second else "only_first"
    limits = {"truncation": truncation, "max_length": max_length, "stride": stride, "return_overflowing_tokens": True}
    encoded = tokenizer(texts, pairs, return_attention_mask=False, verbose=False, **limits)
    by_text: list[list[Any]] = [[] for _ in texts]
    for number, encoding in zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True):
        by_text[int(number)].append(encoding)
    return by_text


def tokenize_text_windows(
    samples: Samples, options: TokenizeOptions, windows: WindowOptions, *, source: str = "data"
) -> TokenStore:
    """Return the windows of all texts as sequences of their samples; arguments and errors as in `tokens.tokenize`.

    A text that fits into `options.max_length` is one window with the tokens of `tokens.tokenize`. Of a pair, each
    window has the whole other text; `options.truncation` names the text that is cut. The tokenizer must be fast.
    """
    tokenizer, texts, pairs = options.tokenizer, samples.texts, samples.text_pairs
    require_fast(tokenizer, "task.windows needs", returns="the windows of a text")
    num_special = tokenizer.num_special_tokens_to_add(pair=pairs is not None)
    require_text_length(options, num_special)
    most = options.max_length - num_special - 1
    if windows.stride > most:
        message = (
            f"task.windows.stride: {windows.stride} leaves no new tokens of a text in windows of {options.max_length} "
            f"tokens (data.max_length); at most {most}"
        )
        raise ConfigError(message, code="task.stride", key="task.windows.stride", value=windows.stride, most=most)
    is_second = pairs is not None and options.truncation == "only_second"
    if pairs is not None:
        separator = pair_separator(tokenizer)
        pairs = [separator + pair for pair in pairs]
        lengths = np.array(num_tokens(texts if is_second else pairs, tokenizer))
        too_long = np.flatnonzero(lengths + windows.stride > most)
        if len(too_long):
            message = (
                f"{source}: in {len(too_long)} rows, the text that is not cut (data.truncation: {options.truncation}) "
                f"leaves no tokens for the other one in windows of {options.max_length} tokens: "
                f"{first_rows(samples.rows[too_long].tolist())}; set a larger data.max_length, or shorten these texts"
            )
            raise DataError(message, code="data.max_length_unfit", source=source)

    def encode_part(part: slice) -> Encoded:
        of_part = None if pairs is None else pairs[part]
        limits = {"max_length": options.max_length, "stride": windows.stride}
        by_text = _cut(texts[part], of_part, tokenizer, is_second=is_second, **limits)
        require_tokens([len(encodings[0].ids) for encodings in by_text], samples.rows[part], source)
        kept = [encodings[: windows.max_windows] for encodings in by_text]
        made = [encoding for encodings in kept for encoding in encodings]
        full_lengths, dropped = [len(encoding.ids) for encoding in made], [0] * len(made)
        # The last window of a text has the tokens and windows behind it, which `max_windows` leaves out.
        for last, encodings in zip(np.cumsum(list(map(len, kept))) - 1, by_text, strict=True):
            left_out = encodings[windows.max_windows :]
            dropped[last] = len(left_out)
            full_lengths[last] += sum(other.sequence_ids.count(int(is_second)) - windows.stride for other in left_out)
        examples = np.repeat(np.arange(part.start, part.start + len(kept)), list(map(len, kept))).tolist()
        return Encoded(
            [encoding.ids for encoding in made],
            [encoding.type_ids for encoding in made],
            full_lengths,
            row_values={EXAMPLE: examples, DROPPED_WINDOWS: dropped},
        )

    row_values, settings = {EXAMPLE: "<i4", DROPPED_WINDOWS: "<i4"}, [windows.stride, windows.max_windows]
    store = tokenize_with(encode_part, samples, options, source=source, row_values=row_values, text_windows=settings)
    return store.grouped(np.bincount(store.row_values[EXAMPLE], minlength=len(samples)))


@dataclass(frozen=True)
class WindowLimits:
    """How the tokens of a window are divided between question, context and special tokens."""

    tokenizer: Any
    max_question: int
    """Most tokens of a question and its mark, so that each window has at least one new token of the context."""
    end_token: int | None
    """Token for "no answer", added at the end where the tokenizer has no CLS token."""
    mark: str
    """Text after the question where the tokenizer puts nothing between question and context; see `pair_separator`."""

    def are_too_long(self, questions: Sequence[str]) -> list[bool]:
        """Return for each question whether it is longer than `max_question`."""
        counts = num_tokens([text + self.mark for text in questions], self.tokenizer) if questions else []
        return [count > self.max_question for count in counts]


def window_limits(options: TokenizeOptions, stride: int) -> WindowLimits:
    """Return the limits of windows for a tokenizer.

    Raises:
        ConfigError: The tokenizer is slow, which cannot return the characters of tokens; or no token is left for text.
    """
    tokenizer = options.tokenizer
    require_fast(tokenizer, "question answering needs")
    mark = pair_separator(tokenizer)
    end_token = tokenizer.eos_token_id if tokenizer.cls_token_id is None else None
    num_special = tokenizer.num_special_tokens_to_add(pair=True) + (end_token is not None)
    num_marks = sum(num_tokens([mark], tokenizer)) if mark else 0
    most = options.max_length - num_special - num_marks - 2
    if stride > most:
        message = (
            f"task.stride: {stride} and {num_special + num_marks} special tokens leave no tokens for a question in "
            f"windows of {options.max_length} tokens (data.max_length); at most {most}, a third of the window is usual"
        )
        raise ConfigError(message, code="task.stride", key="task.stride", value=stride, most=most)
    return WindowLimits(tokenizer, options.max_length - num_special - stride - 1, end_token, mark)


def tokenize_windows(samples: Samples, options: TokenizeOptions, stride: int, *, source: str = "data") -> TokenStore:
    """Return the windows of all questions; arguments and errors as in `tokens.tokenize` and `window_limits`.

    Each window has the whole question, a line break where the tokenizer puts nothing between two texts, and a part of
    the context; neighbouring parts share `stride` tokens. Windows do not depend on answers. No question is too long.
    """
    limits = window_limits(options, stride)
    assert samples.text_pairs is not None
    all_contexts = samples.text_pairs

    def encode_part(part: slice) -> Encoded:
        contexts = all_contexts[part]
        # The mark is added to the question, not to the context, so that positions in contexts do not change.
        questions = [question + limits.mark for question in samples.texts[part]]
        max_length = options.max_length - (limits.end_token is not None)
        by_text = _cut(questions, contexts, options.tokenizer, is_second=True, max_length=max_length, stride=stride)
        of_context = [min(encoding.sequence_ids.count(1) for encoding in encodings) for encodings in by_text]
        require_tokens(of_context, samples.rows[part], source, what="the context of ")
        out = Encoded(token_values={CHAR_START: [], CHAR_END: []}, row_values={EXAMPLE: [], BOUNDS: []})
        for number, encodings in enumerate(by_text):
            white = _is_white(contexts[number])
            characters = token_characters(encodings, [questions[number], contexts[number]])
            for encoding, spans in zip(encodings, characters, strict=True):
                _add_window(out, encoding, spans, white, limits)
                out.row_values[EXAMPLE].append(part.start + number)
        out.full_lengths = list(map(len, out.ids))
        return out

    token_values, row_values = {CHAR_START: "<i4", CHAR_END: "<i4"}, {EXAMPLE: "<i4", BOUNDS: "<i4"}
    settings: dict[str, Any] = {"windows": stride, "after_question": limits.mark, "characters": 2}
    return tokenize_with(
        encode_part, samples, options, source=source, token_values=token_values, row_values=row_values, **settings
    )  # fmt: skip


def _add_window(
    out: Encoded, encoding: Any, spans: list[Span], white: npt.NDArray[np.bool_], limits: WindowLimits
) -> None:
    """Add a window whose encoding has tokens of the context; `white` has which characters are white space."""
    ids, type_ids, texts = list(encoding.ids), list(encoding.type_ids), encoding.sequence_ids
    begin, end = texts.index(1), len(texts) - texts[::-1].index(1)
    # The token for "no answer": CLS, else the added end token, else the first token.
    cls_token = limits.tokenizer.cls_token_id
    null = ids.index(cls_token) if limits.end_token is None and cls_token in ids else 0
    if limits.end_token is not None:
        null = len(ids)
        ids.append(limits.end_token)
        type_ids.append(type_ids[-1])
    starts, ends = _trimmed(np.asarray(spans[begin:end], dtype=np.int64), white)
    before, after = [-1] * begin, [-1] * (len(ids) - end)
    out.ids.append(ids)
    out.type_ids.append(type_ids)
    out.token_values[CHAR_START].append(before + starts.tolist() + after)
    out.token_values[CHAR_END].append(before + ends.tolist() + after)
    out.row_values[BOUNDS].append((null, begin, end))


def _is_white(text: str) -> npt.NDArray[np.bool_]:
    return np.isin(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32), _WHITE)


def _trimmed(offsets_n2: IntArray, white: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Return starts and ends of tokens without white space: some tokenizers include the space before a word.

    A token of only white space gets an end before its start.
    """
    starts, ends = offsets_n2.T
    if not (white[np.minimum(starts, len(white) - 1)] | white[np.maximum(ends - 1, 0)]).any():
        return starts, ends
    places = np.arange(len(white))
    # The nearest character that is not white space, at or after each place, and at or before it.
    following = np.minimum.accumulate(np.where(white, len(white), places)[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(white, -1, places))
    return np.append(following, len(white))[starts], preceding[np.maximum(ends - 1, 0)] + 1


def answer_tokens(store: TokenStore, answers: Sequence[tuple[AnswerSpan, ...]]) -> IntArray:
    """Return the first and the last token of the first gold answer of each window, (N, 2), int64.

    Where a question has no answer, or the window does not contain the whole answer, both are the token for "no answer".
    `store` is from `tokenize_windows`; `answers` are the gold answers of each question.
    """
    null, begin, end = (np.asarray(column, dtype=np.int64) for column in store.row_values[BOUNDS].T)
    positions = np.stack([null, null], axis=1)
    examples, offsets = store.row_values[EXAMPLE].tolist(), store.offsets
    for window, example in enumerate(examples):
        if not answers[example]:
            continue
        given = answers[example][0]
        answer = AnswerSpan(given.text.strip(), given.start + len(given.text) - len(given.text.lstrip()))
        encoding = slice(offsets[window] + begin[window], offsets[window] + end[window])
        starts, ends = store.token_values[CHAR_START][encoding], store.token_values[CHAR_END][encoding]
        if starts[0] <= answer.start and answer.end <= ends[-1]:
            first = int(np.searchsorted(ends, answer.start, side="right"))
            last = int(np.searchsorted(starts, answer.end, side="left")) - 1
            if first <= last:
                positions[window] = begin[window] + first, begin[window] + last
    return positions


def count_unreachable_answers(store: TokenStore, positions: IntArray, answers: Sequence[tuple[AnswerSpan, ...]]) -> int:
    """Return how many questions have an answer that no window contains whole: training counts them as unanswerable."""
    is_reached = np.zeros(len(answers), dtype=np.bool_)
    in_window = positions[:, 0] != store.row_values[BOUNDS][:, 0]
    is_reached[store.row_values[EXAMPLE][in_window]] = True
    return sum(bool(gold) and not reached for gold, reached in zip(answers, is_reached.tolist(), strict=True))
