"""Loading models: errors, replaced heads, and no pickle is ever opened."""

import importlib.util
import json
import logging
import pickle
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from architectures import CONFIGS
from raised import raises_code
from safetensors.torch import load_file, save_file
from tiny import VOCABULARY, tiny_model, tiny_tokenizer
from tokenizers import Tokenizer, models
from transformers import ModernBertConfig, PreTrainedTokenizerFast, T5Config

from paratune.config import permission
from paratune.config.feasibility import DEMO_MODEL
from paratune.config.sections import LoraOptions, ModelOptions
from paratune.errors import ConfigError
from paratune.models.config import load_config
from paratune.models.load import Head, load_model, log_new_weights, require_weights
from paratune.models.locate import locate
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel, freeze_encoder, set_output_bias
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES

AUTO_CLASS = "AutoModelForSequenceClassification"
NAMES = ["no", "yes"]
VERSION = transformers.__version__
NUMBER = Head(AUTO_CLASS, 1, problem_type="regression")


def head_of(names: list[str]) -> Head:
    return Head(AUTO_CLASS, len(names), tuple(names), "single_label_classification")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model folder with a head of two labels."""
    tiny_model(tmp_path / "model")
    return tmp_path / "model"


def loaded(folder: Path, names: list[str] = NAMES, *, precision: str = "fp32", seed: int = 1, **options) -> TaskModel:
    exists = options.pop("head_must_exist", False)
    kind, head = ("classification", head_of(names)) if names else ("regression", NUMBER)
    model = ModelOptions(name=str(folder), **options)
    return load_model(model, kind, head, tiny_tokenizer(), POLICIES[precision], seed, head_must_exist=exists)


def error_text(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_weights_are_those_of_the_folder_and_the_head_has_its_labels(folder: Path):
    model = loaded(folder)
    state = load_file(folder / "model.safetensors")
    for name, value in model.hf.named_parameters():
        assert torch.equal(value, state[name]), name
    assert model.hf.config.id2label == {0: "no", 1: "yes"}
    assert model.hf.config.label2id == {"no": 0, "yes": 1}
    assert model.hf.config.problem_type == "single_label_classification"
    assert model.hf.config.pad_token_id == 0
    assert model.task_kind == "classification"


def test_regression_has_one_output(folder: Path):
    model = loaded(folder, [])
    assert model.hf.config.problem_type == "regression"
    assert model.hf.classifier.out_features == 1


def test_the_dtype_is_that_of_the_policy(folder: Path):
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.float32), ("fp64", torch.float64)):
        assert {value.dtype for value in loaded(folder, precision=precision).parameters()} == {dtype}


def test_a_head_for_other_labels_is_replaced_with_a_message(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "paratune")
    model = loaded(folder, ["a", "b", "c"])
    assert model.hf.classifier.out_features == 3
    assert not caplog.text, "a checkpoint may yet replace them"
    log_new_weights(model, "m")
    assert "new weights, which m does not have" in caplog.text
    assert "classifier.bias, classifier.weight" in caplog.text
    assert torch.equal(
        model.hf.bert.embeddings.word_embeddings.weight, loaded(folder).hf.bert.embeddings.word_embeddings.weight
    )


def test_new_weights_depend_only_on_the_seed(folder: Path):
    first = loaded(folder, ["a", "b", "c"], seed=5)
    torch.randn(7)
    again, other = loaded(folder, ["a", "b", "c"], seed=5), loaded(folder, ["a", "b", "c"], seed=6)
    assert torch.equal(first.hf.classifier.weight, again.hf.classifier.weight)
    assert not torch.equal(first.hf.classifier.weight, other.hf.classifier.weight)


def test_no_message_when_all_weights_fit(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "paratune")
    loaded(folder, head_must_exist=True)
    assert caplog.text == ""


def test_use_without_training_requires_a_head(folder: Path):
    text = error_text(lambda: loaded(folder, ["a", "b", "c"], head_must_exist=True))
    assert f"{folder} was not trained for this task: it has no weights for classifier.bias, classifier.weight" in text


def test_from_scratch_uses_only_the_architecture(folder: Path):
    (folder / "model.safetensors").unlink()
    model = loaded(folder, from_scratch=True, seed=3)
    assert torch.equal(loaded(folder, from_scratch=True, seed=3).hf.classifier.weight, model.hf.classifier.weight)


def test_from_scratch_all_weights_are_new(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "paratune")
    model = loaded(folder, ["one"], from_scratch=True)
    set_output_bias(model, 6.5)
    assert model.hf.classifier.bias.item() == 6.5
    log_new_weights(model, str(folder))
    assert caplog.messages == ["all weights are new"]
    with raises_code("model.nothing_trained", "freeze_encoder", "36"):
        freeze_encoder(model)


class Booby:
    """Unpickling it does something."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model.pt"])
