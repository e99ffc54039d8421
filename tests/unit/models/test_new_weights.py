"""New weights that are drawn block by block: the bits of a model that is made whole, which is the reference here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import CONFIGS
from tiny import tiny_config, tiny_tokenizer

from paratune.config.sections import ModelOptions, Train
from paratune.engine.optim import OptimizerFactory
from paratune.models.load import Head, load_model
from paratune.models.new_weights import make_by_blocks
from paratune.models.stored import few_blocks
from paratune.models.task_model import TaskModel, find_blocks, weights_fingerprint
from paratune.precision import POLICIES, values_of
from paratune.processes.place import Place
from paratune.strategies import strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
OTHERS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(
        n_layer=3, n_embd=32, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1
    ),
    "llama in bf16": lambda: transformers.LlamaConfig(**SIZES, vocab_size=50, dtype="bfloat16"),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, vocab_size=50, num_key_value_heads=2, head_dim=16),
}


def made(config: Callable[[], Any], auto: Any, change: Callable[[Any], Any]) -> tuple[Any, torch.Tensor]:
    """Return a model and the state of the generator after it."""
    torch.manual_seed(3)
    hf = change(lambda: auto.from_config(config()))
    return hf, torch.get_rng_state()


def both(config: Callable[[], Any], auto: Any = transformers.AutoModelForSequenceClassification) -> tuple[Any, Any]:
    """Return a model that is made whole and one that is drawn by blocks, after a comparison of all their numbers."""
    (whole, after), (parts, also_after) = (
        made(config, auto, change) for change in (lambda make: make(), make_by_blocks)
    )
    assert torch.equal(after, also_after)
    assert [(name, weight.dtype) for name, weight in whole.named_parameters()] == [
        (name, weight.dtype) for name, weight in parts.named_parameters()
    ]
    for _ in range(2):  # a weight that is read is not kept
        assert weights_fingerprint(parts) == weights_fingerprint(whole)
    assert torch.equal(torch.get_rng_state(), after)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(parts.get_buffer(name), buffer, rtol=0, atol=0, equal_nan=True)
    return whole, parts


@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
def test_blocks_have_no_memory_and_the_bits_of_a_whole_model(name: str):
    _, parts = both((CONFIGS | OTHERS)[name])
    inside = {id(weight) for block in find_blocks(parts) for weight in block.parameters()}
    for key, weight in parts.named_parameters():
        assert hasattr(weight, "draw") == (id(weight) in inside), key
        assert id(weight) not in inside or weight.untyped_storage().nbytes() == weight.itemsize, key
        assert bool(weight.isnan().all()) == (id(weight) in inside), key


def test_a_model_that_keeps_values_of_its_constructor_is_made_whole():
    # The head of data2vec has a bias that `_init_weights` leaves alone.
    _, parts = both(CONFIGS["data2vec-text"], transformers.AutoModelForMaskedLM)
    assert not any(hasattr(weight, "draw") for weight in parts.parameters())


def _fill(encoder: Any) -> None:
    encoder.layer[0].output.dense.bias.fill_(2.0)  # PyTorch allows it without memory


def _draw(encoder: Any) -> None:
    encoder.layer[1].output.dense.weight.normal_()  # this not


def _keep(encoder: Any) -> None:
    encoder.config.initializer_range = encoder.layer[0].output.dense.weight.std().item()


@pytest.mark.parametrize("write", [_fill, _draw, _keep])
def test_a_model_whose_encoder_writes_to_its_blocks_is_made_whole(
    write: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
):
    plain = transformers.BertPreTrainedModel._init_weights

    def init_weights(self: Any, module: Any) -> None:
        plain(self, module)
        if type(module).__name__ == "BertEncoder":
            write(module)

    monkeypatch.setattr(transformers.BertPreTrainedModel, "_init_weights", init_weights)
    whole, parts = both(tiny_config)
    assert not any(hasattr(weight, "draw") for weight in parts.parameters())
    if write is _fill:
        assert whole.bert.encoder.layer[0].output.dense.bias.detach().tolist() == [2.0] * 32


def load(folder: Path, **options: Any) -> TaskModel:
    head = Head("AutoModelForSequenceClassification", 2, ("no", "yes"))
    model = ModelOptions(name=str(folder), from_scratch=True)
    return load_model(model, "classification", head, tiny_tokenizer(), POLICIES["fp32"], seed=5, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_config(num_layers=4).save_pretrained(tmp_path)
    return tmp_path


def test_a_test_of_a_few_blocks_has_their_values(folder: Path):
    whole, parts = load(folder), load(folder, keeps_stored=True)
    expected = dict(whole.named_parameters())
    with few_blocks(parts.hf, torch.float32):
        assert len(find_blocks(parts)) == 4
        for name, weight in parts.named_parameters():
            assert torch.equal(weight, expected[name]), name
    assert all(hasattr(weight, "draw") for block in find_blocks(parts) for weight in block.parameters())


STRATEGIES: dict[str, dict[str, Any]] = {
    "zero2": {},
    "zero3": {},
    "deepspeed:2": {"stage": 2},
    "deepspeed:3": {"stage": 3},
    "deepspeed:2 in 16 bits": {"stage": 2, "param_dtype": "bf16"},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_starts_with_the_weights_of_a_model_that_is_made_whole(folder: Path, name: str):
    kind, options = name.partition(":")[0], STRATEGIES[name]
    if kind == "deepspeed":
        pytest.importorskip("deepspeed")
    expected = {f"model/{key}": weight for key, weight in load(folder).named_parameters()}
    model = load(folder, keeps_stored=True)
    open_process_group(Place(0, 0, 1), CPU)
    try:
        precision = POLICIES["bf16" if "param_dtype" in options else "fp32"]
        strategy: Any = strategy_class(kind)(device=CPU, precision=precision, rank=0, world_size=1, **options)
        strategy.prepare(model, find_blocks(model), OptimizerFactory(Train(), 10))
        started = {key: value.clone() for key, value in strategy.state().tensors("model/") if value is not None}
        assert not any(hasattr(weight, "draw") for weight in model.parameters()), "nothing draws trained weights"
        strategy.close()
    finally:
        close_process_group()
    assert expected.keys() <= started.keys()
    for key, value in expected.items():
        assert torch.equal(started[key], value), key


def test_values_are_those_of_the_call():
    weight = torch.nn.Parameter(torch.ones(2))
    values = values_of(weight)
    weight.data = torch.zeros(2)
    assert values().tolist() == [1.0, 1.0]
