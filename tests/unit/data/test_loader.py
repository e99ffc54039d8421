"""Batches: padding as in transformers, and the same samples for any number of ranks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import tiny_tokenizer

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.data.columns import Samples
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import Collator, PackedCollator, TrainBatches, eval_batches
from paratune.data.tokens import tokenize
from paratune.records.efficiency import noise_estimates

TEXTS = [" ".join(["good"] * (1 + number * 7 % 11)) for number in range(23)]


@pytest.fixture(scope="module")
def collator(tmp_path_factory) -> Collator:
    labels = np.arange(len(TEXTS), dtype=np.int64) % 3
    samples = Samples(TEXTS, None, labels, None, np.arange(len(TEXTS)), None, {})
    cache = tmp_path_factory.mktemp("cache")
    store = tokenize(samples, TokenizeOptions(tiny_tokenizer(), 10, need_token_type_ids=True, cache_dir=cache))
    return Collator(store, labels, pad_token_id=0)


def test_a_batch_equals_the_padded_output_of_the_tokenizer(collator):
    indices = np.asarray([3, 0, 17])
    batch = collator(indices, 6)
    theirs = tiny_tokenizer()(
        [TEXTS[index] for index in indices], truncation=True, max_length=10, padding=True, return_tensors="pt"
    )
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        ours = getattr(batch, name)
        assert torch.equal(ours, theirs[name])
        assert ours.dtype == torch.int64
    assert batch.labels.tolist() == [0, 0, 2]
    assert batch.index.tolist() == [3, 0, 17]
    assert batch.row_weight.tolist() == [1.0, 1.0, 1.0]
    assert (batch.num_samples, batch.loss_denominator) == (3, 6.0)
    assert (batch.num_tokens, batch.num_padded_tokens) == (int(theirs["attention_mask"].sum()), 3 * batch.max_seqlen)


def test_the_collator_uses_its_pad_token(collator):
    batch = Collator(collator.store, None, pad_token_id=7)(np.asarray([0, 3]), 2)
    assert set(batch.input_ids[batch.attention_mask == 0].tolist()) == {7}
    assert batch.labels is None


def test_an_empty_batch_is_one_filler_row_that_counts_nothing(collator):
    batch = collator(np.asarray([], dtype=np.int64), 6)
    assert (batch.row_weight.tolist(), batch.index.tolist()) == ([0.0], [-1])
    assert (batch.num_samples, batch.num_tokens, batch.num_padded_tokens) == (0, 0, batch.input_ids.numel())
    assert batch.input_ids.shape == batch.attention_mask.shape == batch.token_type_ids.shape
    assert batch.labels.shape == (1,)
    assert batch.attention_mask.all()


def test_targets_stay_float32(collator):
    targets = np.linspace(0, 1, len(TEXTS), dtype=np.float32)
    batch = Collator(collator.store, targets, 0)(np.asarray([1, 2]), 2)
    assert batch.labels.dtype == torch.float32
    assert batch.labels.tolist() == targets[1:3].tolist()


def train_batches(collator, rank=0, world_size=1, micro_batch_size=8, num_micro_steps=1) -> TrainBatches:
    return TrainBatches(
        collator,
        seed=5,
        global_batch_size=8,
        micro_batch_size=micro_batch_size,
        num_micro_steps=num_micro_steps,
        data_rank=rank,
        data_world_size=world_size,
    )


def kept(batches) -> list[int]:
    return sorted(index for batch in batches for index in batch.index.tolist() if index >= 0)


@pytest.mark.parametrize(
    ("world_size", "micro_batch_size", "num_micro_steps"), [(1, 2, 4), (2, 4, 1), (4, 1, 2), (3, 3, 1)]
)
def test_ranks_and_accumulation_have_the_samples_of_one_process(
    collator, world_size, micro_batch_size, num_micro_steps
):
    alone = train_batches(collator)
    ranks = [train_batches(collator, rank, world_size, micro_batch_size, num_micro_steps) for rank in range(world_size)]
    assert alone.steps_per_epoch == 3
    for step in range(7):
        made = [rank.step(step) for rank in ranks]
        assert {len(micro_batches) for micro_batches in made} == {num_micro_steps}
        assert kept(batch for micro_batches in made for batch in micro_batches) == kept(alone.step(step))
        denominators = {batch.loss_denominator for micro_batches in made for batch in micro_batches}
        assert denominators == {7.0 if step % 3 == 2 else 8.0}  # 23 samples in steps of 8


def test_an_epoch_is_every_sample_once_and_the_next_is_in_another_order(collator):
    batches = train_batches(collator)
    epochs = [[batches.indices(step).tolist() for step in range(start, start + 3)] for start in (0, 3)]
    for epoch in epochs:
        assert sorted(index for step in epoch for index in step) == list(range(len(TEXTS)))
    assert epochs[0] != epochs[1]


def test_a_step_does_not_depend_on_earlier_steps(collator):
    batches = train_batches(collator)
    expected = [batches.step(step)[0].index.tolist() for step in range(6)]
    assert train_batches(collator).step(4)[0].index.tolist() == expected[4]
    assert batches.step(1)[0].index.tolist() == expected[1]


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 4), (2, 4), (3, 5), (4, 8), (2, 100)])
def test_evaluation_counts_every_sample_once(collator, world_size, batch_size):
    made = [
        eval_batches(collator, batch_size=batch_size, data_rank=rank, data_world_size=world_size)
        for rank in range(world_size)
    ]
    ranks = [list(batches) for batches in made]
    assert {len(batches) for batches in [*made, *ranks]} == {len(made[0])}
    assert kept(batch for batches in ranks for batch in batches) == list(range(len(TEXTS)))
    assert sum(batch.num_samples for batches in ranks for batch in batches) == len(TEXTS)
    assert {batch.loss_denominator for batches in ranks for batch in batches} == {float(len(TEXTS))}
    longest = [batch.max_seqlen for batch in ranks[0]]
    assert longest == sorted(longest, reverse=True)


@pytest.mark.parametrize(("world_size", "expected"), [(1, [4, 4, 4, 5, 6]), (2, [4, 4, 4])])
def test_evaluation_batches_of_short_samples_are_larger(collator, world_size, expected):
    """Lengths are 10 (8 times), 9, 8, 7, 6, 5, 4 (twice each) and 3 (3 times); 4 of the longest are 40 tokens.

    One rank: 4 of 10, 4 of 10, 9 9 8 8 (40 / 9 = 4), 7 7 6 6 5 (40 / 7 = 5), and 5 4 4 3 3 3 (40 / 5 = 8, all that is
    left). Two ranks: 8 of 10, 9 9 8 8 7 7 6 6, and the last 7, of which the first rank gets 4.
    """
    batches = list(eval_batches(collator, batch_size=4, data_world_size=world_size))
    assert [batch.num_samples for batch in batches] == expected
    assert all(batch.num_padded_tokens <= 40 for batch in batches)


def test_buckets_sort_by_length_and_keep_the_samples_of_a_step(collator):
    plain, sorted_ones = train_batches(collator), replace(train_batches(collator), num_buckets=2)
    for step in range(6):
        before, after = plain.step(step), sorted_ones.step(step)
        assert len(after) == 2 * len(before)
        assert kept(before) == kept(after)
        assert sum(batch.num_padded_tokens for batch in after) <= sum(batch.num_padded_tokens for batch in before)
        longest = [batch.max_seqlen for batch in after if batch.num_samples]
        assert longest == sorted(longest, reverse=True)
        size = -(-plain.micro_batch_size // 2)
        assert all(batch.num_samples <= size for batch in after)
        assert {batch.loss_denominator for batch in after} == {before[0].loss_denominator}


@pytest.mark.parametrize(
    ("micro_batch_size", "num_micro_steps", "expected"),
    # 4 parts: of 1 there is nothing to cut; 2 and 4 become single samples; 5 / 4 and 6 / 4 are 2, 9 / 4 is 3.
    [(1, 8, [1] * 8), (2, 4, [1] * 8), (4, 2, [1] * 8), (5, 2, [2] * 5), (6, 1, [2] * 3), (9, 2, [3] * 6)],
)
def test_no_bucket_has_only_filler(collator, micro_batch_size, num_micro_steps, expected):
    batches = TrainBatches(
        collator,
        seed=5,
        global_batch_size=micro_batch_size * num_micro_steps,
        micro_batch_size=micro_batch_size,
        num_micro_steps=num_micro_steps,
        data_rank=0,
        data_world_size=1,
        num_buckets=4,
    )
    assert [batch.num_samples for batch in batches.step(0)] == expected


def test_evaluation_batches_have_at_most_8_times_the_batch_size(collator):
    """Some memory goes by the row: of one long row and many short ones not all short ones fit together."""
    lengths = np.asarray([512] + [4] * 100)
    store = replace(
        collator.store,
        tokens=np.zeros(lengths.sum(), np.uint16),
        type_ids=None,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        full_lengths=lengths.astype(np.int32),
    )
    batches = list(eval_batches(Collator(store, None, 0), batch_size=4))
    assert [batch.num_samples for batch in batches] == [4, 32, 32, 32, 1]


def test_a_filler_row_has_at_most_8_tokens(collator):
    """Filler rows repeat sample 0, which is long here: uncut, it would pad the batch to 512 or add 512 tokens."""
    lengths = np.asarray([512, 4])
    store = replace(
        collator.store,
        tokens=np.arange(lengths.sum(), dtype=np.uint16),
        type_ids=None,
        offsets=np.asarray([0, 512, 516]),
        full_lengths=lengths.astype(np.int32),
    )
    padded = Collator(store, None, 0)(np.asarray([1]), 1, num_rows=2)
    assert padded.input_ids.shape == (2, 8)
    assert padded.attention_mask.sum(1).tolist() == [4, 8]
    assert padded.input_ids[1].tolist() == list(range(8))
    packed = PackedCollator(Collator(store, None, 0))(np.asarray([1]), 1, num_rows=2)
    assert packed.num_padded_tokens == 4 + 8


def test_packed_batches_have_the_samples_of_padded_ones(collator):
    padded = collator(np.asarray([3, 0, 17]), 6, num_rows=4)
    packed = PackedCollator(collator)(np.asarray([3, 0, 17]), 6, num_rows=4)
    assert packed.is_packed
    assert packed.num_padded_tokens == int(padded.attention_mask.sum())
    assert torch.equal(packed.input_ids, padded.input_ids[padded.attention_mask > 0])
    for name in ("index", "row_weight", "labels"):
        assert torch.equal(getattr(packed, name), getattr(padded, name))
    assert PackedCollator(collator).loss_denominator(np.arange(5)) == 5.0


@pytest.mark.parametrize("has_types", [True, False])
@pytest.mark.parametrize("how", [{}, {"num_rows": 6}], ids=["", "filler"])
@pytest.mark.parametrize("indices", [[3, 0, 17, 3], [5], []], ids=str)
def test_packing_directly_equals_padding_and_packing(collator, indices, how, has_types):
    store = collator.store if has_types else replace(collator.store, type_ids=None)
    teacher = np.random.default_rng(0).random((len(store), 3), np.float32) if has_types else None
    both = Collator(store, collator.labels if has_types else None, pad_token_id=0, teacher=teacher)
    chosen = np.asarray(indices, dtype=np.int64)
    at_once, expected = PackedCollator(both)(chosen, 6, **how), pack(both(chosen, 6, **how))
    for name, value in vars(expected).items():
        actual = getattr(at_once, name)
        if isinstance(value, torch.Tensor):
            assert (actual.dtype, actual.tolist()) == (value.dtype, value.tolist()), name
        else:
            assert actual == value, name


def test_each_row_has_the_outputs_of_its_teacher(collator):
    teacher = np.arange(3 * len(collator.store), dtype=np.float32).reshape(-1, 3)
    batch = PackedCollator(replace(collator, teacher=teacher), rounds=True)(np.asarray([3, 0]), 2)
    assert len(batch.row_weight) > 2  # with filler rows
    assert batch.teacher is not None
    assert batch.teacher[:2].tolist() == [[9, 10, 11], [0, 1, 2]]
    assert len(batch.teacher) == len(batch.row_weight)


def test_rounded_shapes_have_the_same_samples(collator):
    def batches(rounds: bool) -> list[Batch]:
        packed = TrainBatches(PackedCollator(collator, rounds), 1, 4, 4, 1, 0, 1)
        return [batch for step in range(3 * packed.steps_per_epoch) for batch in packed.step(step)]

    exact, few = batches(False), batches(True)
    for first, other in zip(few, exact, strict=True):
        assert first.index[first.index >= 0].tolist() == other.index.tolist()
        assert (first.num_samples, first.num_tokens, first.loss_denominator) == (
            other.num_samples,
            other.num_tokens,
            other.loss_denominator,
        )
        assert first.num_padded_tokens == len(first.input_ids) >= other.num_padded_tokens
    shapes = [{batch.input_ids.shape for batch in item} for item in (few, exact)]
    assert len(shapes[0]) <= 10 < len(shapes[1])  # multiples of 8 up to 4 * 20 tokens


def test_more_ranks_than_samples_get_filler(collator):
    batches = [list(eval_batches(collator, batch_size=1, data_rank=rank, data_world_size=30)) for rank in (22, 23)]
    assert [batch.num_samples for (batch,) in batches] == [1, 0]


def test_the_order_of_an_epoch_is_computed_once(collator, monkeypatch):
    made = []
    import paratune.data.loader as module

    whole = module.epoch_order
    monkeypatch.setattr(module, "epoch_order", lambda *source: made.append(source) or whole(*source))
    batches = train_batches(collator)
    for step in range(6):
        batches.step(step)
    assert made == [(23, 5, 0), (23, 5, 1)]


def test_equal_shapes_pad_all_micro_batches_of_a_step_alike(collator):
    plain = train_batches(collator, micro_batch_size=3, num_micro_steps=3)
    alike = replace(plain, equal_shapes=True)
    for step in range(plain.steps_per_epoch):
        before, after = plain.step(step), alike.step(step)
        longest = max(batch.max_seqlen for batch in before if batch.num_samples)
        assert {tuple(batch.input_ids.shape) for batch in after} == {(3, longest)}
        assert kept(after) == kept(before)
        for was, now in zip(before, after, strict=True):
            assert (now.num_samples, now.num_tokens, now.loss_denominator) == (
                was.num_samples,
                was.num_tokens,
                was.loss_denominator,
            )
            assert now.num_padded_tokens == 3 * longest
            assert now.row_weight.tolist() == [float(index >= 0) for index in now.index.tolist()]
            rows, length = was.input_ids.shape
            if was.num_samples:
                assert torch.equal(now.input_ids[:rows, :length], was.input_ids)
                assert torch.equal(now.attention_mask[:rows, :length], was.attention_mask)
        # A filler row has something to attend to.
        assert all(bool(batch.attention_mask.any(1).all()) for batch in after)


def cuts(batches: TrainBatches, step: int) -> list[list[int]]:
    """Return the samples of each micro-batch of a step, without filler."""
    return [[index for index in batch.index.tolist() if index >= 0] for batch in batches.step(step)]


def test_every_third_step_of_sorted_rows_is_in_random_order_for_the_noise_scale(collator):
    plain = train_batches(collator, micro_batch_size=4, num_micro_steps=2)
    in_buckets = replace(plain, num_buckets=2)
    compared = replace(in_buckets, compare_every=3)
    # Steps are counted from 1: the third and the sixth, of which the third is the rest of an epoch, of 7 samples.
    for step in (0, 1, 3, 4, 6):
        assert cuts(compared, step) == cuts(in_buckets, step)
    for step in (2, 5):
        order = plain.indices(step).tolist()
        assert cuts(compared, step) == [order[start : start + 2] for start in range(0, 8, 2)]
        assert cuts(compared, step) != cuts(in_buckets, step)
        assert kept(compared.step(step)) == kept(in_buckets.step(step))


@pytest.mark.parametrize(("micro_batch_size", "sizes"), [(8, [4, 4]), (9, [5, 3])])
def test_a_single_micro_batch_is_cut_into_two_for_the_noise_scale(collator, micro_batch_size, sizes):
    whole = train_batches(collator, micro_batch_size=micro_batch_size)
    compared = replace(whole, compare_every=2)
    assert [len(cut) for cut in cuts(compared, 0)] == [8]
    assert [len(cut) for cut in cuts(compared, 1)] == sizes
    assert np.concatenate(cuts(compared, 1)).tolist() == whole.indices(1).tolist()
    assert {batch.loss_denominator for batch in compared.step(1)} == {8.0}


def test_micro_batches_stay_whole_for_the_noise_scale_where_there_are_two(collator):
    ranks = [train_batches(collator, rank, 2, micro_batch_size=4) for rank in range(2)]
    accumulated = train_batches(collator, micro_batch_size=4, num_micro_steps=2)
    for batches in (*ranks, accumulated):
        assert cuts(replace(batches, compare_every=1), 1) == cuts(batches, 1)


def test_the_parts_of_a_step_with_equal_shapes_are_not_cut(collator):
    batches = replace(train_batches(collator), equal_shapes=True)
    assert cuts(replace(batches, compare_every=1), 1) == cuts(batches, 1)


@pytest.mark.parametrize(("num_buckets", "micro_batch_size"), [(1, 2), (4, 8), (1, 8)])
def test_the_noise_of_sorted_rows_is_that_of_random_parts(collator, num_buckets, micro_batch_size):
    """The gradient of a sample is its length here, so that all noise is explained by what rows are sorted by.

    For samples drawn without replacement the estimate of tr(Sigma) has the variance of all samples (with N - 1) as its
    mean: of g and of each g_i, the part of |G|^2 that N limits is the same. A step of 8 in 4 parts has 3 degrees of
    freedom, one in 2 parts 1: over 1,000 steps 2.6% and 4.5% of a normal distribution; twice that is allowed and more.
    """
    random = np.random.default_rng(7)
    lengths = random.integers(1, 30, 8000)
    store = replace(
        collator.store,
        tokens=np.zeros(lengths.sum(), np.uint16),
        type_ids=None,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        full_lengths=lengths.astype(np.int32),
    )
    batches = TrainBatches(
        Collator(store, None, 0),
        seed=3,
        global_batch_size=8,
        micro_batch_size=micro_batch_size,
        num_micro_steps=8 // micro_batch_size,
        data_rank=0,
        data_world_size=1,
        num_buckets=num_buckets,
    )

    def traces(made: TrainBatches) -> list[float]:
        actual = []
        for step in range(1000):
            parts = [lengths[cut].sum() / 8 for cut in cuts(made, step)]
            weights = sum((len(cut) / 8) ** 2 for cut in cuts(made, step))
            estimates = noise_estimates(sum(parts) ** 2, sum(part**2 for part in parts), weights, 8)
            actual += [] if estimates is None else [estimates[0]]
        return actual

    assert np.mean(traces(replace(batches, compare_every=1))) == pytest.approx(lengths.var(ddof=1), rel=0.12)
    ordered = traces(batches)
    assert not ordered or np.mean(ordered) > 1.5 * lengths.var(ddof=1)