def test_a_model_without_safetensors_is_an_error_and_nothing_is_unpickled(folder: Path, name: str):
    (folder / "model.safetensors").unlink()
    for file in (name, "optimizer.pt", "rng_state_0.pth"):
        (folder / file).write_bytes(pickle.dumps(Booby()))
    for refused in (lambda: loaded(folder), lambda: require_weights(ModelOptions(name=str(folder)))):
        with raises_code("model.pickled", source=str(folder), files=[str(folder / name)]):
            refused()


def test_the_printed_line_saves_all_parts_of_a_model_as_safetensors(folder: Path):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    for number, part in enumerate((names[:9], names[9:]), start=1):
        torch.save({name: weights[name] for name in part}, folder / f"pytorch_model-{number:05d}-of-00002.bin")
    line = error_text(lambda: loaded(folder)).partition("once: ")[2]
    exec(shlex.split(line)[2], {})
    saved = load_file(folder / "model.safetensors")
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in names)
    loaded(folder)


def test_a_pickle_next_to_safetensors_is_ignored(folder: Path):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Booby()))
    (folder / "training_args.bin").write_bytes(pickle.dumps(Booby()))
    (folder / "optimizer.pt").write_bytes(pickle.dumps(Booby()))
    loaded(folder)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("config.json", {"model_type": "superbert", "transformers_version": "6.1.0"}, ["superbert", "6.1.0", VERSION]),
        ("config.json", {"model_type": None}, ["model_type"]),
        ("config.json", {"model_type": "clip"}, ["CLIP", AUTO_CLASS]),
        ("config.json", {"hidden_size": "x"}, ["hidden_size", "int", "'x'"]),
        ("config.json", {"hidden_act": "gelu_super"}, ["gelu_super"]),
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, ["quantization_config"]),
        ("config.json", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, ["quantized"]),
        ("config.json", b"{", ["config.json"]),
        ("tokenizer.json", b"{}", ["tokenizer"]),
        ("tokenizer_config.json", b"[]", ["tokenizer"]),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1", ["LFS"]),
        ("model.safetensors", pickle.dumps([]), ["weights"]),
        ("model.safetensors", None, ["weights"]),
    ],
    ids=str,
)
def test_an_error_of_transformers_is_in_our_words(
    folder: Path, file: str, content: dict[str, object] | bytes | None, named: list[str]
):
    # The name is in the messages of transformers, and no sign of what is wrong.
    folder = folder.rename(folder.with_name("bert-AWQ"))
    path = folder / file
    if isinstance(content, dict):
        config = {key: value for key, value in (json.loads(path.read_text()) | content).items() if value is not None}
        content = json.dumps(config).encode()
    path.write_bytes(path.read_bytes()[:-10] if content is None else content)

    def load() -> None:
        load_tokenizer(ModelOptions(name=str(folder)))
        loaded(folder)

    with raises_code("model.cannot_load", str(folder), *named, source=str(folder)) as raised:
        load()
    assert ("quantized" in str(raised.value)) == ("quantization_config" in str(content))
    advice = ("pip install --upgrade", "from_pretrained", "Optimum", "trust_remote_code", "issue")
    assert [words for words in advice if words in str(raised.value)] == []


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_number_of_labels_is_no_message(folder: Path, capfd: pytest.CaptureFixture[str]):
    path = folder / "config.json"
    labels = {"num_labels": 2, "id2label": {"0": "a", "1": "b", "2": "c"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | labels))
    capfd.readouterr()
    assert loaded(folder).hf.config.num_labels == 2
    assert "incompatible" not in "".join(capfd.readouterr())


