"""Sentence embeddings: the vector of a text from its tokens, and contrastive losses of pairs and triplets.

Dimensions: `B` samples, `Q` texts, `K` texts of a sample (1: text; 2: and its pair; 3: and its negative), `S` padded
length, `D` width.

The losses are those of sentence-transformers with the same names, as the loss of each sample.
"""

from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from paratune.batch import Batch
from paratune.config.task_sections import EmbeddingTask, group_size
from paratune.models.objectives import Objective, at_least_float32

MARGINS: Final = {"triplet": 5.0, "contrastive": 0.5}
"""Default of `task.margin` by loss."""
LOSS, COSINE, RANK, NEGATIVE = 0, 1, 2, 3
"""Columns of the row outputs of samples in groups: the loss; the cosine of text and pair; the rank of this cosine among
those of the text and all candidates (from 1); the cosine of text and negative, for K = 3. Triplets have no rank, but a
column of ones."""


def embedding(task: EmbeddingTask) -> Objective:
    """Return the objective of sentence embeddings; outputs are the vectors of texts, (Q, D)."""
    losses: Any = {
        "multiple_negatives_ranking": partial(_ranking_losses, scale=task.scale, group=group_size(task)),
        "cosine_similarity": _cosine_losses,
        "triplet": partial(_triplet_losses, margin=task.margin or MARGINS["triplet"]),
        "contrastive": partial(_contrastive_losses, margin=task.margin or MARGINS["contrastive"]),
    }[task.loss]

    def row_losses(outputs: Tensor, batch: Batch) -> Tensor:
        result: Tensor = losses(_vectors(outputs, batch, task.normalize), batch)
        return result

    def row_outputs(outputs: Tensor, batch: Batch) -> Tensor:
        vectors_BKD = _vectors(outputs, batch, task.normalize)
        if batch.row_size == 1:
            return vectors_BKD.squeeze(1)
        cosines_B = pair_cosines(vectors_BKD)
        if batch.labels is None or task.loss in ("cosine_similarity", "contrastive"):
            return cosines_B.unsqueeze(1)
        columns = [losses(vectors_BKD, batch), cosines_B]
        if task.loss == "triplet":
            columns.append(torch.ones_like(cosines_B))
        else:
            columns.append(ranks(vectors_BKD, batch, group=group_size(task)).to(cosines_B.dtype))
        if batch.row_size == 3:
            columns.append(functional.cosine_similarity(vectors_BKD[:, 0], vectors_BKD[:, 2], dim=-1))
        return torch.stack(columns, dim=1)

    return Objective(row_losses, partial(_pooled, pooling=task.pooling), row_outputs)


def _pooled(model_output: Any, batch: Batch, *, pooling: Literal["mean", "cls"]) -> Tensor:
    """Return the vectors of texts, (Q, D), from the hidden states of the encoder.

    Those of a packed batch are pooled already, by `task_model.read_packed`.

    Source: Reimers and Gurevych, Sentence-BERT, EMNLP 2019, section 3 (the MEAN and CLS strategies).
    """
    hidden: Tensor = model_output.last_hidden_state
    if batch.is_packed or pooling == "cls":
        return hidden[:, 0].clone()  # a copy, because FSDP warns of views
    if batch.attention_mask is None:
        return hidden.mean(dim=1)
    wide = at_least_float32(hidden)
    weights = batch.attention_mask.to(wide.dtype).unsqueeze(-1)
    return ((wide * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)).to(hidden.dtype)


def _vectors(outputs: Tensor, batch: Batch, normalize: bool) -> Tensor:
    """Return the vectors of the texts of each sample, (B, K, D), at least float32.

    A filler sample has one text; it gets any others, and its loss is 0.
    """
    wide = at_least_float32(outputs)
    if normalize:
        wide = functional.normalize(wide, dim=-1)
    if batch.sample_offsets is None:
        return wide.unsqueeze(1)
    places_BK = batch.sample_offsets[:-1, None] + torch.arange(batch.row_size, device=wide.device)
    chosen = wide.index_select(0, places_BK.clamp(max=len(wide) - 1).flatten())
    return chosen.view(len(places_BK), batch.row_size, wide.shape[-1])


def pair_cosines(vectors: Tensor) -> Tensor:
    """Return the cosine of the first and the second text of each sample, (B,), from vectors (B, K, D)."""
    return functional.cosine_similarity(vectors[:, 0], vectors[:, 1], dim=-1)


