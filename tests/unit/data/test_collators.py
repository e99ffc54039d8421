"""Collators of hidden tokens and of windows of questions."""

import math
import time

import numpy as np
import pytest
import torch
from tiny import SPECIAL, VOCABULARY, tiny_tokenizer
from tiny_data import tiny_masking
from tiny_questions import tiny_windows

from paratune.config.task_sections import MaskedLMTask
from paratune.data.collators import IGNORED, MaskingCollator, greedy_fit, num_hidden, replace_hidden
from paratune.data.columns import Samples
from paratune.data.encode import BOUNDS, TokenizeOptions
from paratune.data.loader import TrainBatches, eval_batches
from paratune.data.token_store import TokenStore
from paratune.data.tokenizers import Vocabulary, mask_vocabulary
from paratune.data.tokens import tokenize

MASK = VOCABULARY.index("[MASK]")


def window_store(num_windows: int, length: int, num_words: int, word_length: int = 1, seed: int = 0) -> TokenStore:
    """Return windows of one special token, random ordinary ones, and one special token."""
    tokens = np.random.default_rng(seed).integers(5, num_words, (num_windows, length)).astype(np.uint16)
    tokens[:, [0, -1]] = 2
    starts = np.tile((np.arange(length) % word_length == 0).astype(np.uint8), num_windows)
    offsets = np.arange(num_windows + 1, dtype=np.int64) * length
    return TokenStore(
        tokens.ravel(),
        None,
        offsets,
        np.full(num_windows, length, dtype=np.int32),
        length,
        "0" * 64,
        token_values={"word_start": starts},
        row_values={"num_maskable": np.full(num_windows, length - 2, dtype=np.int32)},
    )


def vocabulary(num_words: int) -> Vocabulary:
    ids = np.arange(num_words)
    return Vocabulary(4, ids < 5, ids[5:])


def collator(num_windows=64, length=130, num_words=1000, word_length=1, **options) -> MaskingCollator:
    return MaskingCollator(
        window_store(num_windows, length, num_words, word_length), vocabulary(num_words), 0, **options
    )


def labels_of(made: MaskingCollator, epoch: int | None, rows=None) -> torch.Tensor:
    rows = np.arange(len(made.store)) if rows is None else np.asarray(rows)
    return made(rows, 1.0, epoch=epoch).labels


@pytest.mark.parametrize(
    ("num_maskable", "probability", "hidden"),
    [
        (510, 0.15, 76),  # 76.5: half goes to even
        (512, 0.15, 77),  # 76.8; what BERT's create_pretraining_data.py hides of 510 tokens, [CLS] and [SEP]
        (30, 0.15, 4),  # 4.5
        (126, 0.15, 19),  # 18.9
        (10, 0.15, 2),  # 1.5
        (3, 0.15, 1),  # 0.45, and one at least
        (1, 0.15, 1),
        (0, 0.15, 0),
        (5, 0.99, 5),
    ],
)
def test_how_many_tokens_are_hidden(num_maskable, probability, hidden):
    assert int(num_hidden(num_maskable, probability)) == hidden


def test_each_window_hides_the_exact_number_of_ordinary_tokens():
    made = collator()
    batch = made(np.arange(64), 1.0, epoch=0)
    assert (batch.labels >= 0).sum(dim=1).tolist() == [19] * 64
    assert (batch.labels[:, [0, -1]] == IGNORED).all(), "special tokens"
    plain = torch.from_numpy(made.store.tokens.astype(np.int64)).reshape(64, -1)
    is_hidden = batch.labels >= 0
    assert torch.equal(batch.labels[is_hidden], plain[is_hidden])
    assert batch.label_places.tolist() == is_hidden.flatten().nonzero().flatten().tolist()
    assert torch.equal(batch.input_ids[~is_hidden], plain[~is_hidden])
    assert made.loss_denominator(np.arange(64), epoch=0) == 64 * 19


def within(count: int, total: int, share: float) -> bool:
    """Return whether a count is within five standard deviations of the binomial distribution: 1 draw in 1.7 million."""
    return abs(count - total * share) <= 5 * math.sqrt(total * share * (1 - share))