def test_code_of_a_model_is_not_run(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForSequenceClassification": "evil.Evil"}
    config["model_type"] = "evil"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('run')\n")
    with raises_code("code.refused", path=str(folder)):
        loaded(folder)


def rewrite(folder: Path, rename: Callable[[str], str | None]) -> None:
    """Give the weights of the folder other names, or none."""
    path = folder / "model.safetensors"
    weights = {rename(key): value for key, value in load_file(path).items()}
    save_file({key: value for key, value in weights.items() if key}, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "missing",
    [
        "bert.encoder.layer.1.output.dense.weight",
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.LayerNorm.bias",
    ],
)
def test_random_weights_of_an_encoder_are_an_error(folder: Path, missing: str):
    rewrite(folder, lambda key: None if key == missing else key)
    text = error_text(lambda: loaded(folder))
    assert f"{folder} has no weights that fit {missing}" in text
    assert "from_scratch" in text


def test_weights_of_another_model_are_an_error(folder: Path):
    rewrite(folder, lambda key: f"other.{key}")
    text = error_text(lambda: loaded(folder))
    assert "bert.embeddings.word_embeddings.weight" in text
    assert "more" in text


def test_an_override_of_the_size_of_the_encoder_is_an_error(folder: Path):
    text = error_text(lambda: loaded(folder, overrides={"intermediate_size": 32}))
    assert "has no weights that fit bert.encoder.layer.0.intermediate.dense.weight" in text
    assert loaded(folder, overrides={"num_hidden_layers": 1}).hf.config.num_hidden_layers == 1


def test_more_positions_than_trained_are_an_error(folder: Path):
    text = error_text(lambda: loaded(folder, overrides={"max_position_embeddings": 1024}))
    assert "has no weights that fit bert.embeddings.position_embeddings.weight: its config.json and model" in text
    model = loaded(folder, overrides={"max_position_embeddings": 1024}, from_scratch=True)
    assert model.hf.bert.embeddings.position_embeddings.num_embeddings == 1024


def test_the_pooler_of_a_masked_lm_is_new(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "paratune")
    rewrite(folder, lambda key: None if "pooler" in key or "classifier" in key else key)
    model = loaded(folder)
    log_new_weights(model, str(folder))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"the pooler of {folder} is new, too: bert.pooler.dense.bias, bert.pooler.dense.weight" in warning
    assert "classifier" not in warning
    with raises_code("model.nothing_trained", "freeze_encoder", "bert", "pooler"):
        freeze_encoder(model)


def test_a_loaded_encoder_can_be_frozen(folder: Path):
    model = loaded(folder, ["a", "b", "c"])
    freeze_encoder(model)
    trained = [name for name, value in model.hf.named_parameters() if value.requires_grad]
    assert trained == ["classifier.weight", "classifier.bias"]


def test_a_revision_of_a_folder_has_no_effect(folder: Path, tmp_path: Path):
    tiny_tokenizer(tmp_path / "words")
    words = str(tmp_path / "words")
    by_name = ModelOptions(name=str(folder), revision="v1")
    for call in (lambda: load_tokenizer(by_name), lambda: require_weights(by_name), lambda: load_config(by_name)):
        assert f"model.revision: v1 has no effect on {folder}, which is a local folder" in error_text(call)
    by_tokenizer = ModelOptions(name=str(folder), tokenizer=words, tokenizer_revision="v2")
    text = error_text(lambda: load_tokenizer(by_tokenizer))
    assert f"model.tokenizer_revision: v2 has no effect on {words}, which is a local folder" in text


@pytest.mark.parametrize(
    ("options", "source", "revision"),
    [
        ({"revision": "v1"}, "owner/model", "v1"),
        ({"revision": "v1", "tokenizer": "owner/words"}, "owner/words", None),
        ({"revision": "v1", "tokenizer": "owner/words", "tokenizer_revision": "v2"}, "owner/words", "v2"),
    ],
)
def test_each_repository_has_its_own_revision(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], source: str, revision: str | None
):
    asked = []

    def note(name: str, **received: object) -> object:
        asked.append((name, received["revision"]))
        return tiny_tokenizer()

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", note)
    load_tokenizer(ModelOptions(name="owner/model", **options))
    assert asked == [(source, revision)]