def _ranking_losses(vectors: Tensor, batch: Batch, *, scale: float, group: int) -> Tensor:
    """Return the cross-entropy of each text's own pair among the candidates of its group, (B,).

    Source: Henderson et al., Efficient Natural Language Response Suggestion for Smart Reply, 2017, section 4.4;
    sentence_transformers.losses.MultipleNegativesRankingLoss, whose batch is the group here.
    """
    cosines_BN, allowed_BN = group_cosines(vectors, batch, group=group)
    scores_BN = (scale * cosines_BN).masked_fill(~allowed_BN, float("-inf"))
    return scores_BN.logsumexp(dim=1) - scores_BN.diagonal()


def ranks(vectors: Tensor, batch: Batch, *, group: int) -> Tensor:
    """Return the rank of each text's own pair among the candidates of its group, (B,), int64, from 1.

    Candidates with an equal cosine are in front of the own pair: a model with the same vector for all texts finds none.
    """
    cosines_BN, allowed_BN = group_cosines(vectors, batch, group=group)
    is_before_BN = allowed_BN & (cosines_BN >= cosines_BN.diagonal().unsqueeze(1))
    return is_before_BN.sum(dim=1)  # the own pair counts too, so that ranks begin at 1


def group_cosines(vectors: Tensor, batch: Batch, *, group: int) -> tuple[Tensor, Tensor]:
    """Return the cosines of each text and all candidates of the batch, and which candidates count, each (B, N).

    Candidates are the pairs of all samples, then their negatives: N = (K - 1) B. Candidate b is the own pair of text b
    and always counts. Others count if their sample is in the same group and no filler, and unless they are related to
    the text for sure: they are the text itself, its own pair, or the pair of an equal text of the group.

    `vectors` are (B, K, D), of which `group` samples after each other are a group; labels are `text_ids`, (B, K).
    """
    assert batch.labels is not None
    size, count, _ = vectors.shape
    units = functional.normalize(vectors, dim=-1)
    cosines_BN = units[:, 0] @ units[:, 1:].transpose(0, 1).flatten(0, 1).mT
    numbers_B = torch.arange(size, device=vectors.device)
    counts_BB = ((numbers_B // group).unsqueeze(1) == numbers_B // group) & (batch.row_weight > 0)
    texts_B, pairs_B, candidates_N = batch.labels[:, 0], batch.labels[:, 1], batch.labels[:, 1:].T.flatten()
    is_equal_text_BB = (texts_B.unsqueeze(1) == texts_B) & counts_BB
    is_pair_BN = pairs_B.unsqueeze(1) == candidates_N
    # The product of both counts the samples of the group with an equal text whose pair is the candidate.
    is_related_BN = (is_equal_text_BB.float() @ is_pair_BN.float() > 0) | (texts_B.unsqueeze(1) == candidates_N)
    allowed_BN = counts_BB.repeat(1, count - 1) & ~is_related_BN
    allowed_BN[numbers_B, numbers_B] = True
    return cosines_BN, allowed_BN


def _cosine_losses(vectors: Tensor, batch: Batch) -> Tensor:
    """Return (cos(u, v) - y)² with the score y, (B,).

    Source: Reimers and Gurevych, Sentence-BERT, EMNLP 2019, section 3 (regression objective);
    sentence_transformers.losses.CosineSimilarityLoss.
    """
    assert batch.labels is not None
    return (pair_cosines(vectors) - batch.labels.to(vectors.dtype)).square()


def _triplet_losses(vectors: Tensor, batch: Batch, *, margin: float) -> Tensor:
    """Return max(|a - p| - |a - n| + margin, 0) with Euclidean distances, (B,).

    Source: Reimers and Gurevych, Sentence-BERT, EMNLP 2019, section 3 (triplet objective);
    sentence_transformers.losses.TripletLoss.
    """
    near, far = (torch.linalg.vector_norm(vectors[:, 0] - vectors[:, place], dim=-1) for place in (1, 2))
    return functional.relu(near - far + margin)


def _contrastive_losses(vectors: Tensor, batch: Batch, *, margin: float) -> Tensor:
    """Return (y d² + (1 - y) max(margin - d, 0)²) / 2 with the cosine distance d = 1 - cos(u, v), (B,).

    Source: Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006, equation 4 (y = 1 for
    related texts); sentence_transformers.losses.ContrastiveLoss.
    """
    assert batch.labels is not None
    distance, related = 1 - pair_cosines(vectors), batch.labels.to(vectors.dtype)
    return (related * distance.square() + (1 - related) * functional.relu(margin - distance).square()) / 2
