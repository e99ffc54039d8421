import random
from collections import Counter, defaultdict

import numpy as np
import pytest

from paratune.corpus.sentences.ngram import USUAL_DISCOUNTS, _discounts, load_ngram, ngram_perplexity, train

kenlm = pytest.importorskip("kenlm")


def trained(tmp_path, sentences, vocabulary=1000, order=3):
    path = tmp_path / "model.arpa"
    learnt = train(lambda: sentences, path, vocabulary=vocabulary, order=order)
    return learnt, load_ngram(str(path), str(path.read_bytes()))


def probability(model, context, word):
    """Of a word after a context, of which <s> is the beginning of a sentence."""
    state, following = kenlm.State(), kenlm.State()
    begins = context[:1] == ["<s>"]
    (model.BeginSentenceWrite if begins else model.NullContextWrite)(state)
    for item in context[begins:]:
        model.BaseScore(state, item, following)
        state, following = following, kenlm.State()
    return 10 ** model.BaseScore(state, word, following)


def words_in(tmp_path):
    unigrams = (tmp_path / "model.arpa").read_text().split("\\1-grams:\n")[1].split("\n\n")[0]
    return [line.split("\t")[1] for line in unigrams.split("\n")]


def test_bigrams_by_hand(tmp_path):
    """Two sentences, a b and a c.

    Words by the number of different previous words: a 1, b 1, c 1, </s> 2, of 5. Too few to compute discounts from:
    0.5 of what is there once, 1 of what is there twice. Their sum, (3 * 0.5 + 1) / 5 = 0.5, is spread over a, b, c,
    </s> and one unknown word, 0.1 each. So p(a) = p(b) = p(c) = 0.5 / 5 + 0.1 = 0.2, p(</s>) = 1 / 5 + 0.1 = 0.3,
    p(<unk>) = 0.1.

    After <s>: a twice of 2, so p(a) = (2 - 1) / 2 + 1/2 * 0.2 = 0.6. After a: b and c once of 2, so p(b) = 0.5 / 2 +
    (2 * 0.5) / 2 * 0.2 = 0.35. After b: </s> once of 1, so 0.5 + 0.5 * 0.3 = 0.65.
    """
    learnt, model = trained(tmp_path, [["a", "b"], ["a", "c"]], order=2)
    assert learnt["discounts"] == [list(USUAL_DISCOUNTS)] * 2
    assert learnt["num_ngrams"] == [6, 5]
    expected = {
        ((), "a"): 0.2,
        ((), "b"): 0.2,
        ((), "</s>"): 0.3,
        ((), "new"): 0.1,
        (("<s>",), "a"): 0.6,
        (("<s>",), "b"): 0.5 * 0.2,
        (("a",), "b"): 0.35,
        (("a",), "</s>"): 0.5 * 0.3,
        (("b",), "</s>"): 0.65,
        (("b",), "new"): 0.5 * 0.1,
    }
    for (context, word), share in expected.items():
        assert probability(model, list(context), word) == pytest.approx(share, rel=1e-5), (context, word)
    assert ngram_perplexity(model, "a b") == pytest.approx((0.6 * 0.35 * 0.65) ** (-1 / 3), rel=1e-5)


def test_discounts_by_the_formula_of_chen_and_goodman():
    # n1 to n4 are 8, 4, 2, 1: Y = 8 / (8 + 2 * 4) = 0.5, D1 = 1 - 2 Y 4/8, D2 = 2 - 3 Y 2/4, D3 = 3 - 4 Y 1/2.
    counts = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4] + [9] * 3)
    assert _discounts(counts) == pytest.approx([0.5, 1.25, 2.0])
    assert _discounts(np.array([1, 1, 2, 5])) == list(USUAL_DISCOUNTS)  # nothing is there three times
    assert _discounts(np.array([1, 2, 3, 3, 3, 3])) == list(
        USUAL_DISCOUNTS
    )  # D2 = 2 - 3 * 1/3 * 4 / 1 would be below 0


DIGITS = str.maketrans("0123456789", "abcdefghij")