def test_overrides_change_the_configuration(folder: Path):
    model = loaded(folder, overrides={"hidden_dropout_prob": 0.25})
    assert model.hf.config.hidden_dropout_prob == 0.25
    assert model.hf.bert.embeddings.dropout.p == 0.25


def test_an_unknown_override_is_an_error(folder: Path):
    text = error_text(lambda: loaded(folder, overrides={"hidden_dropuot_prob": 0.0}))
    assert "model.overrides.hidden_dropuot_prob is not an option of bert; did you mean hidden_dropout_prob?" in text


def test_a_too_large_vocabulary_is_an_error(folder: Path):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["one_more", "and_another"])
    text = error_text(
        lambda: load_model(
            ModelOptions(name=str(folder)), "classification", head_of(NAMES), tokenizer, POLICIES["fp32"], 0
        )
    )
    assert f"has {len(VOCABULARY)} embeddings and its tokenizer {len(VOCABULARY) + 2} tokens" in text


def tokenizer_with_an_id(number: int) -> PreTrainedTokenizerFast:
    """Return the tiny tokenizer with another id for its word `good`."""
    content = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    content["model"]["vocab"]["good"] = number
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)), unk_token="[UNK]")


@pytest.mark.parametrize("number", [len(VOCABULARY), 1_000_000])
def test_a_token_id_without_an_embedding_is_an_error(folder: Path, number: int):
    tokenizer = tokenizer_with_an_id(number)
    assert len(tokenizer) == len(VOCABULARY)
    text = error_text(
        lambda: load_model(
            ModelOptions(name=str(folder)), "classification", head_of(NAMES), tokenizer, POLICIES["fp32"], 0
        )
    )
    assert f"has {len(VOCABULARY)} embeddings and its tokenizer token ids up to {number};" in text


