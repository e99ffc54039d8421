import pytest
import torch
from raised import raises_code
from torch import nn

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.models.blocks import checkpoint_blocks, compile_blocks
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel, find_blocks
from paratune.processes.progress import RankProgress, current


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def bert(dropout: float = 0.0) -> TaskModel:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = TaskModel(BertForSequenceClassification(config), "classification")
    enable_packed_batches(model)
    return model.train()


def rows(*lengths: int) -> Batch:
    mask_BS = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return pack(
        Batch(
            input_ids=torch.arange(mask_BS.numel()).view(mask_BS.shape) % 49 + 1,
            row_weight=torch.ones(len(lengths)),
            index=torch.arange(len(lengths)),
            num_samples=len(lengths),
            num_tokens=sum(lengths),
            num_padded_tokens=mask_BS.numel(),
            loss_denominator=float(len(lengths)),
            attention_mask=mask_BS,
            token_type_ids=torch.zeros_like(mask_BS),
            max_seqlen=max(lengths),
            labels=torch.zeros(len(lengths), dtype=torch.long),
        )
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of inductor and what it imports
def test_compiled_blocks_equal_eager_blocks_for_any_number_of_tokens():
    eager, compiled = bert(), bert()
    assert compiled.entry.shortens
    compile_blocks(compiled)
    num_graphs = []
    for batch in (rows(5, 9), rows(7, 3, 8), rows(12, 4)):
        for model in (eager, compiled):
            model.zero_grad()
            model.loss_sum(model(batch), batch).backward()
        for expected, actual in zip(eager.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-6)
        num_graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    # One graph of a block for the first T, another for any, whatever the number of rows; both blocks share them.
    assert num_graphs == [1, 2, 2]
    assert list(compiled.state_dict()) == list(eager.state_dict())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_activations_are_computed_again_with_graphs_and_the_same_dropout():
    gradients = []
    for every in (None, 1):
        model, batch = bert(dropout=0.1), rows(7, 3, 8)
        compile_blocks(model)
        if every:
            torch._dynamo.utils.counters.clear()
            torch._dynamo.reset()
            checkpoint_blocks(find_blocks(model), every)
        torch.manual_seed(4)
        model.loss_sum(model(batch), batch).backward()
        gradients.append([value.grad for value in model.parameters()])
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    for saved, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, saved, rtol=1e-5, atol=1e-7)
    # Without dropout gradients are others: masks took part.
    plain = bert().eval()
    plain.loss_sum(plain(batch), batch).backward()
    assert any(not torch.allclose(x.grad, y, rtol=1e-2) for x, y in zip(plain.parameters(), gradients[0], strict=True))


def test_a_model_without_blocks_is_an_error():
    model = bert()
    model.hf.bert.encoder.layer = nn.ModuleList()
    with raises_code("model.unsupported", "train.compile: true"):
        compile_blocks(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compilations_are_reported_in_forward_and_backward() -> None:
    rank_progress, noted = RankProgress(), []
    model = bert()
    compile_blocks(model)
    torch._dynamo.callback.callback_handler.register_start_callback(lambda _: noted.append(rank_progress.work))
    compiled = torch.compile(lambda x: (2 * x).sin().sum(), backend="aot_eager")
    with current(rank_progress):
        compiled(torch.ones(3, requires_grad=True)).backward()
    assert noted == ["compile", "compile"]
    assert rank_progress.work is None
    assert rank_progress.num_beats == 4
