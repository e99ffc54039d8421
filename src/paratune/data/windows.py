"""Questions with the windows of their contexts: cut by the tokenizer, cached, with the characters of each token.

Floor 3, without torch. `N` windows, `n` tokens of a context in a window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paratune.data.columns import AnswerSpan, Samples
from paratune.data.labels import first_rows
from paratune.data.token_store import StoreWriter, TokenStore
from paratune.data.tokens import Tokenizing, cached_store, chunks, pair_mark, state_kept, token_fingerprint
from paratune.errors import ConfigError, DataError

IntArray = npt.NDArray[np.int64]
CHAR_START: Final = "char_start"
CHAR_END: Final = "char_end"
"""(num_tokens,), int32: the characters of the context that a token stands for, without white space around them; -1
where a token is not of the context."""
EXAMPLE: Final = "example"
"""(N,), int32: the question that a window belongs to, by its place in the samples."""
BOUNDS: Final = "bounds"
"""(N, 3), int32: the token that stands for "no answer", the first token of the context, and the one behind its last."""
_OF_TOKENS = {CHAR_START: "<i4", CHAR_END: "<i4"}
_WHITE = np.asarray([ord(letter) for letter in map(chr, range(0x3001)) if letter.isspace()], dtype=np.uint32)
"""Of Unicode; there is none above U+3000."""


@dataclass(frozen=True)
class Room:
    """What of a window is left for question and context."""

    max_length: int
    """Tokens of a window."""
    num_special: int
    """Of them, those that are neither question nor context."""
    stride: int
    """Tokens of the context that two neighbouring windows share."""
    end_token: int | None
    """Put at the end as the token of "no answer", where the tokenizer has no CLS token."""
    mark: str = ""
    """Put behind the question, where the tokenizer would run it and the context together."""

    @property
    def max_question(self) -> int:
        """Most tokens of a question and its mark: each window must have new tokens of the context."""
        return self.max_length - self.num_special - self.stride - 1


def room(how: Tokenizing, stride: int) -> Room:
    """Return what is left for question and context.

    Raises:
        ConfigError: The tokenizer is a slow one, which does not know where a token stands; or nothing is left.
    """
    tokenizer = how.tokenizer
    if not tokenizer.is_fast:
        raise ConfigError(
            f"model: {type(tokenizer).__name__} is a slow tokenizer, which does not return the characters of a token"
            "; question answering needs a fast one (tokenizer.json): save it again with AutoTokenizer",
            code="tokenizer.slow",
            key="model",
        )
    end_token = tokenizer.eos_token_id if tokenizer.cls_token_id is None else None
    num_special = tokenizer.num_special_tokens_to_add(pair=True) + (end_token is not None)
    found = Room(how.max_length, num_special, stride, end_token, pair_mark(tokenizer))
    num_special += sum(_num_tokens([found.mark], how)) if found.mark else 0
    most = how.max_length - num_special - 2
    if stride > most:
        raise ConfigError(
            f"task.stride: {stride} and {num_special} special tokens leave no room for a question in windows of "
            f"{how.max_length} tokens (data.max_length); at most {most}, and a third of the window is usual",
            code="task.stride",
            key="task.stride",
            value=stride,
            max_length=how.max_length,
            most=most,
        )
    return found


def are_too_long(questions: Sequence[str], how: Tokenizing, room: Room) -> list[bool]:
    """Say of each question whether it is longer than `room.max_question`."""
    if not questions:
        return []
    return [count > room.max_question for count in _num_tokens([text + room.mark for text in questions], how)]


def _num_tokens(texts: list[str], how: Tokenizing) -> list[int]:
    with state_kept(how.tokenizer):
        encoded = how.tokenizer(
            texts, add_special_tokens=False, truncation=False, return_attention_mask=False, verbose=False
        )
    return [len(ids) for ids in encoded["input_ids"]]


def tokenize_windows(samples: Samples, how: Tokenizing, stride: int, *, source: str = "data") -> TokenStore:
    """Return the windows of all questions, made now or found in the cache.

    Each window has the whole question, a line break where the tokenizer puts nothing between two texts, and a part of
    the context; parts share `stride` tokens. Answers play no part.

    Args:
        samples: Questions and contexts; at least one, none too long.
        how: Tokenizer, limit, cache.
        stride: As `task.stride`.
        source: Name of the samples in messages.

    Raises:
        ConfigError: As `room`.
        DataError: A context has no tokens, or the cache cannot be written.
        Stopped: `how.stop` said so; nothing half-made is left.
    """
    left = room(how, stride)

    def write(writer: StoreWriter) -> None:
        examples: list[int] = []
        bounds: list[tuple[int, int, int]] = []
        for part in chunks(samples, how, source):
            windows = _encode(samples, part, how, left, source)
            writer.add(
                [window.ids for window in windows],
                [window.type_ids for window in windows] if how.need_token_type_ids else None,
                [len(window.ids) for window in windows],
                {name: [window.chars[name] for window in windows] for name in _OF_TOKENS},
            )
            examples += [window.example for window in windows]
            bounds += [window.bounds for window in windows]
        of_rows = {EXAMPLE: np.asarray(examples, np.int32), BOUNDS: np.asarray(bounds, np.int32).reshape(-1, 3)}
        writer.finish(how.max_length, of_rows)

    fingerprint = token_fingerprint(samples, how, windows=stride, after_question=left.mark)
    return cached_store(fingerprint, how, write, source=source, of_tokens=_OF_TOKENS)


@dataclass(frozen=True)
class _Window:
    example: int
    ids: list[int]
    type_ids: list[int]
    chars: dict[str, list[int]]
    bounds: tuple[int, int, int]


def _encode(samples: Samples, part: slice, how: Tokenizing, left: Room, source: str) -> list[_Window]:
    assert samples.text_pairs is not None
    contexts = samples.text_pairs[part]
    encoded = how.tokenizer(
        [question + left.mark for question in samples.texts[part]],  # so that places in contexts stay as they are
        contexts,
        truncation="only_second",
        max_length=left.max_length - (left.end_token is not None),
        stride=left.stride,
        return_overflowing_tokens=True,
        return_attention_mask=False,
        verbose=False,
    )
    windows, without = [], []
    example, white = -1, np.zeros(0, dtype=np.bool_)
    for number, inside in zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True):
        if number != example:
            example, white = number, _is_white(contexts[number])
        if 1 in inside.sequence_ids:  # a token of the context
            windows.append(_window(part.start + number, inside, white, how.tokenizer, left))
        else:
            without.append(int(samples.rows[part.start + number]))
    if without:
        raise DataError(
            f"{source}: the tokenizer makes no token of the context of {first_rows(without)}; mend or remove such rows",
            code="data.no_tokens",
            source=source,
        )
    return windows


def _window(example: int, inside: Any, white: npt.NDArray[np.bool_], tokenizer: Any, left: Room) -> _Window:
    """Return a window, which has tokens of the context."""
    ids, type_ids, texts = list(inside.ids), list(inside.type_ids), inside.sequence_ids
    begin, end = texts.index(1), len(texts) - texts[::-1].index(1)
    if left.end_token is not None:
        ids.append(left.end_token)
        type_ids.append(type_ids[-1])
    starts, ends = _trimmed(np.asarray(inside.offsets[begin:end], dtype=np.int64), white)
    before, after = [-1] * begin, [-1] * (len(ids) - end)
    return _Window(
        example,
        ids,
        type_ids,
        {CHAR_START: before + starts.tolist() + after, CHAR_END: before + ends.tolist() + after},
        (_null_place(ids, tokenizer, left), begin, end),
    )


def _null_place(ids: list[int], tokenizer: Any, left: Room) -> int:
    """Return the token that stands for "no answer": CLS, an end token that was put there, or else the first one."""
    if left.end_token is not None:
        return len(ids) - 1
    return ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0


def _is_white(text: str) -> npt.NDArray[np.bool_]:
    """Return which characters are white space."""
    return np.isin(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32), _WHITE)


def _trimmed(offsets_n2: IntArray, white: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Return starts and ends of tokens without white space around: some tokenizers count the space before a word.

    A token that is nothing but white space ends before it starts.
    """
    starts, ends = offsets_n2.T
    if not (white[np.minimum(starts, len(white) - 1)] | white[np.maximum(ends - 1, 0)]).any():
        return starts, ends
    places = np.arange(len(white))
    following = np.minimum.accumulate(np.where(white, len(white), places)[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(white, -1, places))
    return np.append(following, len(white))[starts], preceding[np.maximum(ends - 1, 0)] + 1


def answer_tokens(store: TokenStore, answers: Sequence[tuple[AnswerSpan, ...]]) -> IntArray:
    """Return the first and the last token of the first gold answer of each window, (N, 2), int64.

    Where a question has no answer, or the window does not have all of it, both are the token of "no answer".

    Args:
        store: Of `tokenize_windows`.
        answers: Of each question.
    """
    null, begin, end = (np.asarray(column, dtype=np.int64) for column in store.of_rows[BOUNDS].T)
    found = np.stack([null, null], axis=1)
    examples, offsets = store.of_rows[EXAMPLE].tolist(), store.offsets
    for window, example in enumerate(examples):
        if not answers[example]:
            continue
        answer = _stripped(answers[example][0])
        inside = slice(offsets[window] + begin[window], offsets[window] + end[window])
        starts, ends = store.of_tokens[CHAR_START][inside], store.of_tokens[CHAR_END][inside]
        if starts[0] <= answer.start and answer.end <= ends[-1]:
            first = int(np.searchsorted(ends, answer.start, side="right"))
            last = int(np.searchsorted(starts, answer.end, side="left")) - 1
            if first <= last:
                found[window] = begin[window] + first, begin[window] + last
    return found


def describe_questions(samples: Samples, store: TokenStore) -> dict[str, Any]:
    """Return what `paratune data` tells of questions, as plain JSON values.

    Args:
        samples: With gold answers.
        store: Their windows.
    """
    answers, contexts = samples.answers, samples.text_pairs
    assert answers is not None
    assert contexts is not None
    num_windows = np.bincount(store.of_rows[EXAMPLE], minlength=len(samples))
    lengths = [len(answer.text) for gold in answers for answer in gold]
    num_with_answer = sum(map(bool, answers))
    return {
        "num_contexts": len(set(contexts)),
        "num_with_answer": num_with_answer,
        "share_with_answer": num_with_answer / len(answers),
        "most_answers": max(map(len, answers)),
        "num_out_of_reach": count_out_of_reach(store, answer_tokens(store, answers), answers),
        "share_of_several_windows": float((num_windows > 1).mean()),
        "most_windows": int(num_windows.max()),
        "median_answer_chars": float(np.median(lengths)) if lengths else None,
        "most_answer_chars": max(lengths, default=None),
    }


def _stripped(answer: AnswerSpan) -> AnswerSpan:
    num_before = len(answer.text) - len(answer.text.lstrip())
    return AnswerSpan(answer.text.strip(), answer.start + num_before)


def count_out_of_reach(store: TokenStore, positions: IntArray, answers: Sequence[tuple[AnswerSpan, ...]]) -> int:
    """Return how many questions have an answer that no window has all of: they are trained as unanswerable."""
    has_it = np.zeros(len(answers), dtype=np.bool_)
    in_window = positions[:, 0] != store.of_rows[BOUNDS][:, 0]
    has_it[store.of_rows[EXAMPLE][in_window]] = True
    return sum(bool(gold) and not reached for gold, reached in zip(answers, has_it.tolist(), strict=True))
