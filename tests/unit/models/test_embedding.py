"""Losses of sentence embeddings equal those of sentence-transformers; negatives are those of a group, by hand."""

from dataclasses import replace

import pytest
import torch
from tiny import tiny_config
from torch import Tensor
from transformers import BertModel

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up
from paratune.config.task_sections import EmbeddingTask
from paratune.models.embedding import COSINE, LOSS, NEGATIVE, RANK, embedding, group_cosines, ranks
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel, trial_batch

SIZE, WIDTH = 4, 5
VECTORS = 2 * torch.sin(torch.arange(SIZE * 3 * WIDTH, dtype=torch.float64) * 1.7 + 0.3).view(SIZE, 3, WIDTH)
DIFFERENT = torch.arange(SIZE * 3).view(SIZE, 3)
"""Numbers of texts that all differ."""
RELATED = torch.tensor([0.0, 1, 1, 0])


def batch_of(labels: Tensor, num_texts: int) -> Batch:
    """Return a batch of 4 samples; the tokens do not matter."""
    ids = torch.ones(SIZE * num_texts, 1, dtype=torch.long)
    made = trial_batch(ids, ids, labels=labels, row_size=num_texts)
    offsets = torch.arange(0, SIZE * num_texts + 1, num_texts)
    return replace(made, sample_offsets=offsets, row_weight=torch.ones(SIZE), index=torch.arange(SIZE))


def mean_loss(task: EmbeddingTask, vectors: Tensor, labels: Tensor) -> Tensor:
    num_texts = vectors.shape[1]
    outputs = vectors.reshape(-1, vectors.shape[-1])
    return embedding(task).row_losses(outputs, batch_of(labels, num_texts)).mean()


# Losses and norms of their gradients by sentence-transformers 6.2.0, `compute_loss_from_embeddings` of
# MultipleNegativesRankingLoss, CosineSimilarityLoss, TripletLoss and ContrastiveLoss, on VECTORS.
@pytest.mark.parametrize(
    ("options", "num_texts", "labels", "loss", "gradient"),
    [
        ({}, 2, DIFFERENT[:, :2], 11.753082355310763, 5.333733324062085),
        ({"scale": 7.0}, 3, DIFFERENT, 7.112037523242691, 1.9165953941975238),
        ({"loss": "cosine_similarity"}, 2, torch.tensor([0, 0.25, 1, 0.7]), 1.3415712250995107, 0.40480803941667354),
        ({"loss": "triplet"}, 3, DIFFERENT, 5.260475646977515, 0.8631131013908476),
        ({"loss": "triplet", "margin": 1.0}, 3, DIFFERENT, 1.260475646977515, 0.8631131013908476),
        ({"loss": "contrastive"}, 2, RELATED, 0.6228595155112364, 0.2073075463799297),
        ({"loss": "contrastive", "margin": 1.5}, 2, RELATED, 0.6228700873922154, 0.20730968710684314),
    ],
)  # fmt: skip
def test_losses_equal_those_of_sentence_transformers(options, num_texts, labels, loss, gradient):
    vectors = VECTORS[:, :num_texts].clone().requires_grad_()
    computed = mean_loss(EmbeddingTask(kind="embedding", **options), vectors, labels)
    # The labels are float32: 0.7 is 1e-8 away.
    assert computed.item() == pytest.approx(loss, rel=1e-7)
    assert torch.autograd.grad(computed, vectors)[0].norm().item() == pytest.approx(gradient, rel=1e-7)


def test_only_the_group_has_negatives():
    task = EmbeddingTask(kind="embedding", group_size=2)
    pairs = VECTORS[:, :2]
    halves = [mean_loss(task, torch.cat([half, half]), DIFFERENT[:, :2]) for half in (pairs[:2], pairs[2:])]
    assert mean_loss(task, pairs, DIFFERENT[:, :2]).item() == pytest.approx(sum(halves).item() / 2)


