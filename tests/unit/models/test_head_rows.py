"""The rows of a loaded head: put in the order of the labels of the task, or kept with a line."""

import logging
from pathlib import Path

import pytest
import torch
import transformers
from architectures import CONFIGS
from safetensors.torch import load_file
from tiny import tiny_config, tiny_model, tiny_tokenizer
from transformers import BertForSequenceClassification, BertForTokenClassification, pipeline

from paratune.config.sections import LoraOptions, ModelOptions
from paratune.config.task_sections import RegressionTask
from paratune.models.load import Head, load_model, log_new_weights, order_rows, saved_labels
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel
from paratune.planning.build import build_model
from paratune.precision import POLICIES

SAVED = ["neutral", "Positive", "negative"]
TEXTS = ["good film", "bad film", "the story was very poor"]
IDS = torch.tensor([[2, 50, 60, 3], [2, 70, 51, 3]])
SEQUENCES, TOKENS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"


def save_model_of(folder: Path, labels: list[str] | None, **options: object) -> Path:
    """Save a classifier as Trainer does; without `labels`, its outputs have no names."""
    maker = options.pop("maker", BertForSequenceClassification)
    config = tiny_config(len(labels or SAVED))
    config.update(options)
    if labels is not None:
        config.id2label, config.label2id = dict(enumerate(labels)), {name: n for n, name in enumerate(labels)}
    torch.manual_seed(3)
    model = maker(config)
    torch.nn.init.normal_(model.classifier.weight)
    torch.nn.init.normal_(model.classifier.bias)
    model.save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def started(folder: Path, names: list[str], auto_class: str = SEQUENCES, problem_type: str | None = None) -> TaskModel:
    head = Head(auto_class, len(names), tuple(names), problem_type)
    kind = "token_classification" if auto_class == TOKENS else "classification"
    return load_model(ModelOptions(name=str(folder)), kind, head, tiny_tokenizer(), POLICIES["fp32"], 0).eval()


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("names", [["Negative", "neutral", "positive"], ["positive", "NEUTRAL ", "negative"]])
def test_predictions_by_name_are_those_of_the_checkpoint(tmp_path: Path, names: list[str], problem_type: str):
    folder = save_model_of(tmp_path / "model", SAVED)
    model = started(folder, names, problem_type=problem_type)
    assert model.hf.config.id2label == dict(enumerate(names))
    model.hf.save_pretrained(tmp_path / "started")
    tiny_tokenizer(tmp_path / "started")
    scores = []
    for path in (folder, tmp_path / "started"):
        pipe = pipeline("text-classification", model=str(path), device="cpu")
        rows = pipe(TEXTS, top_k=None, function_to_apply="none")
        scores.append([{entry["label"].strip().casefold(): entry["score"] for entry in row} for row in rows])
    assert scores[0] == [pytest.approx(row) for row in scores[1]]
    before = BertForSequenceClassification.from_pretrained(folder)
    order = [[label.casefold() for label in SAVED].index(name.strip().casefold()) for name in names]
    with torch.no_grad():
        assert torch.equal(model.hf(IDS).logits, before(IDS).logits[:, order])


def test_rows_of_a_head_for_tokens_are_ordered_too(tmp_path: Path):
    tags = ["O", "B-PER", "I-PER"]
    folder = save_model_of(tmp_path / "model", tags, maker=BertForTokenClassification)
    model = started(folder, ["B-PER", "I-PER", "O"], TOKENS)
    before = BertForTokenClassification.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(model.hf(IDS).logits, before(IDS).logits[..., [1, 2, 0]])


@pytest.mark.parametrize(
    ("saved", "names", "level"),
    [
        (SAVED, SAVED, None),
        (SAVED, ["neutral", "positive", "NEGATIVE"], None),
        (None, SAVED, logging.INFO),  # LABEL_0, LABEL_1, LABEL_2
        (SAVED, ["negative", "neutral", "mixed"], logging.WARNING),
        (["a", "b", "c"], ["x", "y", "z"], logging.WARNING),
        (["a", "A", "c"], ["c", "b", "a"], logging.WARNING),  # not told apart without case
    ],
)
def test_other_heads_are_kept_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture, saved, names, level):
    """As `from_pretrained` of transformers: it keeps a head of the right size, whatever its labels are."""
    folder = save_model_of(tmp_path / "model", saved)
    model = started(folder, names)
    state = load_file(folder / "model.safetensors")
    assert torch.equal(model.hf.classifier.weight, state["classifier.weight"])
    assert torch.equal(model.hf.classifier.bias, state["classifier.bias"])
    caplog.set_level(logging.INFO)
    log_new_weights(model, "the model")
    lines = [record.levelno for record in caplog.records if getattr(record, "code", None) == "model.head_labels"]
    assert lines == ([] if level is None else [level])