class Direct:
    """The formulas over dictionaries, each as it is written: p(w | h) = (c - D) / sum c + gamma(h) p(w | shorter h)."""

    def __init__(self, sentences, vocabulary):
        counts = Counter(word for sentence in sentences for word in sentence)
        known = set(sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary])
        self.left_out = max(1, len(counts) - len(known))
        self.num_types = len(known) + 1 + self.left_out
        raw = [Counter() for _ in range(4)]
        for item in sentences:
            words = ["<s>", *(word if word in known else "<unk>" for word in item), "</s>"]
            for n in (1, 2, 3):
                raw[n].update(tuple(words[at : at + n]) for at in range(len(words) - n + 1))
        self.counts = {3: raw[3]}
        for n in (1, 2):
            before = defaultdict(set)
            for gram in raw[n + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[n] = {
                gram: raw[n][gram] if gram[0] == "<s>" else len(before[gram]) for gram in raw[n] if gram != ("<s>",)
            }
        self.discounts = {n: [0, *_discounts(np.array(list(result.values())))] for n, result in self.counts.items()}

    def __call__(self, context, word):
        n = len(context) + 1
        following = {gram: count for gram, count in self.counts[n].items() if gram[:-1] == tuple(context)}
        uniform = (self.left_out if word == "<unk>" else 1) / self.num_types
        lower = uniform if n == 1 else self(context[1:], word)
        if not following:
            return lower
        total, discounts = sum(following.values()), self.discounts[n]
        count = following.get((*context, word), 0)
        taken = sum(discounts[min(value, 3)] for value in following.values())
        return (count - discounts[min(count, 3)]) / total + taken / total * lower


def random_sentences(num=60, words=12, seed=2):
    chance = random.Random(seed)
    names = [f"w{number}".translate(DIGITS) for number in range(words)]
    shares = [1 / (number + 1) for number in range(words)]
    return [chance.choices(names, shares, k=chance.randint(1, 7)) for _ in range(num)]


@pytest.mark.parametrize("vocabulary", [7, 1000])
def test_trigrams_are_those_of_the_formulas_and_sum_to_one(tmp_path, vocabulary):
    sentences = random_sentences()
    learnt, model = trained(tmp_path, sentences, vocabulary)
    direct = Direct(sentences, vocabulary)
    assert learnt["num_left_out"] == (5 if vocabulary == 7 else 0)
    words = [word for word in words_in(tmp_path) if word != "<s>"]
    assert "<unk>" in words
    for context in ([], ["<s>"], ["wa"], ["wg"], ["<s>", "wb"], ["wa", "wb"], ["wg", "wg"], ["wb", "other"]):
        known = [word if word in words or word == "<s>" else "<unk>" for word in context]
        total = 0.0
        for word in words:
            share = probability(model, context, "other" if word == "<unk>" else word)
            share *= direct.left_out if word == "<unk>" else 1
            assert share == pytest.approx(direct(known, word), rel=1e-4), (context, word)
            total += share
        assert total == pytest.approx(1.0, abs=1e-5), context


def test_words_of_the_vocabulary_are_the_most_frequent_ones(tmp_path):
    sentences = [["d", "c", "b", "b"], ["a", "c"]]  # b and c twice, a and d once: a comes first
    learnt, _ = trained(tmp_path, sentences, vocabulary=3)
    assert words_in(tmp_path) == ["<unk>", "<s>", "</s>", "b", "c", "a"]
    assert (learnt["num_sentences"], learnt["num_words"], learnt["vocabulary_size"], learnt["num_left_out"]) == (
        2,
        6,
        3,
        1,
    )


def test_unknown_words_have_a_high_perplexity(tmp_path):
    sentences = random_sentences(400, words=2000)
    learnt, model = trained(tmp_path, sentences, vocabulary=20)
    # An unknown word follows more often than any known one, but it may be any of these.
    assert learnt["num_left_out"] > 300
    assert ngram_perplexity(model, "x y z") > 5 * ngram_perplexity(model, "wa wb wa")
    assert ngram_perplexity(model, "\x00") is None


def test_without_a_word_there_is_no_model(tmp_path):
    assert train(lambda: [[]], tmp_path / "model.arpa", vocabulary=10) is None
    assert list(tmp_path.iterdir()) == []
