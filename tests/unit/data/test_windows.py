"""Windows of contexts: cuts, characters of tokens, and positions of answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raised import raises_code
from tiny import END, VOCABULARY, tiny_decoder_tokenizer, tiny_tokenizer
from tokenizer_kinds import KINDS
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from paratune.config.task_sections import QuestionAnsweringTask
from paratune.data.columns import AnswerSpan, Samples
from paratune.data.encode import BOUNDS, CHAR_END, CHAR_START, TokenizeOptions, are_too_long, question_room
from paratune.data.questions import answer_tokens, count_unreachable_answers
from paratune.data.token_store import TokenStore
from paratune.data.tokens import tokenize

QUESTION = "the film is"
CONTEXT = "one two three four five six seven eight nine ten"


def samples(*pairs: tuple[str, str]) -> Samples:
    rows = np.arange(len(pairs))
    return Samples([pair[0] for pair in pairs], [pair[1] for pair in pairs], None, None, rows, None, {})


@pytest.fixture
def options(tmp_path: Path) -> TokenizeOptions:
    return TokenizeOptions(tiny_tokenizer(), 12, need_token_type_ids=True, cache_dir=tmp_path)


def windows_of(given: Samples, options: TokenizeOptions, stride: int) -> TokenStore:
    return tokenize(given, options, QuestionAnsweringTask(kind="qa", stride=stride))


def tokens(store: TokenStore, window: int) -> list[str]:
    return [VOCABULARY[token] for token in store.tokens[store.offsets[window] : store.offsets[window + 1]]]


def spans(store: TokenStore, window: int, context: str) -> list[str]:
    inside = slice(store.offsets[window], store.offsets[window + 1])
    pairs = zip(
        store.token_values[CHAR_START][inside].tolist(), store.token_values[CHAR_END][inside].tolist(), strict=True
    )
    return ["-" if start < 0 else context[start:end] for start, end in pairs]


def test_windows_have_the_question_and_share_the_stride(options: TokenizeOptions):
    store = windows_of(samples((QUESTION, CONTEXT), (QUESTION, "good")), options, 2)
    # 12 tokens: [CLS], 3 of the question, [SEP], 6 of the context, [SEP]; the next window begins 2 before the end.
    assert [" ".join(tokens(store, window)) for window in range(3)] == [
        "[CLS] the film is [SEP] one two three four five six [SEP]",
        "[CLS] the film is [SEP] five six seven eight nine ten [SEP]",
        "[CLS] the film is [SEP] good [SEP]",
    ]
    assert store.examples.tolist() == [0, 0, 1]
    assert store.row_values[BOUNDS].tolist() == [[0, 5, 11], [0, 5, 11], [0, 5, 6]]
    assert store.lengths.tolist() == store.full_lengths.tolist() == [12, 12, 7]
    assert store.type_ids is not None
    assert store.type_ids[:12].tolist() == [0] * 5 + [1] * 7
    assert spans(store, 1, CONTEXT) == ["-"] * 5 + ["five", "six", "seven", "eight", "nine", "ten", "-"]


def test_windows_are_tokenized_once(options: TokenizeOptions):
    first = windows_of(samples((QUESTION, CONTEXT)), options, 2)
    again = windows_of(samples((QUESTION, CONTEXT)), replace(options, tokenizer=tiny_tokenizer()), 2)
    assert again.fingerprint == first.fingerprint
    assert again.row_values[BOUNDS].tolist() == first.row_values[BOUNDS].tolist()
    assert windows_of(samples((QUESTION, CONTEXT)), options, 3).fingerprint != first.fingerprint


def test_the_state_of_the_tokenizer_does_not_change(options: TokenizeOptions):
    windows_of(samples((QUESTION, CONTEXT)), options, 2)
    are_too_long([QUESTION], options, 2)
    assert options.tokenizer.backend_tokenizer.truncation is None


@pytest.mark.parametrize(
    ("answer", "actual"),
    [
        ("three", [[7, 7], [0, 0]]),
        ("two three four", [[6, 8], [0, 0]]),
        ("five six", [[9, 10], [5, 6]]),
        ("six seven", [[0, 0], [6, 7]]),
        ("ten", [[0, 0], [10, 10]]),
        ("hre", [[7, 7], [0, 0]]),  # a part of a word
        (" three ", [[7, 7], [0, 0]]),
        ("four five six seven", [[0, 0], [0, 0]]),  # longer than what windows share
    ],
)
def test_labels_are_the_answer_where_a_window_contains_it_whole(
    options: TokenizeOptions, answer: str, actual: list[list[int]]
):
    store = windows_of(samples((QUESTION, CONTEXT)), options, 2)
    answers = [(AnswerSpan(answer, CONTEXT.index(answer)), AnswerSpan("one", 0))]
    positions = answer_tokens(store, answers)
    assert positions.tolist() == actual
    assert count_unreachable_answers(store, positions, answers) == int(actual == [[0, 0], [0, 0]])


def test_the_label_of_a_question_without_an_answer_is_cls(options: TokenizeOptions):
    store = windows_of(samples((QUESTION, CONTEXT)), options, 2)
    positions = answer_tokens(store, [()])
    assert positions.tolist() == [[0, 0], [0, 0]]
    assert count_unreachable_answers(store, positions, [()]) == 0


@pytest.mark.parametrize(
    ("context", "answer", "actual"),
    [
        ("o joa\u0303o e\u0301 bom 😀 good", "joa\u0303o", "joa\u0303o"),  # letters and combining marks
        ("É bom 😀 good", "good", "good"),
        ("um 👩‍💻 bom", "👩‍💻", "👩‍💻"),
        ("\u200bgood\u00a0\u3000 bad\n", "bad", "bad"),
    ],
)
def test_offsets_count_characters_of_the_unchanged_text(
    options: TokenizeOptions, context: str, answer: str, actual: str
):
    store = windows_of(samples(("good", context)), replace(options, max_length=40), 8)
    start = context.index(answer)
    ((first, last),) = answer_tokens(store, [(AnswerSpan(answer, start),)]).tolist()
    assert first >= store.row_values[BOUNDS][0, 1]
    assert context[store.token_values[CHAR_START][first] : store.token_values[CHAR_END][last]] == actual


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_all_kinds_of_tokenizers_keep_their_letters(tmp_path: Path, kind: str):
    context = "Anna saw I. A dog in Lisbon é  feita\r\nmas 日本 a"
    answers = ["Anna", "saw", "I", "A dog", "Lisbon é  feita", "mas", "日本", "a"]
    starts = [*(context.index(answer) for answer in answers[:-1]), len(context) - 1]
    options = TokenizeOptions(KINDS[kind](), 64, cache_dir=tmp_path)
    store = windows_of(samples(*[("dog", context)] * len(answers)), options, 8)
    gold = [(AnswerSpan(answer, start),) for answer, start in zip(answers, starts, strict=True)]
    places = store.offsets[:-1, None] + answer_tokens(store, gold)
    first, last = store.token_values[CHAR_START][places[:, 0]], store.token_values[CHAR_END][places[:, 1]]
    assert [context[begin:end] for begin, end in zip(first.tolist(), last.tolist(), strict=True)] == answers


def byte_tokenizer(**special: Any) -> PreTrainedTokenizerFast:
    """GPT-2's kind: bytes, and tokens that begin with the space before a word."""
    ids = {letter: number for number, letter in enumerate(["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    merges = [("Ġ", "t"), ("w", "o"), ("Ġt", "wo")]
    ids |= {first + second: len(ids) + number for number, (first, second) in enumerate(merges)}
    inner = Tokenizer(models.BPE(vocab=ids, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>", **special)


def test_without_cls_an_added_end_token_means_no_answer(tmp_path: Path):
    options = TokenizeOptions(byte_tokenizer(), 12, cache_dir=tmp_path)
    context = "a two b😀  two"
    store = windows_of(samples(("q?", context)), options, 4)
    assert len(store) > 1
    for window, (null, begin, end) in enumerate(store.row_values[BOUNDS].tolist()):
        ids = store.tokens[store.offsets[window] : store.offsets[window + 1]].tolist()
        assert len(ids) <= 12
        assert (null, ids[null], begin, end) == (len(ids) - 1, 0, 3, len(ids) - 1)
    # "Ġtwo" is " two" to the tokenizer and "two" here; each of the emoji's four bytes has the place of all of it.
    assert spans(store, 0, context)[:9] == ["-", "-", "-", "a", "two", "", "b", "😀", "😀"]
    answers = [(AnswerSpan("😀", 7),)]
    assert answer_tokens(store, answers)[0].tolist() == [7, 10]


def test_without_cls_and_end_token_the_first_token_means_no_answer(tmp_path: Path):
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    store = windows_of(samples(("q?", "two")), TokenizeOptions(tokenizer, 12, cache_dir=tmp_path), 4)
    assert store.row_values[BOUNDS].tolist() == [[0, 3, 5]]  # t, wo


def test_question_and_context_of_a_decoder_are_separated_by_a_line_break(tmp_path: Path):
    tokenizer = tiny_decoder_tokenizer()
    options = TokenizeOptions(tokenizer, 12, cache_dir=tmp_path)
    store = windows_of(samples(("who?", "Ana e Rui")), options, 2)
    windows = [
        tokenizer.decode(store.tokens[store.offsets[number] : store.offsets[number + 1]].tolist())
        for number in range(len(store))
    ]
    assert windows == [f"who?\n{part}{END}" for part in ("Ana e ", "e Rui")]
    assert spans(store, 0, "Ana e Rui") == ["-"] * 5 + ["A", "n", "a", "", "e", "", "-"]
    # Of 12 tokens an end token, the line break, 2 that are shared and a new one leave 7 to the question.
    assert are_too_long(["1234567", "12345678"], options, 2) == [False, True]
    with raises_code("task.stride", "9", "2", "8"):
        question_room(options, 9)
    assert are_too_long(["1", "12"], options, 8) == [False, True]


def test_a_question_is_too_long_when_no_new_token_of_the_context_fits(options: TokenizeOptions):
    assert question_room(options, 2) == 12 - 3 - 2 - 1
    at_most = " ".join(["one"] * question_room(options, 2))
    assert are_too_long([at_most, at_most + " two"], options, 2) == [False, True]
    store = windows_of(samples((at_most, CONTEXT)), options, 2)
    assert store.row_values[BOUNDS][:, 2].max() - store.row_values[BOUNDS][:, 1].max() == 3
    assert are_too_long([], options, 2) == []


def test_a_stride_without_room_is_an_error(options: TokenizeOptions):
    with raises_code("task.stride", "task.stride: 8", "3", "12", "7"):
        question_room(options, 8)
    assert question_room(options, 7) == 1


def test_a_slow_tokenizer_is_an_error(options: TokenizeOptions):
    class Slow:
        is_fast = False

    with raises_code("tokenizer.unsupported", key="model"):
        question_room(replace(options, tokenizer=Slow()), 2)


def test_a_context_without_tokens_is_reported_with_its_row(options: TokenizeOptions):
    with raises_code("data.no_tokens", "row 1"):
        windows_of(samples((QUESTION, CONTEXT), (QUESTION, "\u200b")), options, 2)
