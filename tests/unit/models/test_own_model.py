"""Heads and model classes from outside the package; the head is the text of docs/howto/extend.md.

Expected values: the encoder of transformers on each row alone, and the attention pooling written out.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from architectures import CONFIGS, rows
from raised import raises_code
from tiny import tiny_config, tiny_model, tiny_tokenizer
from transformers import BertModel, BertPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from paratune.batch.packing import pack
from paratune.config.section import OwnCode
from paratune.config.sections import LoraOptions, ModelOptions
from paratune.models.load import Head, load_model
from paratune.models.own_model import own_model_class, set_initial_values
from paratune.models.packed import enable_packed_batches
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES

pytestmark = pytest.mark.usefixtures("any_code")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
HEAD = Head("AutoModelForSequenceClassification", num_outputs=3)
OWN = OwnCode(function="my_heads:AttentionPooling", options={"dropout": 0.0})
CODE = """
class Wrong(nn.Module):
    def __init__(self, config, kind):
        super().__init__()
        self.out = nn.Linear(config.hidden_size, config.num_labels + (kind == "wide"))
        if kind == "unused": self.other = nn.Linear(2, 2)
        if kind == "scalar": self.scale = nn.Parameter(torch.ones(()))
        if kind == "batch norm": self.norm = nn.BatchNorm1d(3)
        self.kind = kind
    def forward(self, hidden, attention_mask):
        if self.kind == "fails": raise ZeroDivisionError
        return self.out(hidden if self.kind == "tokens" else hidden[:, 0])
def number(config): return 3
"""


class TwoLayers(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.scale = torch.nn.Parameter(torch.full((config.hidden_size,), 0.5))
        self.out = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, **inputs):
        hidden = self.bert(input_ids, **inputs)[0]
        return SequenceClassifierOutput(logits=self.out(self.scale * hidden[:, 0]))


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = next(text for text in blocks if "# my_heads" in text)
    (tmp_path / "my_heads.py").write_text(text + CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_heads", None)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_model(tmp_path / "base", dropout=0.0)
    return tmp_path / "base"


def load(folder: Path, *, head: OwnCode | None = OWN, seed: int = 7, **options) -> TaskModel:
    model = ModelOptions.model_validate({"name": str(folder), "head": head, **options})
    return load_model(model, "classification", HEAD, tiny_tokenizer(), POLICIES["fp64"], seed=seed)


def saved(folder: Path, model: TaskModel) -> Path:
    save_model(folder, model, tiny_tokenizer(), {name: p.detach().clone() for name, p in model.named_parameters()}, {})
    return folder


@torch.no_grad()
def outputs(model: TaskModel) -> torch.Tensor:
    return model.eval()(rows([4, 9, 2], "classification"))


def test_the_page_s_head_pools_each_row_in_both_layouts(base):
    model = load(base).eval()
    enable_packed_batches(model)
    batch = rows([4, 9, 2], "classification")
    encoder, head = BertModel.from_pretrained(base, add_pooling_layer=False).double().eval(), model.hf.own_head
    with torch.no_grad():
        expected = []
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
            hidden = encoder(ids[None, : int(mask.sum())])[0][0]
            weights = torch.exp(hidden @ head.query)
            expected.append(head.out((weights[:, None] * hidden).sum(0) / weights.sum()))
        for other in (batch, pack(batch)):
            torch.testing.assert_close(model(other), torch.stack(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["roberta", "modernbert", "deberta-v3", "distilbert", "electra"])
def test_heads_of_other_encoders_take_packed_rows(name):
    config = CONFIGS[name]()
    own = own_model_class(ModelOptions(name=name, head=OWN), config)
    model = TaskModel(own(config).double(), "classification").eval()
    enable_packed_batches(model)
    assert (model.why_padded, model.head_reads) == (None, "all")


def test_new_weights_have_the_values_of_the_user_s_code_and_loaded_ones_stay(base, tmp_path):
    model = load(base)
    torch.manual_seed(7)
    fresh = importlib.import_module("my_heads").AttentionPooling(tiny_config(3), dropout=0.0)
    for name, value in fresh.named_parameters():
        assert torch.equal(model.hf.own_head.get_parameter(name), value.double())
    assert set(model.new_weights) == {f"own_head.{name}" for name, _ in fresh.named_parameters()}
    again = load(saved(tmp_path / "again", model), seed=8)
    assert again.new_weights == ()
    assert torch.allclose(outputs(again), outputs(model), atol=1e-6)  # saved in float64, loaded through float32
    scratch = load(base, from_scratch=True)
    assert torch.equal(scratch.hf.own_head.query, model.hf.own_head.query)


def test_an_adapter_beside_an_own_head_is_merged(base, tmp_path):
    pytest.importorskip("peft")
    model = load(base, adapter=LoraOptions(kind="lora", rank=2).model_dump())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    assert torch.allclose(outputs(load(saved(tmp_path / "merged", model))), outputs(model), atol=1e-6)


@pytest.mark.parametrize("change", ["wide", "narrow", "tokens"])
def test_a_class_with_other_logits_than_classes_is_refused(base, monkeypatch, change):
    model = load(base, head=None, **{"class": f"{__name__}:TwoLayers"})
    size = {"wide": 4, "narrow": 2}.get(change, 3)
    model.hf.out = torch.nn.Linear(32, size).double()
    if change == "tokens":
        monkeypatch.setattr(model.hf.out, "forward", lambda hidden: hidden.new_zeros(3, 4, 3))
    with raises_code("own_code.wrong_result", "(rows, 3)"):
        model(rows([4, 9, 2], "classification"))


def test_an_own_class_takes_packed_rows_and_its_parameters_are_initialised(base):
    model = load(base, head=None, **{"class": f"{__name__}:TwoLayers"})
    assert model.hf.scale.tolist() == [0.5] * 32
    assert set(model.new_weights) == {"scale", "out.weight", "out.bias"}
    enable_packed_batches(model)
    assert model.entry is not None
    set_initial_values(model.hf, ["out.bias"], seed=0)  # by transformers' rule: biases are 0
    assert model.hf.out.bias.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"head": {"function": "my_heads:number"}}, "own_code.wrong_result"),
        *(
            ({"head": {"function": "my_heads:Wrong", "options": {"kind": kind}}}, "own_code.wrong_result")
            for kind in ("wide", "tokens", "unused", "scalar", "batch norm")
        ),
        ({"head": {"function": "my_heads:Wrong", "options": {"kind": "fails"}}}, "own_code.raised"),
        ({"head": {"function": "my_heads:Absent"}}, "own_code.not_found"),
        ({"class": "my_heads:AttentionPooling"}, "model.class_unfit"),
        ({"class": "transformers:RobertaForSequenceClassification"}, "model.class_unfit"),
    ],
)
def test_code_that_does_not_fit_is_refused(options, code):
    with raises_code(code):
        own = own_model_class(ModelOptions.model_validate({"name": "bert", **options}), tiny_config(3))
        own(tiny_config(3))


def test_an_encoder_without_hidden_states_of_all_tokens_is_refused():
    from transformers import BartConfig

    with raises_code("model.class_unfit", value="bart"):
        own_model_class(ModelOptions(name="bart", head=OWN), BartConfig())