def test_hidden_tokens_are_80_per_cent_masks_10_random_10_unchanged():
    made = collator(num_windows=2000, num_words=60)
    batch = made(np.arange(2000), 1.0, epoch=0)
    is_hidden = batch.labels >= 0
    inputs, labels = batch.input_ids[is_hidden], batch.labels[is_hidden]
    total = 2000 * 19
    assert len(labels) == total
    assert within(int((inputs == 4).sum()), total, 0.8)
    # Of the tenth that is drawn from the 55 ordinary tokens, one in 55 is by chance what was there.
    assert within(int((inputs == labels).sum()), total, 0.1 + 0.1 / 55)
    drawn = inputs[(inputs != 4) & (inputs != labels)]
    counts = np.bincount(drawn, minlength=60)
    assert counts[:5].tolist() == [0] * 5, "never a special token"
    assert all(within(int(count), total, 0.1 / 55 * 54 / 55) for count in counts[5:])


def test_all_positions_are_hidden_equally_often():
    actual = sum((labels_of(collator(num_windows=500), epoch) >= 0).sum(dim=0) for epoch in range(4))
    assert actual[0] == actual[-1] == 0
    assert all(within(int(count), 2000, 19 / 128) for count in actual[1:-1])


def test_masks_depend_only_on_seed_epoch_and_window():
    made = collator(seed=7)
    first, second = (labels_of(made, epoch) for epoch in (0, 1))
    assert not torch.equal(first, second), "dynamic: others in every epoch"
    assert not torch.equal(first, labels_of(collator(seed=8), 0))
    assert not torch.equal(first[0] >= 0, first[1] >= 0), "others in every window"
    # Whatever came before it, and with which others it is in a batch.
    again = collator(seed=7)
    assert torch.equal(labels_of(again, 1, [5]), second[[5]])
    batch, alone = again(np.array([9, 3, 40]), 1.0, epoch=0), again(np.array([3]), 1.0, epoch=0)
    assert torch.equal(batch.labels, first[[9, 3, 40]])
    assert torch.equal(batch.input_ids[[1]], alone.input_ids)


def test_the_masks_of_a_seed_never_change():
    # Philox 4x64-10 keyed by SeedSequence: NumPy keeps its words for ever (NEP 19); so a run can be made again.
    key = np.random.SeedSequence((7, 3, 2**32 + 1)).generate_state(2, np.uint64)
    words = np.random.Philox(key=key, counter=np.array([0, 0, 0, 5], dtype=np.uint64)).random_raw(128)
    wanted = sorted(1 + np.argsort(words)[:19])
    assert np.flatnonzero(labels_of(collator(seed=7), 3, [5])[0] >= 0).tolist() == wanted


def test_an_evaluation_has_its_own_random_stream():
    # SeedSequence takes 2**32 + 2 for [2, 1]: the key of the order of epoch 1 of seed 2 (`order.random_keys`).
    actual = []
    for stream in ((0, 0, 2**32 + 2), (2, 1)):
        key = np.random.SeedSequence(stream).generate_state(2, np.uint64)
        words = np.random.Philox(key=key, counter=np.array([0, 0, 0, 5], dtype=np.uint64)).random_raw(128)
        actual.append(sorted(1 + np.argsort(words)[:19]))
    hidden = np.flatnonzero(labels_of(collator(), None, [5])[0] >= 0).tolist()
    assert hidden == actual[0] != actual[1]


def test_whole_words_are_drawn_once_per_step_and_counted_once_for_evaluations(monkeypatch):
    made, draw, drawn = tiny_masking(27, whole_words=True, seed=3), MaskingCollator._draw, []

    def counted(self, window, epoch):
        drawn.append((epoch, window))
        return draw(self, window, epoch)

    monkeypatch.setattr(MaskingCollator, "_draw", counted)
    for step in range(3):
        _step(made, 1, 2, 0, step)
    assert len(drawn) == len(set(drawn)) == 24
    drawn.clear()
    for _ in range(2):
        list(eval_batches(made, batch_size=8))
    assert len(drawn) == 3 * 27  # to count, and for the batches of each