def test_related_texts_and_filler_are_no_negatives():
    # Texts by number. Sample 0: 1 with 2; sample 1: 3 with 2, the pair of sample 0; sample 2: 1, the text of sample 0,
    # with 5; sample 3: 6 with 1, the text of samples 0 and 2.
    labels = torch.tensor([[1, 2], [3, 2], [1, 5], [6, 1]])
    _, allowed = group_cosines(VECTORS[:, :2], batch_of(labels, 2), group=4)
    expected = [[1, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1]]
    assert allowed.int().tolist() == expected
    last_is_filler = replace(batch_of(labels, 2), row_weight=torch.tensor([1.0, 1, 1, 0]))
    _, allowed = group_cosines(VECTORS[:, :2], last_is_filler, group=4)
    assert allowed[:3].int().tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]]
    # With unit vectors e1 to e4 and scale 1: cosines are 1 or 0. Sample 0 has no negative: its loss is 0. Sample 1 has
    # its own pair (1) and the pairs of samples 2 and 3 (0, 0): log(e + 2) - 1.
    units = torch.eye(4, dtype=torch.float64).unsqueeze(1).repeat(1, 2, 1)
    task = EmbeddingTask(kind="embedding", scale=1.0)
    losses = embedding(task).row_losses(units.reshape(-1, 4), batch_of(labels, 2))
    assert losses.tolist() == pytest.approx([0.0, 0.5514447, 0.0, 0.7436684])  # log(e + 2) - 1, log(e + 3) - 1


def test_negatives_of_the_group_are_candidates_too():
    labels = DIFFERENT.clone()
    labels[1, 2] = labels[0, 1]  # the negative of sample 1 is the pair of sample 0, and so none of its negatives
    _, allowed = group_cosines(VECTORS, batch_of(labels, 3), group=2)
    assert allowed[0].int().tolist() == [1, 1, 0, 0, 1, 0, 0, 0]
    assert allowed[1].int().tolist() == [1, 1, 0, 0, 1, 1, 0, 0]


def test_equal_cosines_count_against_the_own_pair():
    same = torch.ones(4, 2, 3, dtype=torch.float64)
    assert ranks(same, batch_of(DIFFERENT[:, :2], 2), group=4).tolist() == [4, 4, 4, 4]
    units = torch.eye(4, dtype=torch.float64).unsqueeze(1).repeat(1, 2, 1)
    assert ranks(units, batch_of(DIFFERENT[:, :2], 2), group=4).tolist() == [1, 1, 1, 1]


def test_row_outputs_of_triplets_pairs_and_texts():
    task, texts = EmbeddingTask(kind="embedding", group_size=2), VECTORS.reshape(-1, WIDTH)
    rows = embedding(task).row_outputs(texts, batch_of(DIFFERENT, 3))
    cosine = torch.nn.functional.cosine_similarity
    assert rows[:, LOSS].mean().item() == pytest.approx(mean_loss(task, VECTORS, DIFFERENT).item())
    assert torch.allclose(rows[:, COSINE], cosine(VECTORS[:, 0], VECTORS[:, 1]))
    assert torch.allclose(rows[:, NEGATIVE], cosine(VECTORS[:, 0], VECTORS[:, 2]))
    assert ((rows[:, RANK] >= 1) & (rows[:, RANK] <= 4)).all()
    pairs = VECTORS[:, :2].reshape(-1, WIDTH)
    unlabelled = replace(batch_of(DIFFERENT[:, :2], 2), labels=None)
    assert torch.allclose(embedding(task).row_outputs(pairs, unlabelled), rows[:, COSINE : COSINE + 1])
    single = replace(unlabelled, sample_offsets=None, row_size=1)
    normalized = embedding(task.model_copy(update={"normalize": True})).row_outputs(VECTORS[:, 0], single)
    assert torch.allclose(normalized, VECTORS[:, 0] / VECTORS[:, 0].norm(dim=1, keepdim=True))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_pooled_from_tokens_without_padding_and_the_same_when_packed(pooling):
    torch.manual_seed(0)
    hf = BertModel(tiny_config(dropout=0.0), add_pooling_layer=False)
    model = TaskModel(hf, "embedding", objective=embedding(EmbeddingTask(kind="embedding", pooling=pooling))).eval()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    batch = trial_batch(torch.tensor([[7, 8, 9, 10], [11, 12, 0, 0]]), mask)
    hidden = hf(input_ids=batch.input_ids, attention_mask=mask).last_hidden_state
    expected = torch.stack([hidden[0].mean(0), hidden[1, :2].mean(0)]) if pooling == "mean" else hidden[:, 0]
    assert torch.allclose(model(batch), expected, atol=1e-6)
    enable_packed_batches(model)
    assert model.entry is not None, model.why_padded
    assert model.entry.pooling == ("mean" if pooling == "mean" else "first")
    packed = round_up(pack(batch))
    assert torch.allclose(model(packed)[:2], expected, atol=1e-6)
