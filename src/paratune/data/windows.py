"""Windows of questions and contexts: cut by the tokenizer, cached, with the characters of each token.

Imports no torch. Dimensions: `N` windows, `n` tokens of a context in a window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paratune.base.token_characters import Span, token_characters
from paratune.data.columns import AnswerSpan, IntArray, Samples
from paratune.data.labels import first_rows
from paratune.data.token_store import StoreWriter, TokenStore
from paratune.data.tokenizers import pair_separator, preserve_state, require_fast
from paratune.data.tokens import TokenizeOptions, cached_store, chunks, no_tokens_error, token_fingerprint
from paratune.errors import ConfigError

CHAR_START: Final = "char_start"
CHAR_END: Final = "char_end"
"""(num_tokens,), int32: first character of a token in the context and the character after its last, without white
space around them; -1 for tokens outside the context."""
EXAMPLE: Final = "example"
"""(N,), int32: index of the question of a window in the samples."""
BOUNDS: Final = "bounds"
"""(N, 3), int32: the token for "no answer", the first token of the context, and the token after its last."""
_OF_TOKENS = {CHAR_START: "<i4", CHAR_END: "<i4"}
_WHITE = np.asarray([ord(letter) for letter in map(chr, range(0x3001)) if letter.isspace()], dtype=np.uint32)
"""White space of Unicode; the last one is U+3000."""


def cut_texts(
    tokenizer: Any, texts: list[str], pairs: list[str] | None, *, truncation: str, max_length: int, stride: int
) -> Any:
    """Return the encodings of all windows of texts, in order; `overflow_to_sample_mapping` has the text of each.

    `truncation` is only_first or only_second, the text that is cut; windows have `max_length` tokens, of which
    neighbours share `stride` tokens of the cut text. The tokenizer is fast.
    """
    return tokenizer(
        texts,
        pairs,
        truncation=truncation,
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_attention_mask=False,
        verbose=False,
    )


@dataclass(frozen=True)
class WindowLimits:
    """How the tokens of a window are divided between question, context and special tokens."""

    max_length: int
    num_special: int
    stride: int
    """Tokens of the context that neighbouring windows share."""
    end_token: int | None
    """Token for "no answer", added at the end where the tokenizer has no CLS token."""
    mark: str = ""
    """Text after the question where the tokenizer puts nothing between question and context; see `pair_separator`."""

    @property
    def max_question(self) -> int:
        """Most tokens of a question and its mark, so that each window has at least one new token of the context."""
        return self.max_length - self.num_special - self.stride - 1


def window_limits(options: TokenizeOptions, stride: int) -> WindowLimits:
    """Return the limits of windows for a tokenizer.

    Raises:
        ConfigError: The tokenizer is slow, which cannot return the characters of tokens; or no token is left for text.
    """
    tokenizer = options.tokenizer
    require_fast(tokenizer, "question answering needs")
    end_token = tokenizer.eos_token_id if tokenizer.cls_token_id is None else None
    num_special = tokenizer.num_special_tokens_to_add(pair=True) + (end_token is not None)
    limits = WindowLimits(options.max_length, num_special, stride, end_token, pair_separator(tokenizer))
    num_special += sum(num_tokens([limits.mark], options)) if limits.mark else 0
    most = options.max_length - num_special - 2
    if stride > most:
        raise ConfigError(
            f"task.stride: {stride} and {num_special} special tokens leave no tokens for a question in windows of "
            f"{options.max_length} tokens (data.max_length); at most {most}, a third of the window is usual",
            code="task.stride",
            key="task.stride",
            value=stride,
            max_length=options.max_length,
            most=most,
        )
    return limits


def are_too_long(questions: Sequence[str], options: TokenizeOptions, window_limits: WindowLimits) -> list[bool]:
    """Return for each question whether it is longer than `limits.max_question`."""
    if not questions:
        return []
    return [
        count > window_limits.max_question
        for count in num_tokens([text + window_limits.mark for text in questions], options)
    ]


def num_tokens(texts: list[str], options: TokenizeOptions) -> list[int]:
    """Return the number of tokens of each text, without special tokens and truncation."""
    with preserve_state(options.tokenizer):
        encoded = options.tokenizer(
            texts, add_special_tokens=False, truncation=False, return_attention_mask=False, verbose=False
        )
    return [len(ids) for ids in encoded["input_ids"]]


def tokenize_windows(samples: Samples, options: TokenizeOptions, stride: int, *, source: str = "data") -> TokenStore:
    """Return the windows of all questions; arguments and errors as in `tokens.tokenize` and `window_limits`.

    Each window has the whole question, a line break where the tokenizer puts nothing between two texts, and a part of
    the context; neighbouring parts share `stride` tokens. Windows do not depend on answers. No question is too long.
    """
    limits = window_limits(options, stride)

    def write(writer: StoreWriter) -> None:
        examples: list[int] = []
        bounds: list[tuple[int, int, int]] = []
        for part in chunks(samples, options, source):
            windows = _encode(samples, part, options, limits, source)
            writer.add(
                [window.ids for window in windows],
                [window.type_ids for window in windows] if options.need_token_type_ids else None,
                [len(window.ids) for window in windows],
                {name: [window.chars[name] for window in windows] for name in _OF_TOKENS},
            )
            examples += [window.example for window in windows]
            bounds += [window.bounds for window in windows]
        row_values = {EXAMPLE: np.asarray(examples, np.int32), BOUNDS: np.asarray(bounds, np.int32).reshape(-1, 3)}
        writer.finish(options.max_length, row_values)

    fingerprint = token_fingerprint(samples, options, windows=stride, after_question=limits.mark, characters=2)
    return cached_store(fingerprint, options, write, source=source, token_values=_OF_TOKENS)


@dataclass(frozen=True)
class _Window:
    example: int
    ids: list[int]
    type_ids: list[int]
    chars: dict[str, list[int]]
    bounds: tuple[int, int, int]


def _encode(
    samples: Samples, part: slice, options: TokenizeOptions, limits: WindowLimits, source: str
) -> list[_Window]:
    assert samples.text_pairs is not None
    contexts = samples.text_pairs[part]
    # The mark is added to the question, not to the context, so that positions in contexts do not change.
    questions = [question + limits.mark for question in samples.texts[part]]
    encoded = cut_texts(
        options.tokenizer,
        questions,
        contexts,
        truncation="only_second",
        max_length=limits.max_length - (limits.end_token is not None),
        stride=limits.stride,
    )
    windows, without = [], []
    pairs = zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True)
    for number, group in groupby(pairs, itemgetter(0)):
        encodings, white = [encoding for _, encoding in group], _is_white(contexts[number])
        characters = token_characters(encodings, [questions[number], contexts[number]])
        for encoding, spans in zip(encodings, characters, strict=True):
            if 1 in encoding.sequence_ids:  # a token of the context
                windows.append(_window(part.start + number, encoding, spans, white, options.tokenizer, limits))
            else:
                without.append(int(samples.rows[part.start + number]))
    if without:
        raise no_tokens_error(f"the context of {first_rows(without)}", source)
    return windows


def _window(
    example: int, encoding: Any, spans: list[Span], white: npt.NDArray[np.bool_], tokenizer: Any, limits: WindowLimits
) -> _Window:
    """Return a window whose encoding has tokens of the context."""
    ids, type_ids, texts = list(encoding.ids), list(encoding.type_ids), encoding.sequence_ids
    begin, end = texts.index(1), len(texts) - texts[::-1].index(1)
    if limits.end_token is not None:
        ids.append(limits.end_token)
        type_ids.append(type_ids[-1])
    starts, ends = _trimmed(np.asarray(spans[begin:end], dtype=np.int64), white)
    before, after = [-1] * begin, [-1] * (len(ids) - end)
    return _Window(
        example,
        ids,
        type_ids,
        {CHAR_START: before + starts.tolist() + after, CHAR_END: before + ends.tolist() + after},
        (_null_position(ids, tokenizer, limits), begin, end),
    )


def _null_position(ids: list[int], tokenizer: Any, limits: WindowLimits) -> int:
    """Return the position of the token for "no answer": CLS, else the added end token, else the first token."""
    if limits.end_token is not None:
        return len(ids) - 1
    return ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0


def _is_white(text: str) -> npt.NDArray[np.bool_]:
    """Return which characters are white space."""
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
        answer = _stripped(answers[example][0])
        encoding = slice(offsets[window] + begin[window], offsets[window] + end[window])
        starts, ends = store.token_values[CHAR_START][encoding], store.token_values[CHAR_END][encoding]
        if starts[0] <= answer.start and answer.end <= ends[-1]:
            first = int(np.searchsorted(ends, answer.start, side="right"))
            last = int(np.searchsorted(starts, answer.end, side="left")) - 1
            if first <= last:
                positions[window] = begin[window] + first, begin[window] + last
    return positions


def describe_questions(samples: Samples, store: TokenStore) -> dict[str, Any]:
    """Return the figures of questions and their windows that `paratune data` prints, as JSON values."""
    answers, contexts = samples.answers, samples.text_pairs
    assert answers is not None
    assert contexts is not None
    num_windows = np.bincount(store.row_values[EXAMPLE], minlength=len(samples))
    lengths = [len(answer.text) for gold in answers for answer in gold]
    num_with_answer = sum(map(bool, answers))
    return {
        "num_contexts": len(set(contexts)),
        "num_with_answer": num_with_answer,
        "share_with_answer": num_with_answer / len(answers),
        "most_answers": max(map(len, answers)),
        "num_out_of_reach": count_unreachable_answers(store, answer_tokens(store, answers), answers),
        "share_of_several_windows": float((num_windows > 1).mean()),
        "most_windows": int(num_windows.max()),
        "median_answer_chars": float(np.median(lengths)) if lengths else None,
        "most_answer_chars": max(lengths, default=None),
    }


def _stripped(answer: AnswerSpan) -> AnswerSpan:
    num_before = len(answer.text) - len(answer.text.lstrip())
    return AnswerSpan(answer.text.strip(), answer.start + num_before)


def count_unreachable_answers(store: TokenStore, positions: IntArray, answers: Sequence[tuple[AnswerSpan, ...]]) -> int:
    """Return how many questions have an answer that no window contains whole: training counts them as unanswerable."""
    is_reached = np.zeros(len(answers), dtype=np.bool_)
    in_window = positions[:, 0] != store.row_values[BOUNDS][:, 0]
    is_reached[store.row_values[EXAMPLE][in_window]] = True
    return sum(bool(gold) and not reached for gold, reached in zip(answers, is_reached.tolist(), strict=True))
