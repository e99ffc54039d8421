"""Countable facts of essays, and similar essays."""

import pytest

from paratune.feedback.feedback import nearest
from paratune.feedback.surface import compare_length, surface_facts

ESSAY = """In my opinion it is good. In my opinion it is bad!

But in my opinion it is late, and the end of the day is the end of the day."""


def test_counts_of_a_text():
    found = surface_facts(ESSAY)
    assert (found.num_words, found.num_sentences, found.num_paragraphs) == (31, 3, 2)
    assert found.words_per_sentence == pytest.approx(31 / 3)
    # in my opinion it is good bad but late and the end of day: 14 different words.
    assert found.different_words_share == pytest.approx(14 / 31)


def test_repeated_phrases_are_the_longest_ones():
    assert surface_facts(ESSAY).repeated_phrases == (("in my opinion it is", 3),)
    assert surface_facts("a b c. a b c. x a b").repeated_phrases == ()


def test_a_part_of_a_phrase_that_occurs_more_often_is_shown():
    found = surface_facts("a b c d x a b c d y a b c d z a b c")
    assert found.repeated_phrases == (("a b c d", 3), ("a b c", 4))


def test_length_is_compared_with_the_same_prompt_where_there_are_five():
    lengths, prompts = [100, 200, 300, 400, 500, 10, 20], ["a"] * 5 + ["b"] * 2
    same = compare_length(250, "a", lengths, prompts)
    assert (same.num_texts, same.same_prompt, same.quartiles, same.share_below) == (5, True, (200, 300, 400), 0.4)
    few = compare_length(250, "b", lengths, prompts)
    assert (few.num_texts, few.same_prompt) == (7, False)


def test_nearest_texts_share_words_and_are_not_equal():
    reference = ["red apples are sweet", "the train is late", "green apples are sour", "nothing"]
    (found,) = nearest(["red apples are sweet"], reference, 2)
    assert [neighbour.index for neighbour in found] == [2]
    assert 0 < found[0].similarity < 1
    assert nearest(["xyz"], reference, 2) == [[]]