def other_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Save and return a tokenizer of 7 entries, whose ids go up to 7: there is no 5."""
    ids = {"a": 0, "##b": 1, "[UNK]": 2, "[MASK]": 3, "[PAD]": 4, "[CLS]": 6, "[SEP]": 7}
    inner = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=16,
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_new_weights_have_the_vocabulary_of_the_configured_tokenizer(folder: Path, tmp_path: Path):
    (folder / "model.safetensors").unlink()
    tokenizer = other_tokenizer(tmp_path / "words")
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.cls_token_id) == (7, 4, 6)
    model = ModelOptions(name=str(folder), from_scratch=True, tokenizer=str(tmp_path / "words"))
    made = load_model(model, "mlm", Head("AutoModelForMaskedLM"), load_tokenizer(model), POLICIES["fp32"], 0).hf
    embeddings = made.get_input_embeddings()
    assert (embeddings.num_embeddings, embeddings.padding_idx) == (8, 4)
    assert made.get_output_embeddings().weight is embeddings.weight
    assert (load_config(model).vocab_size, load_config(model).pad_token_id) == (8, 4)
    # Weights that are loaded, and a tokenizer beside them, leave it as it is written.
    assert load_config(ModelOptions(name=str(folder), tokenizer=model.tokenizer)).vocab_size == len(VOCABULARY)
    assert load_config(ModelOptions(name=str(folder), from_scratch=True)).vocab_size == len(VOCABULARY)


def test_more_embeddings_than_tokens_are_allowed_but_not_fewer(folder: Path, tmp_path: Path):
    other_tokenizer(tmp_path / "words")
    model = ModelOptions(
        name=str(folder), from_scratch=True, tokenizer=str(tmp_path / "words"), overrides={"vocab_size": 64}
    )
    assert load_config(model).vocab_size == 64
    few = model.model_copy(update={"overrides": {"vocab_size": 6}})
    head = Head("AutoModelForMaskedLM")
    text = error_text(lambda: load_model(few, "mlm", head, load_tokenizer(few), POLICIES["fp32"], 0))
    assert "has 6 embeddings and its tokenizer token ids up to 7; remove model.overrides.vocab_size" in text
    beside = ModelOptions(name=str(folder), from_scratch=True, overrides={"vocab_size": 6})
    text = error_text(lambda: load_model(beside, "mlm", head, load_tokenizer(beside), POLICIES["fp32"], 0))
    assert f"set model.overrides.vocab_size to {len(VOCABULARY)}" in text


GROWING = ["bert", "roberta", "distilbert", "electra", "albert", "modernbert", "deberta-v2"]


@pytest.mark.parametrize("auto_class", [AUTO_CLASS, "AutoModelForMaskedLM"])
@pytest.mark.parametrize("name", GROWING)
def test_a_vocabulary_grows_where_the_tokenizer_has_added_tokens(tmp_path: Path, name: str, auto_class: str):
    start, maker = tmp_path / "start", getattr(transformers, auto_class)
    torch.manual_seed(1)
    base = maker.from_config(CONFIGS[name]())
    base.save_pretrained(start)
    tokenizer = tiny_tokenizer(start)
    tokenizer.add_tokens(["covid", "lockdown", "[ORDER]"])
    tokenizer.save_pretrained(start)
    options = ModelOptions(name=str(start), resize_vocabulary=True)
    head = head_of(NAMES) if auto_class == AUTO_CLASS else Head(auto_class)
    kind, size = ("classification" if auto_class == AUTO_CLASS else "mlm"), len(VOCABULARY)
    with raises_code("model.vocabulary", size, size + 3, "model.resize_vocabulary"):
        load_model(ModelOptions(name=str(start)), kind, head, tokenizer, POLICIES["fp32"], 0)
    model = load_model(options, kind, head, tokenizer, POLICIES["fp32"], 0)
    again = load_model(options, kind, head, tokenizer, POLICIES["fp32"], 0)
    rows = model.hf.get_input_embeddings().weight
    assert load_config(options).vocab_size == model.hf.config.vocab_size == len(rows) == size + 3
    assert torch.equal(rows[:size], base.get_input_embeddings().weight)
    assert rows[size:].std() > 0
    assert torch.equal(rows, again.hf.get_input_embeddings().weight)
    tied = [key for key, weight in model.hf.named_parameters() if weight is rows]
    assert set(tied) <= set(model.grown) <= set(model.new_weights)
    with raises_code("model.nothing_trained"):
        freeze_encoder(model)
    ids = torch.tensor([[5, size + 2, 7, size]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model.hf.eval()(input_ids=ids).logits
    logits.logsumexp(-1).sum().backward()
    optimizer.step()
    weights = {f"hf.{key}": value for key, value in model.hf.state_dict().items()}
    save_model(tmp_path / "saved", model, tokenizer, weights, {})
    theirs, saved_tokenizer = (
        maker.from_pretrained(tmp_path / "saved").eval(),
        tokenizer.from_pretrained(tmp_path / "saved"),
    )
    assert saved_tokenizer.convert_tokens_to_ids("lockdown") == size + 1
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=ids).logits, model.hf(input_ids=ids).logits)
    if kind == "mlm":
        assert theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
        assert logits.shape[-1] == size + 3
    plain = load_model(ModelOptions(name=str(tmp_path / "saved")), kind, head, saved_tokenizer, POLICIES["fp32"], 0)
    assert (plain.grown, plain.new_weights) == ((), ())


def test_a_head_that_transformers_does_not_grow_is_refused(tmp_path: Path):
    transformers.EsmForMaskedLM(CONFIGS["esm"]()).save_pretrained(tmp_path)
    tokenizer = tiny_tokenizer(tmp_path)
    tokenizer.add_tokens(["covid"])
    with raises_code("model.vocabulary", "lm_head.bias", key="model.resize_vocabulary"):
        options = ModelOptions(name=str(tmp_path), resize_vocabulary=True)
        load_model(options, "mlm", Head("AutoModelForMaskedLM"), tokenizer, POLICIES["fp32"], 0)


def test_a_model_without_a_vocabulary_does_not_grow(tmp_path: Path):
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CanineConfig(**small, num_hash_buckets=8, num_hash_functions=2, local_transformer_stride=8)
    transformers.CanineForSequenceClassification(config).save_pretrained(tmp_path)
    options = ModelOptions(name=str(tmp_path), tokenizer=str(tmp_path), resize_vocabulary=True)
    tokenizer = tiny_tokenizer(tmp_path)
    assert load_model(options, "classification", head_of(NAMES), tokenizer, POLICIES["fp32"], 0).grown == ()


def test_an_adapter_trains_the_grown_embedding(folder: Path):
    pytest.importorskip("peft")
    tokenizer = tiny_tokenizer(folder)
    tokenizer.add_tokens(["covid"])
    tokenizer.save_pretrained(folder)
    options = ModelOptions(name=str(folder), resize_vocabulary=True, adapter=LoraOptions(kind="lora"))
    model = load_model(options, "classification", head_of(NAMES), tokenizer, POLICIES["fp32"], 0)
    trained = {name for name, weight in model.hf.named_parameters() if weight.requires_grad and "lora" not in name}
    assert trained == {"bert.embeddings.word_embeddings.weight", "classifier.weight", "classifier.bias"}


def test_only_special_tokens_of_the_configuration_get_new_ids(tmp_path: Path):
    # ModernBERT's own are 50279 to 50284, of which none is in a vocabulary of 7.
    ModernBertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1).save_pretrained(tmp_path / "modern")
    other_tokenizer(tmp_path / "words")
    config = load_config(
        ModelOptions(name=str(tmp_path / "modern"), from_scratch=True, tokenizer=str(tmp_path / "words"))
    )
    actual = {name: getattr(config, f"{name}_token_id") for name in ("pad", "bos", "cls", "eos", "sep")}
    assert actual == {"pad": 4, "bos": 6, "cls": 6, "eos": 7, "sep": 7}


def test_an_error_lists_the_files_of_a_folder_without_configuration(folder: Path):
    (folder / "config.json").unlink()
    text = error_text(lambda: load_config(ModelOptions(name=str(folder))))
    assert f"{folder} has none of config.json; it has model.safetensors, tokenizer.json" in text


def test_a_folder_without_a_tokenizer_is_an_error(folder: Path):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    text = error_text(lambda: load_tokenizer(ModelOptions(name=str(folder))))
    assert f"{folder} has none of tokenizer.json" in text
    assert "it has config.json, model.safetensors" in text


def test_a_tokenizer_may_be_in_another_folder(folder: Path, tmp_path: Path):
    tiny_tokenizer(tmp_path / "words")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    tokenizer = load_tokenizer(ModelOptions(name=str(folder), tokenizer=str(tmp_path / "words")))
    assert tokenizer("good film")["input_ids"] == tiny_tokenizer()("good film")["input_ids"]


def test_the_end_token_is_the_padding_token_where_there_is_none(folder: Path):
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token, tokenizer.eos_token = None, "[SEP]"
    tokenizer.save_pretrained(folder)
    assert load_tokenizer(ModelOptions(name=str(folder))).pad_token == "[SEP]"


def test_a_tokenizer_without_padding_and_end_token_is_an_error(folder: Path):
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    assert "has neither a padding token nor an end token" in error_text(
        lambda: load_tokenizer(ModelOptions(name=str(folder)))
    )


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "~/absent-model", "a/b/c"])
def test_a_missing_path_is_not_a_hub_name(name: str):
    assert f"{name} is not a folder" in error_text(lambda: locate(name))


def test_a_file_is_not_a_model(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert "is not a folder" in error_text(lambda: locate(str(tmp_path / "file")))


def test_other_names_are_hub_names(folder: Path):
    assert "model.name: <model> is a placeholder" in error_text(lambda: locate("<model>"))
    assert locate("some-owner/some-model") == "some-owner/some-model"
    assert locate("some-model") == "some-model"
    assert locate(str(folder)) == str(folder)


def test_a_hub_name_without_a_network_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    reason = "https://hub cannot be reached (no route)"
    monkeypatch.setattr("paratune.hub.unreachable_reason", lambda: reason)

    def offline(*_: object, local_files_only: bool = False, **__: object) -> None:
        raise OSError(f"local: {local_files_only}\nand more")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", offline)
    text = error_text(lambda: load_config(ModelOptions(name="some-owner/some-model")))
    assert text.startswith("model: some-owner/some-model is not a local folder, its configuration is not in the cache")
    assert f"and {reason}; name a folder" in text
    assert "\n" not in text

    monkeypatch.setattr("paratune.hub.unreachable_reason", lambda: None)
    text = error_text(lambda: load_config(ModelOptions(name="some-owner/some-model")))
    assert text.endswith("is not a local folder, and the hub did not return its configuration: local: False")


def test_the_hub_is_not_contacted_for_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("paratune.hub.unreachable_reason", lambda: pytest.fail("it was asked"))
    assert load_config(ModelOptions(name=str(folder))).num_labels == 2
    assert load_tokenizer(ModelOptions(name=str(folder)))


def test_the_demo_model_is_found_or_the_error_names_its_extra(monkeypatch: pytest.MonkeyPatch):
    assert "demo:tiny is not a demo model; the only one is demo:minilm" in error_text(lambda: locate("demo:tiny"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises_code("dependency.missing", "paratune[demo]"):
        locate(DEMO_MODEL)


@pytest.fixture
def t5_folder(tmp_path: Path) -> Path:
    """The folder of a T5 as its configuration class makes it: without the start token of the decoder."""
    config = T5Config(vocab_size=len(VOCABULARY), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    config.save_pretrained(tmp_path / "t5")
    tiny_tokenizer(tmp_path / "t5")
    return tmp_path / "t5"


def test_a_t5_without_decoder_start_is_an_error_before_data_is_read(t5_folder: Path):
    model = ModelOptions(name=str(t5_folder), from_scratch=True)
    with raises_code("model.unsupported", "decoder_start_token_id", "t5", key="model.overrides", name=str(t5_folder)):
        load_config(model)


@pytest.mark.parametrize("by_file", [False, True])
def test_a_t5_runs_with_the_suggested_decoder_start(t5_folder: Path, by_file: bool):
    overrides = {"eos_token_id": VOCABULARY.index("[SEP]")}
    if by_file:
        path = t5_folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "decoder_start_token_id": 0}))
    else:
        overrides["decoder_start_token_id"] = 0
    model = loaded(t5_folder, from_scratch=True, overrides=overrides)
    ids = torch.tensor([[5, 6, overrides["eos_token_id"]], [7, 8, overrides["eos_token_id"]]])
    assert model.hf(input_ids=ids).logits.shape == (2, 2)


def test_a_decoder_start_without_a_decoder_is_an_error(folder: Path):
    with raises_code("model.unknown_override", key="model.overrides.decoder_start_token_id"):
        load_config(ModelOptions(name=str(folder), overrides={"decoder_start_token_id": 0}))


def test_out_of_memory_is_not_reported_as_a_missing_model(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Cannot allocate memory (os error 12)")  # what safetensors raises under `ulimit -v`

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", fail)
    with raises_code("memory.out", "os error 12"):
        load_config(ModelOptions(name=str(folder)))


def changed_json(folder: Path, file: str, **changes: object) -> ModelOptions:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return ModelOptions(name=str(folder))


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_code_of_the_hub_for_the_attention_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, key: str):
    """With the package kernels, transformers would download and run it when the model is made."""
    monkeypatch.setattr(permission, "_allowed", set())
    monkeypatch.setattr(permission, "_trusted", set())
    model = changed_json(folder, "config.json", **{key: "stranger/kernel"})
    with raises_code("code.refused", "stranger/kernel", path=str(folder)):
        load_config(model)
    permission.trust(str(folder))
    assert load_config(model)._attn_implementation == "stranger/kernel"


def test_an_override_names_no_code_of_the_hub(folder: Path):
    with raises_code("code.refused", "stranger/kernel"):
        load_config(ModelOptions(name=str(folder), overrides={"_attn_implementation": "stranger/kernel"}))


@pytest.mark.parametrize("value", [5, "BertModel", [5]])
def test_architectures_are_a_list_of_names(folder: Path, value: object):
    with raises_code("model.cannot_load", source=str(folder)):
        load_config(changed_json(folder, "config.json", architectures=value))


@pytest.mark.parametrize("name", ["RagTokenizer", "BertModel", "pipeline", "logging"])
def test_another_class_than_a_tokenizer_is_refused(folder: Path, name: str):
    with raises_code("model.cannot_load", source=str(folder)):
        load_tokenizer(changed_json(folder, "tokenizer_config.json", tokenizer_class=name))
