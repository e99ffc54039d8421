"""The loss of a distillation against arithmetic written out and against the formula of transformers' example."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_data import tiny_collator
from torch import nn
from torch.nn import functional

from paratune.batch import Batch
from paratune.config.optional_sections import Distil
from paratune.models.distillation import distilled, teacher_targets
from paratune.models.objectives import OBJECTIVES, weighted_sum


def batch(labels: torch.Tensor, teacher: np.ndarray | None) -> Batch:
    made = tiny_collator(len(labels))(np.arange(len(labels)), float(len(labels)))
    return replace(made, labels=labels, teacher=None if teacher is None else torch.from_numpy(teacher))


def test_the_loss_is_that_of_the_example_of_transformers():
    # examples/research_projects/distillation/run_squad_w_distillation.py: KLDivLoss(reduction="batchmean") of
    # log_softmax(student / T) and softmax(teacher / T), times T^2, weighted with the loss of the labels.
    torch.manual_seed(0)
    teacher, student, labels = torch.randn(5, 3), torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, 1, 1, 0])
    T, w = 4.0, 0.7
    kl = nn.KLDivLoss(reduction="batchmean")
    divergence = kl(functional.log_softmax(student / T, dim=-1), functional.softmax(teacher / T, dim=-1)) * T**2
    theirs = w * divergence + (1 - w) * functional.cross_entropy(student, labels)
    (expected,) = torch.autograd.grad(theirs, student)
    distil = Distil(teacher="x", weight=w, temperature=T)
    made = batch(labels, teacher_targets([teacher.numpy()], distil, "classification"))
    objective = distilled(OBJECTIVES["classification"], distil, "classification")
    ours = weighted_sum(objective, student, made) / made.loss_denominator
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(torch.autograd.grad(ours, student)[0], expected)
    evaluated = weighted_sum(objective, student, replace(made, teacher=None)) / made.loss_denominator
    assert evaluated.item() == pytest.approx(functional.cross_entropy(student, labels).item())


def test_several_teachers_give_their_mean_probability_at_the_temperature():
    # At T = 2, logits 2 ln 3 and 0 are probabilities 3/4 and 1/4; with 1/2 and 1/2 their means are 5/8 and 3/8.
    logits = [np.array([[2 * np.log(3), 0.0]]), np.zeros((1, 2))]
    targets = teacher_targets(logits, Distil(teacher=["a", "b"]), "classification")
    np.testing.assert_allclose(targets, [[5 / 8, 3 / 8]], rtol=1e-6)
    # T^2 KL(5/8, 3/8 || 1/2, 1/2), from the labels alone nothing: weight 1.
    objective = distilled(OBJECTIVES["classification"], Distil(teacher="x", weight=1), "classification")
    loss = weighted_sum(objective, torch.zeros(1, 2), batch(torch.tensor([0]), targets)).item()
    assert loss == pytest.approx(4 * (5 / 8 * np.log(5 / 4) + 3 / 8 * np.log(3 / 4)), rel=1e-5)


@pytest.mark.parametrize(("kind", "num_outputs"), [("regression", 1), ("ordinal", 2), ("multi_label", 2)])
def test_other_tasks_learn_the_mean_output_by_its_square(kind, num_outputs):
    distil = Distil(teacher=["a", "b"], weight=0.25)
    targets = teacher_targets([np.full((2, num_outputs), value) for value in (1.0, 3.0)], distil, kind)
    labels = torch.tensor([[0.0, 1.0], [1.0, 1.0]]) if kind == "multi_label" else torch.tensor([0, 1])
    outputs = torch.full((2, num_outputs), 5.0)
    alone = OBJECTIVES[kind].row_losses(outputs, batch(labels, None))
    losses = distilled(OBJECTIVES[kind], distil, kind).row_losses(outputs, batch(labels, targets))
    torch.testing.assert_close(losses, 0.75 * alone + 0.25 * torch.full((2,), (5.0 - 2.0) ** 2))