@pytest.mark.parametrize("saved", [["a", "A", "c"], ["LABEL_0", "LABEL_1", "LABEL_2"]])
def test_the_same_names_need_not_differ_without_case(tmp_path: Path, saved: list[str]):
    folder = save_model_of(tmp_path / "model", saved)
    state = load_file(folder / "model.safetensors")
    assert torch.equal(started(folder, saved[::-1]).hf.classifier.weight, state["classifier.weight"].flip(0))


def test_rows_of_ordered_labels_are_not_moved():
    """Each stands for all labels above one: those above "low" are others in another order, with the same names."""
    hf = BertForSequenceClassification(tiny_config(2))
    before = hf.classifier.weight.clone()
    saved, names = ["above low", "above mid"], ["above mid", "above low"]  # low, mid, high and mid, low, high
    level, _ = order_rows(hf, saved, names, (), is_ordinal=True) or (None, "")
    assert level == logging.WARNING
    assert torch.equal(hf.classifier.weight, before)
    assert order_rows(hf, saved, ["Above LOW", "above mid"], (), is_ordinal=True) is None


def test_a_new_head_has_no_line(tmp_path: Path):
    assert started(save_model_of(tmp_path / "model", SAVED), ["negative", "positive"]).head_order is None


@pytest.mark.parametrize("name", CONFIGS)
def test_the_rows_of_every_architecture_are_those_of_its_logits(name: str):
    config = CONFIGS[name]()
    config.num_labels = 4
    torch.manual_seed(0)
    try:
        hf = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    except ValueError:
        pytest.skip("no head for sequences")
    if config.pad_token_id is None:
        config.pad_token_id = 0
    ids = torch.tensor([[5, 50, 60, 7, 9, 11, 12, 13]])
    with torch.no_grad():
        for _, parameter in hf.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        before = hf(ids).logits
        level, _ = order_rows(hf, ["a", "b", "c", "d"], ["d", "b", "a", "c"], ()) or (None, "")
        assert level == logging.INFO
        assert torch.equal(hf(ids).logits, before[:, [3, 1, 0, 2]])


def test_own_code_keeps_its_rows_with_a_warning():
    class OwnModel(BertForSequenceClassification):
        pass

    hf = OwnModel(tiny_config(3))
    before = hf.classifier.weight.clone()
    level, _ = order_rows(hf, ["a", "b", "c"], ["c", "a", "b"], ()) or (None, "")
    assert level == logging.WARNING
    assert torch.equal(hf.classifier.weight, before)


@pytest.mark.parametrize("kind", ["regression", "ordinal"])
def test_a_binary_classifier_without_names_starts_tasks_with_one_output(tmp_path: Path, kind: str):
    folder = tmp_path / "model"
    model = tiny_model()
    model.config.problem_type = "single_label_classification"  # as Trainer saves it
    model.save_pretrained(folder)
    names = () if kind == "regression" else ("above 1",)
    problem_type = "regression" if kind == "regression" else "multi_label_classification"
    head = Head(SEQUENCES, 1, names, problem_type)
    loaded = load_model(ModelOptions(name=str(folder)), kind, head, tiny_tokenizer(), POLICIES["fp32"], 0)
    assert loaded.hf.classifier.out_features == 1
    loaded.hf.save_pretrained(tmp_path / "saved")
    saved = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    assert (saved.num_labels, saved.problem_type) == (1, problem_type)


def test_rows_of_an_adapter_are_ordered_by_its_own_labels(tmp_path: Path):
    """The base model has other labels than the adapter, whose head is saved with it."""
    pytest.importorskip("peft")
    base = save_model_of(tmp_path / "base", ["x", "y", "z"])
    tokenizer, head = tiny_tokenizer(), Head(SEQUENCES, 3, tuple(SAVED), "single_label_classification")
    options = ModelOptions(name=str(base), adapter=LoraOptions(kind="lora", save="adapter"))
    model = load_model(options, "classification", head, tokenizer, POLICIES["fp32"], 0)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    folder, record = tmp_path / "adapter", {"task": {"kind": "classification"}}
    save_model(folder, model, tokenizer, weights, record, adapter_base_model=str(base))
    same, turned = started(folder, SAVED), started(folder, SAVED[::-1])
    assert same.head_order is None
    with torch.no_grad():
        assert torch.equal(turned.hf(IDS).logits, same.hf(IDS).logits.flip(1))


def test_a_plan_of_one_output_starts_from_a_binary_classifier():
    config = tiny_config(2)
    config.problem_type = "single_label_classification"
    model = build_model(config, RegressionTask(kind="regression"), POLICIES["fp32"], None)
    assert model.hf.classifier.out_features == 1


def test_labels_of_a_saved_head(tmp_path: Path):
    config = tiny_config(2)
    config.id2label = {1: "yes", 0: "no"}
    assert saved_labels(config, None) == ["no", "yes"]
    assert saved_labels(config, tmp_path) == []  # of an adapter that others made
    (tmp_path / "paratune.json").write_text('{"head_labels": ["b", "a"]}')
    assert saved_labels(config, tmp_path) == ["b", "a"]
