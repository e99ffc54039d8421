"""The facts about models whose files are damaged: the file is named, and nothing is raised."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looping import tiny_run_config
from tiny import tiny_model

from paratune.commands.doctor_model import model_facts
from paratune.doctor.facts import MachineFacts, QueuedRun

Change = Callable[[Path], Any]
SETUP = QueuedRun(MachineFacts({}, {}, Path(), Path(), {}), Path("c.yaml"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    tiny_model(folder)
    return folder


def write(name: str, content: bytes | str) -> Change:
    return lambda model: (model / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def edit(name: str, **values: Any) -> Change:
    return lambda model: (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | values))


def weights(header: Any, data: bytes = b"") -> Change:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return write("model.safetensors", struct.pack("<Q", len(text)) + text + data)


def folder_in_place_of(name: str) -> Change:
    def change(model: Path) -> None:
        (model / name).unlink()
        (model / name).mkdir()

    return change


def shards(weight_map: Any) -> Change:
    def change(model: Path) -> None:
        (model / "model.safetensors").unlink()
        write("model.safetensors.index.json", json.dumps({"weight_map": weight_map}))(model)

    return change


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
DAMAGED: dict[str, tuple[str, Change]] = {
    "list": ("config.json", write("config.json", "[]")),
    "nested": ("config.json", write("config.json", "[" * 100_000)),
    "bytes": ("config.json", write("config.json", b"\xff\xfe\0")),
    "type is a list": ("config.json", edit("config.json", model_type=["bert"])),
    "unknown type": ("config.json", edit("config.json", model_type="zzz")),
    "size is a text": ("config.json", edit("config.json", vocab_size="abc")),
    "size is infinite": ("config.json", write("config.json", '{"model_type": "bert", "vocab_size": 1e400}')),
    "no heads": ("config.json", edit("config.json", num_attention_heads=0)),
    "heads that do not fit": ("config.json", edit("config.json", num_attention_heads=7)),
    "names by letters": ("config.json", edit("config.json", id2label={"a": "x"})),
    "names as a list": ("config.json", edit("config.json", id2label=["x"])),
    "activation": ("config.json", edit("config.json", hidden_act="zz")),
    "no tensors' places": ("model.safetensors", weights({"a": {"dtype": "F32", "shape": [1]}})),
    "places are texts": ("model.safetensors", weights({"a": TENSOR | {"data_offsets": ["a", "b"]}})),
    "one place": ("model.safetensors", weights({"a": TENSOR | {"data_offsets": [0]}}, bytes(4))),
    "shape is a text": ("model.safetensors", weights({"a": TENSOR | {"shape": "x"}}, bytes(4))),
    "tensor is a text": ("model.safetensors", weights({"a": "x"})),
    "nested header": ("model.safetensors", weights(b"[" * 100_000)),
    "too few bytes": ("model.safetensors", weights({"a": TENSOR}, bytes(3))),
    "kind of numbers": ("model.safetensors", weights({"a": TENSOR | {"dtype": "ZZ"}}, bytes(4))),
    "empty": ("model.safetensors", write("model.safetensors", b"")),
    "another file": ("extra.safetensors", write("extra.safetensors", b"x" * 20)),
    "null byte": ("a\0b", write("paratune.json", '{"files": {"a\\u0000b": {}}}')),
    "tokenizer": ("tokenizer_config.json", write("tokenizer_config.json", "[" * 100_000)),
}  # fmt: skip


def problems(facts: Any) -> dict[str, str]:
    return {finding.code: finding.fact for finding in facts.findings}


def facts_of(good: Path, folder: Path, change: Change, **model: Any) -> Any:
    for path in good.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    change(folder)
    config = tiny_run_config(None)
    section = type(config.model).model_validate({"name": str(folder), **model})
    return model_facts(config.model_copy(update={"model": section}), SETUP)


@pytest.mark.parametrize(("name", "change"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named(good: Path, tmp_path: Path, name: str, change: Change):
    facts, tokenizer, limit = facts_of(good, tmp_path, change)
    assert any(f"/{name} " in finding.fact for finding in facts.findings if finding.code == "model_damaged")
    assert (tokenizer, limit) == (None, None)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", folder_in_place_of("config.json")),
        ("model.safetensors", folder_in_place_of("model.safetensors")),
        ("d", shards({"a": "d"})),
        ("3", shards({"a": 3})),
        ("x\0y", shards({"a": "x\0y"})),
        ("x" * 5000, shards({"a": "x" * 5000})),
        ("model.safetensors", shards([])),
    ],
)
def test_a_missing_file_is_named(good: Path, tmp_path: Path, name: str, change: Change):
    assert problems(facts_of(good, tmp_path, change)[0])["model_incomplete"] == f"{tmp_path} lacks {name}"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (edit("tokenizer_config.json", model_max_length="abc"), "'abc'"),
        (edit("tokenizer_config.json", model_max_length=2), "model_max_length: 2"),
        (edit("tokenizer_config.json", model_max_length=-1), "tokenizer_config.json"),
        (write("tokenizer.json", "{}"), "tokenizer"),
        (folder_in_place_of("tokenizer.json"), "tokenizer"),
        (edit("tokenizer.json", model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[NOPE]",
              "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}), "unknown token"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_cannot_be_used_is_named(good: Path, tmp_path: Path, change: Change, part: str):
    facts, tokenizer, _ = facts_of(good, tmp_path, change)
    assert [finding.code for finding in facts.findings] == ["tokenizer_unusable"]
    assert part in facts.findings[0].fact
    assert tokenizer is None


@pytest.mark.parametrize(
    "overrides",
    [
        {"hidden_size": 33},
        {"num_attention_heads": 0},
        {"vocab_size": -1},
        {"hidden_act": "zz"},
        {"num_hidden_layers": "x"},
        {"max_position_embeddings": -3},
    ],
)
def test_overrides_without_a_model_are_damage(good: Path, tmp_path: Path, overrides: dict[str, Any]):
    facts, _, _ = facts_of(good, tmp_path, lambda model: None, from_scratch=True, overrides=overrides)
    assert [finding.code for finding in facts.findings] == ["model_damaged"]
    assert "config.json" in facts.findings[0].fact
    assert facts.num_parameters is None


def test_the_weights_of_a_whole_model_are_counted(good: Path, tmp_path: Path):
    facts, tokenizer, limit = facts_of(good, tmp_path, lambda model: None)
    assert (facts.findings, limit) == ((), 64)
    assert facts.num_parameters == sum(weight.numel() for weight in tiny_model().parameters())
    assert tokenizer is not None


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "/" + "a" * 5000])
def test_a_name_that_no_file_can_have_is_not_found(good: Path, name: str):
    config = tiny_run_config(None)
    for update in ({"name": name}, {"name": str(good), "tokenizer": name}):
        facts, tokenizer, _ = model_facts(
            config.model_copy(update={"model": config.model.model_copy(update=update)}), SETUP
        )
        assert set(problems(facts)) in ({"model_absent"}, {"tokenizer_absent"})
        assert tokenizer is None