def test_masks_of_evaluations_do_not_depend_on_the_seed():
    first = collator(seed=1)(np.arange(64), 1.0)
    again = collator(seed=2)(np.arange(64), 1.0)
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.input_ids, again.input_ids)
    (whole,) = eval_batches(collator(), batch_size=64)
    parts = [
        batch
        for rank in range(2)
        for batch in eval_batches(collator(), batch_size=8, data_rank=rank, data_world_size=2)
    ]
    rows = {int(row): labels for batch in parts for row, labels in zip(batch.index, batch.labels, strict=True)}
    assert all(torch.equal(rows[int(row)], labels) for row, labels in zip(whole.index, whole.labels, strict=True))
    assert whole.loss_denominator == parts[0].loss_denominator == 64 * 19


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("ranks", "micro_steps"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_masks_of_a_step_do_not_depend_on_ranks_and_accumulation(ranks, micro_steps, whole_words):
    made = tiny_masking(27, whole_words=whole_words, seed=3)
    for step in (0, 3, 5):  # the fourth has 3 windows; the last one is of the second epoch
        whole, (alone,) = {}, _step(made, 1, 1, 0, step)
        for rank in range(ranks):
            for batch in _step(made, ranks, micro_steps, rank, step):
                assert batch.loss_denominator == alone.loss_denominator
                for row, inputs, labels in zip(batch.index, batch.input_ids, batch.labels, strict=True):
                    whole[int(row)] = (inputs, labels)
        whole.pop(-1, None)
        assert sorted(whole) == sorted(alone.index.tolist())
        assert sum(int((labels >= 0).sum()) for _, labels in whole.values()) == alone.loss_denominator
        for row, inputs, labels in zip(alone.index, alone.input_ids, alone.labels, strict=True):
            length = int(made.store.lengths[row])
            assert torch.equal(whole[int(row)][0][:length], inputs[:length])
            assert torch.equal(whole[int(row)][1][:length], labels[:length])


def _step(made, ranks, micro_steps, rank, step):
    size = 8 // ranks // micro_steps
    return TrainBatches(made, 3, 8, size, micro_steps, rank, ranks).step(step)


def test_filler_rows_have_no_labels():
    batch = collator()(np.array([], dtype=np.int64), 5.0, epoch=0, num_rows=2, length=20)
    assert batch.labels.shape == batch.input_ids.shape == (2, 20)
    assert (batch.labels == IGNORED).all()
    assert batch.loss_denominator == 5.0


def test_a_step_without_maskable_tokens_has_the_denominator_1():
    made = collator(num_windows=2, length=2)
    assert made.loss_denominator(np.arange(2), epoch=0) == 1.0
    assert (labels_of(made, 0) == IGNORED).all()
    words = collator(num_windows=2, length=2, whole_words=True)
    assert words.loss_denominator(np.arange(2), epoch=0) == 1.0
    assert (labels_of(words, 0) == IGNORED).all()


@pytest.mark.parametrize(
    ("sizes", "room", "chosen"),
    [
        ([1, 1, 1, 1], 3, [0, 1, 2]),
        ([2, 2, 2, 1], 3, [0, 3]),
        ([3, 1, 1], 3, [0]),
        ([4, 5, 1, 7, 2], 3, [2, 4]),
        ([4, 5], 3, []),
        ([1, 9, 2, 9, 1, 1], 5, [0, 2, 4, 5]),
        ([], 3, []),
        ([1], 0, []),
    ],
)
def test_words_are_hidden_as_long_as_they_fit(sizes, room, chosen):
    # As the loop of BERT's create_masked_lm_predictions: skip a word that would be too much, then try the next.
    assert greedy_fit(np.asarray(sizes, dtype=np.int64), room) == chosen


def test_fitting_equals_the_loop_of_bert():
    draw = np.random.default_rng(0)
    for _ in range(200):
        sizes, room = draw.integers(1, 7, draw.integers(1, 40)), int(draw.integers(0, 30))
        wanted, left = [], room
        for number, size in enumerate(sizes.tolist()):
            if size <= left:
                wanted.append(number)
                left -= size
        assert greedy_fit(sizes, room) == wanted


def test_whole_words_are_hidden_completely():
    made = collator(length=122, word_length=4, whole_words=True)
    labels = labels_of(made, 0)
    is_hidden = (labels >= 0).reshape(-1)
    words = np.repeat(np.arange(64 * 31), 4)[: 64 * 124].reshape(64, 124)[:, :122].ravel()
    is_ordinary = (made.store.tokens != 2).astype(int)
    hidden, sizes = np.bincount(words, is_hidden), np.bincount(words, is_ordinary)
    assert ((hidden == 0) | (hidden == sizes)).all()
    # 18 of 120 tokens; words of 4 tokens, but for the first and the last, fill at most that.
    per_window = (labels >= 0).sum(dim=1)
    assert ((per_window > 14) & (per_window <= 18)).all()
    assert made.loss_denominator(np.arange(64), epoch=0) == float(per_window.sum())
    assert not torch.equal(labels, labels_of(made, 1))


def test_a_window_of_long_words_hides_one_of_them():
    # 2 of 11 tokens would be hidden, and no word of 3 or 4 fits: one is taken all the same.
    made = collator(num_windows=20, length=13, word_length=4, whole_words=True)
    assert {int(count) for count in (labels_of(made, 0) >= 0).sum(dim=1)} == {3, 4}


def test_pieces_of_a_word_are_hidden_together(tmp_path):
    # In WordPiece a token that begins with ## continues the word of the one before it.
    texts = ["good xyz film qwerty", "bad books and abc", "the phones again"] * 5
    tokenizer = tiny_tokenizer()
    samples = Samples(texts, None, None, None, np.arange(15), None, {})
    store = tokenize(
        samples, TokenizeOptions(tokenizer, 16, cache_dir=tmp_path), MaskedLMTask(kind="mlm", whole_words=True)
    )
    made = MaskingCollator(store, mask_vocabulary(tokenizer), 0, probability=0.4, whole_words=True)
    batch = made(np.arange(len(store)), 1.0, epoch=0)
    plain = np.split(store.tokens, store.offsets[1:-1])
    num_joined = 0
    for row, tokens in enumerate(plain):
        is_hidden = (batch.labels[row, : len(tokens)] >= 0).tolist()
        for place, token in enumerate(tokenizer.convert_ids_to_tokens(tokens.tolist())):
            if token.startswith("##") and place > 1:  # at place 1 a cut has left it
                assert is_hidden[place] == is_hidden[place - 1]
                num_joined += is_hidden[place]
    assert num_joined > 5


def test_replacements_are_ordinary_tokens():
    tokens = np.full(1000, 6)
    actual = replace_hidden(tokens, vocabulary(9), np.random.Philox(1))
    assert set(actual.tolist()) == {4, 5, 6, 7, 8}
    assert len(SPECIAL) == 5


def test_a_masked_batch_takes_few_milliseconds():
    for whole_words in (False, True):
        made = collator(32, 512, 30_000, 2, whole_words=whole_words)
        seconds = []
        for epoch in range(10):
            begin = time.thread_time()
            made(np.arange(32), made.loss_denominator(np.arange(32), epoch=epoch), epoch=epoch)
            seconds.append(time.thread_time() - begin)
        # 2 to 4 ms on one core; the bound is for slow machines.
        assert min(seconds) < 0.05


def test_a_filler_row_has_valid_bounds_and_labels():
    collator = tiny_windows(6)
    batch = collator(np.array([4, 2]), 1.0, num_rows=4)
    bounds = torch.from_numpy(collator.store.row_values[BOUNDS])
    assert batch.row_bounds is not None
    assert batch.labels is not None
    # Filler rows keep only the first tokens of window 0, so that positions of its context and answer may not exist.
    assert batch.row_bounds.tolist() == [bounds[4].tolist(), bounds[2].tolist(), [0, 0, 1], [0, 0, 1]]
    assert batch.labels[2:].tolist() == [[0, 0], [0, 0]]
    assert batch.labels[:2].tolist() == collator.inner.labels[[4, 2]].tolist()


def test_a_batch_without_samples_has_one_valid_row():
    batch = tiny_windows(6)(np.array([], dtype=np.int64), 1.0)
    assert batch.row_bounds is not None
    assert batch.row_bounds.tolist() == [[0, 0, 1]]
