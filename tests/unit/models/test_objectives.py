"""Losses of kinds of tasks, compared with transformers and with arithmetic in the tests."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import tiny_config, tiny_masked_lm, tiny_model
from tiny_data import tiny_collator, tiny_masking
from transformers import BertForSequenceClassification

from paratune.batch import Batch
from paratune.models.objectives import OBJECTIVES, classification
from paratune.models.task_model import TaskModel


def batch(labels: torch.Tensor, num_filler: int = 0) -> Batch:
    made = tiny_collator(len(labels))(torch.arange(len(labels)).numpy(), float(len(labels)))
    weight = torch.ones(len(labels))
    weight[len(labels) - num_filler :] = 0
    return replace(made, labels=labels, row_weight=weight)


def test_the_loss_of_several_labels_equals_transformers():
    config = tiny_config(3)
    config.problem_type = "multi_label_classification"
    hf = BertForSequenceClassification(config).eval()
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    made = batch(labels)
    theirs = hf(input_ids=made.input_ids, attention_mask=made.attention_mask, labels=labels)
    model = TaskModel(hf, "multi_label")
    ours = model.loss_sum(model(made), made) / made.loss_denominator
    assert ours.item() == pytest.approx(theirs.loss.item(), rel=1e-6)


def test_the_loss_of_an_ordinal_class_is_the_sum_over_thresholds():
    # Above class 0: ln 3 is a probability of 3/4; above class 1: -ln 3 is one of 1/4.
    outputs = torch.log(torch.tensor([[3.0, 1 / 3]])).repeat(3, 1)
    losses = OBJECTIVES["ordinal"].row_losses(outputs, batch(torch.tensor([0, 1, 2])))
    above = torch.tensor([0.75, 0.25])
    wanted = [
        -torch.log(1 - above[0]) - torch.log(1 - above[1]),  # class 0 is above neither
        -torch.log(above[0]) - torch.log(1 - above[1]),  # class 1 is above class 0
        -torch.log(above[0]) - torch.log(above[1]),
    ]
    assert losses.tolist() == pytest.approx([value.item() for value in wanted])


LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-3.0, 1.0, 1.0], [40.0, -40.0, 0.0]])
LABELS = torch.tensor([0, 2, 1, 0])


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 4.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_and_smoothing_are_those_of_torch(weights, smoothing):
    losses = classification(class_weights=weights, label_smoothing=smoothing).row_losses(LOGITS, batch(LABELS))
    wanted = torch.nn.functional.cross_entropy(
        LOGITS, LABELS, weight=None if weights is None else torch.tensor(weights), reduction="none",
        label_smoothing=smoothing,
    )  # fmt: skip
    assert torch.equal(losses, wanted)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_focal_loss_is_its_formula(gamma):
    """Lin et al. 2017, equation 5: -a (1 - p)^gamma log p."""
    logits = LOGITS.double().requires_grad_()
    losses = classification(class_weights=(0.5, 2.0, 4.0), focal_gamma=gamma).row_losses(logits, batch(LABELS))
    shares = LOGITS.double().softmax(dim=1)[torch.arange(4), LABELS]
    wanted = torch.tensor([0.5, 4.0, 2.0, 0.5]) * (1 - shares) ** gamma * -shares.log()
    assert losses.tolist() == pytest.approx(wanted.tolist())
    losses.sum().backward()
    assert torch.isfinite(logits.grad).all()  # row 3 has p = 1


def test_weights_of_an_evaluation_can_be_trained_with():
    loss = classification(class_weights=(1.25, 3.5, 1.0)).row_losses
    with torch.inference_mode():
        loss(LOGITS.clone(), batch(LABELS))
    logits = LOGITS.clone().requires_grad_()
    loss(logits, batch(LABELS)).sum().backward()
    assert logits.grad is not None


@pytest.mark.parametrize(("kind", "labels"), [("multi_label", torch.zeros(4, 2)), ("ordinal", torch.ones(4).long())])
def test_filler_rows_have_no_loss(kind, labels):
    model = TaskModel(tiny_model().eval(), kind)
    whole, filled = batch(labels), batch(labels, num_filler=2)
    outputs = model(whole)
    assert model.loss_sum(outputs, filled) < model.loss_sum(outputs, whole)
    first = OBJECTIVES[kind].row_losses(outputs.detach(), whole)[:2].sum()
    assert model.loss_sum(outputs, filled).item() == pytest.approx(first.item(), rel=1e-6)


def test_the_loss_of_hidden_tokens_equals_transformers():
    hf, made = tiny_masked_lm().eval(), tiny_masking(6)(np.arange(6), 1.0)
    theirs = hf(input_ids=made.input_ids, attention_mask=made.attention_mask, labels=made.labels)
    model, num_labelled = TaskModel(hf, "mlm"), int((made.labels >= 0).sum())
    outputs = model(made)
    assert outputs.shape == (num_labelled, hf.config.vocab_size), "of labelled tokens alone"
    assert model.loss_sum(outputs, made).item() / num_labelled == pytest.approx(theirs.loss.item(), rel=1e-6)
    row_outputs = model.row_outputs(outputs, made)
    right = (theirs.logits.argmax(-1) == made.labels).sum(dim=1)
    assert row_outputs[:, 1].tolist() == (made.labels >= 0).sum(dim=1).tolist()
    assert row_outputs[:, 2].tolist() == right.tolist()
    assert row_outputs[:, 0].sum().item() == pytest.approx(model.loss_sum(outputs, made).item(), rel=1e-6)


def test_gradients_of_hidden_tokens_equal_transformers():
    ours, theirs = tiny_masked_lm().eval(), tiny_masked_lm().eval()
    made = tiny_masking(6)(np.arange(6), 1.0)
    theirs(input_ids=made.input_ids, attention_mask=made.attention_mask, labels=made.labels).loss.backward()
    model = TaskModel(ours, "mlm")
    (model.loss_sum(model(made), made) / (made.labels >= 0).sum()).backward()
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_a_batch_without_labelled_tokens_has_zero_loss_and_gradients():
    made = tiny_masking(6)(np.array([], dtype=np.int64), 1.0)
    model = TaskModel(tiny_masked_lm(), "mlm")
    outputs = model(made)
    loss = model.loss_sum(outputs, made)
    loss.backward()
    assert loss.item() == 0.0
    assert all(float(parameter.grad.abs().sum()) == 0 for parameter in model.parameters())
    assert model.row_outputs(outputs, made).tolist() == [[0.0, 0.0, 0.0]]


def test_an_evaluation_reads_the_losses_of_words_from_row_outputs():
    made, model = tiny_masking(6)(np.arange(6), 1.0), TaskModel(tiny_masked_lm(), "mlm")
    outputs = model(made)
    row_outputs = model.row_outputs(outputs, made)
    assert torch.equal(model.loss_sum(outputs, made, row_outputs), model.loss_sum(outputs, made))
    # Not computed again: the kept values are used.
    assert model.loss_sum(outputs, made, row_outputs + 1).item() == pytest.approx(
        model.loss_sum(outputs, made).item() + 6
    )


def test_the_words_of_a_mask_are_its_most_probable_ones():
    hf, plain = tiny_masked_lm().eval(), tiny_collator(3)(np.arange(3), 1.0)
    made = replace(plain, labels=None, asked=torch.tensor([1, 0, 2]))
    model = TaskModel(hf, "mlm")
    row_outputs = model.row_outputs(model(made), made)
    logits = hf(input_ids=made.input_ids, attention_mask=made.attention_mask).logits[torch.arange(3), made.asked]
    shares, words = logits.softmax(-1).sort(dim=-1, descending=True)
    assert row_outputs[:, :5].long().tolist() == words[:, :5].tolist()
    torch.testing.assert_close(row_outputs[:, 5:], shares[:, :5])


def test_half_precision_logits_are_summed_in_float32():
    made = tiny_masking(6)(np.arange(6), 1.0)
    outputs = torch.randn(int((made.labels >= 0).sum()), 30).clamp(-3, 3).bfloat16()
    made = replace(made, labels=torch.where(made.labels >= 0, made.labels % 30, made.labels))
    model = TaskModel(tiny_masked_lm(), "mlm")
    assert model.loss_sum(outputs, made).dtype == torch.float32
    assert model.loss_sum(outputs, made).item() == pytest.approx(model.loss_sum(outputs.float(), made).item())
    assert model.row_outputs(outputs, made).dtype == torch.float32
