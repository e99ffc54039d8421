"""Windows of separate documents: a document never reads its neighbours, in every layout and for any number of ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from tiny import tiny_masked_lm, tiny_tokenizer
from tiny_data import tiny_masking

from paratune.batch.packing import pack, round_up
from paratune.config.sections import Columns
from paratune.config.task_sections import MaskedLMTask
from paratune.data.collators import MaskingCollator
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import PackedCollator, TrainBatches, eval_batches
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel
from paratune.strategies.pipeline.parts import parts_of
from paratune.tasks import make_recipe

COUNTS = np.array([2, 1, 4, 3, 2])
"""Sequences of each window; together the 12 rows of `tiny_masking(12)`, which hide 1 to 7 tokens."""


def masking(*, whole_words: bool = False) -> MaskingCollator:
    made = tiny_masking(12, whole_words=whole_words)
    return replace(made, store=made.store.grouped(COUNTS))


def model_in_fp64() -> TaskModel:
    model = TaskModel(tiny_masked_lm().double().eval(), "mlm")
    enable_packed_batches(model)
    assert model.entry is not None
    return model


@pytest.mark.parametrize("whole_words", [False, True])
def test_each_sequence_gets_the_loss_that_it_has_alone(whole_words: bool):
    model, made, alone = model_in_fp64(), masking(whole_words=whole_words), tiny_masking(12, whole_words=whole_words)
    sequences = alone(np.arange(12), 1.0)
    expected = np.add.reduceat(
        model.row_outputs(model(sequences), sequences).detach().numpy(), made.store.sample_offsets[:-1]
    )
    padded = made(np.arange(5), made.loss_denominator(np.arange(5)))
    assert padded.loss_denominator == padded.loss_count == expected[:, 1].sum()
    assert padded.input_ids.shape[0] == 12
    packed = pack(padded)
    assert packed.position_ids[packed.cu_seqlens[:-1]].tolist() == [0] * 12
    for batch in (padded, packed, round_up(packed), PackedCollator(made, rounds=True)(np.arange(5), 1.0)):
        outputs = model(batch)
        rows = model.row_outputs(outputs, batch).detach()[: batch.num_samples]
        torch.testing.assert_close(rows, torch.as_tensor(expected), rtol=1e-9, atol=0)
        assert model.loss_sum(outputs, batch).item() == pytest.approx(expected[:, 0].sum(), rel=1e-9)


def test_packed_and_padded_windows_have_the_same_gradients():
    gradients = []
    for change in (lambda batch: batch, pack):
        model, batch = model_in_fp64(), change(masking()(np.arange(5), 1.0, epoch=0))
        model.loss_sum(model(batch), batch).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("equal_shapes", [False, True])
def test_the_loss_of_a_step_does_not_depend_on_ranks(whole_words: bool, equal_shapes: bool):
    model, losses, hidden = model_in_fp64(), [], []
    for ranks in (1, 2, 3):
        loss, count = 0.0, 0
        for rank in range(ranks):
            batches = TrainBatches(masking(whole_words=whole_words), 7, 5, 2, 3, rank, ranks, equal_shapes)
            for batch in batches.step(0):
                loss += model.loss_sum(model(batch), batch).item() / batch.loss_denominator
                count += batch.loss_count
        losses.append(loss)
        hidden.append(count == batch.loss_denominator)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-9)
    assert hidden == [True] * 3


def test_a_pipeline_divides_hidden_tokens_between_windows():
    model, whole = model_in_fp64(), masking()(np.arange(5), 1.0)
    parts = parts_of(whole, 2)
    assert [part.num_sequences for part in parts] == [7, 5]
    rows = torch.cat([model.row_outputs(model(part), part) for part in parts])
    torch.testing.assert_close(rows, model.row_outputs(model(whole), whole))


@pytest.mark.parametrize("probability", [0.15, 0.3])
@pytest.mark.parametrize(("windows", "num_hidden"), [("joined", (3, 6)), ("separate", (5, 7)), ("documents", (3, 5))])
def test_scores_and_predictions_of_windows(
    tmp_path: Path, windows: str, num_hidden: tuple[int, int], probability: float
):
    recipe = make_recipe(MaskedLMTask(kind="mlm", windows=windows, mask_probability=probability))
    how = TokenizeOptions(tiny_tokenizer(), 8, is_cached=False)
    table = pa.table({"text": ["the good film", "one two three four five six", "a bad book and a good story"]})
    split = recipe.load_split("here", table, Columns(text="text"), how, missing="drop", require_labels=True)
    model, rows = model_in_fp64(), {}
    for batch in eval_batches(recipe.collator(split, tiny_tokenizer()), batch_size=2):
        outputs = model.row_outputs(model(batch), batch).detach()
        rows |= dict(zip(batch.index.tolist(), outputs.numpy(), strict=True))
    outputs = np.stack([rows[number] for number in range(len(rows))])
    details = recipe.details(split, outputs)["windows"]
    # Joined, 16 words and two separators: 5, 5 and 6 words. Documents: 3, 6 and 6. Separate, with 8 tokens in a window:
    # 3 + 1, 5, 6 and 1.
    assert details["num_hidden_tokens"] == num_hidden[probability == 0.3]
    assert recipe.scores(split, outputs)["perplexity"] == pytest.approx(
        np.exp(outputs[:, 0].sum() / outputs[:, 1].sum())
    )
    recipe.write_predictions(tmp_path, split, outputs, tiny_tokenizer())
    written = pyarrow.parquet.read_table(tmp_path / "predictions.data.parquet").to_pydict()
    assert written["num_hidden"] == outputs[:, 1].tolist()
    if windows == "separate":
        assert (details["num_windows"], details["num_truncated_documents"]) == (4, 0)
        assert written["index"] == [0, 1, 2, 2]
