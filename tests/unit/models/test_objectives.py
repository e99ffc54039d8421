"""Losses of kinds of tasks against transformers' own, and against arithmetic written out."""

from dataclasses import replace

import pytest
import torch
from tiny import tiny_config, tiny_model
from tiny_data import tiny_collator
from transformers import BertForSequenceClassification

from paratune.batch import Batch
from paratune.models.objectives import OBJECTIVES
from paratune.models.task_model import TaskModel


def batch(labels: torch.Tensor, num_filler: int = 0) -> Batch:
    made = tiny_collator(len(labels))(torch.arange(len(labels)).numpy(), float(len(labels)))
    weight = torch.ones(len(labels))
    weight[len(labels) - num_filler :] = 0
    return replace(made, labels=labels, row_weight=weight)


def test_the_loss_of_several_labels_is_that_of_transformers():
    config = tiny_config(3)
    config.problem_type = "multi_label_classification"
    hf = BertForSequenceClassification(config).eval()
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    made = batch(labels)
    theirs = hf(input_ids=made.input_ids, attention_mask=made.attention_mask, labels=labels)
    model = TaskModel(hf, "multi_label")
    ours = model.loss_sum(model(made), made) / made.loss_denominator
    assert ours.item() == pytest.approx(theirs.loss.item(), rel=1e-6)


def test_the_loss_of_an_ordinal_class_is_that_of_its_answers():
    # Above class 0: ln 3 is a probability of 3/4; above class 1: -ln 3 is one of 1/4.
    outputs = torch.log(torch.tensor([[3.0, 1 / 3]])).repeat(3, 1)
    losses = OBJECTIVES["ordinal"].row_losses(outputs, batch(torch.tensor([0, 1, 2])))
    above = torch.tensor([0.75, 0.25])
    wanted = [
        -torch.log(1 - above[0]) - torch.log(1 - above[1]),  # class 0 is above neither
        -torch.log(above[0]) - torch.log(1 - above[1]),  # class 1 is above class 0
        -torch.log(above[0]) - torch.log(above[1]),
    ]
    assert losses.tolist() == pytest.approx([each.item() for each in wanted])


@pytest.mark.parametrize(("kind", "labels"), [("multi_label", torch.zeros(4, 2)), ("ordinal", torch.ones(4).long())])
def test_filler_rows_have_no_loss(kind, labels):
    model = TaskModel(tiny_model().eval(), kind)
    whole, filled = batch(labels), batch(labels, num_filler=2)
    outputs = model(whole)
    assert model.loss_sum(outputs, filled) < model.loss_sum(outputs, whole)
    first = OBJECTIVES[kind].row_losses(outputs.detach(), whole)[:2].sum()
    assert model.loss_sum(outputs, filled).item() == pytest.approx(first.item(), rel=1e-6)
