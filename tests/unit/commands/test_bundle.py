"""A bundle of somebody else names no code by another way than the values of its configuration, and takes no links."""

from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.commands.bundle import bundle, unbundle
from paratune.commands.bundle_contents import BundleContents, add_data, add_model
from paratune.config.load import load_config
from paratune.config.own_code import imported_code
from paratune.hub.bundle import Manifest, hash_file, write_bundle

CONFIG = """
task: {kind: classification, labels: [a, b]}
data: {train: "demo:sentences", columns: {text: t, label: l}, split: {validation: 0.1}}
model: {name: m}
train: {epochs: 1}
batch: {global: 8}
"""
BASE = "model: {class: 'demo:Model'}\nrun: {callbacks: [{function: 'demo:Steps'}]}\n"


def made(folder: Path, paths: dict[str, str], extends: str | None) -> Path:
    """Write a bundle whose configuration itself names no code, with a module and a configuration that does."""
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "demo.py").write_text("raise SystemExit\n")
    (folder / "base.yaml").write_text(BASE)
    values: dict[str, Any] = load_config(folder / "c.yaml").values
    if extends is not None:
        values = {**values, "extends": extends, "model": {"name": "m"}}
        del values["run"]["callbacks"]
    assert imported_code(values) == []
    files = {name: folder / name for name in ("demo.py", "base.yaml")}
    manifest = Manifest(values, paths, tuple(hash_file(path, name) for name, path in files.items()))
    write_bundle(folder / "b.tar", manifest, files)
    return folder / "b.tar"


WAYS: dict[str, tuple[dict[str, str], str | None]] = {
    "class": ({"model.class": "demo:Model"}, None),
    "strategy": ({"strategy.kind": "demo:Strategy"}, None),
    "callbacks": ({}, "base.yaml"),
}


@pytest.mark.parametrize("way", WAYS)
def test_code_in_paths_or_in_an_extended_file_is_refused(tmp_path: Path, way: str):
    path = made(tmp_path, *WAYS[way])
    with raises_code("bundle.own_code", "demo:"):
        unbundle(path, folder=tmp_path / "new")
    assert not list(tmp_path.glob("*new*"))
    unbundle(path, folder=tmp_path / "new", run_code=True)


def model_folder(folder: Path) -> Path:
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text("{}")
    (folder / "m" / "model.safetensors").write_text("")
    (folder / "m" / "vocab.txt").write_text("")
    return folder / "m"


@pytest.mark.parametrize("place", ["model", "data"])
def test_a_link_to_a_file_elsewhere_is_not_packed(tmp_path: Path, place: str):
    model, private, data = model_folder(tmp_path), tmp_path / "private.json", tmp_path / "rows"
    private.write_text("sesame")
    data.mkdir()
    (data / "state.json").write_text("{}")
    ({"model": model, "data": data}[place] / "notes.json").symlink_to(private)
    (tmp_path / "c.yaml").write_text(CONFIG.replace("demo:sentences", str(data)).replace("name: m", f"name: {model}"))
    with raises_code("bundle.unsafe", "notes.json"):
        bundle(tmp_path / "c.yaml", out=tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()


def test_a_link_inside_its_folder_is_packed(tmp_path: Path):
    model = model_folder(tmp_path)
    (model / "tokenizer.json").symlink_to("config.json")
    (tmp_path / "c.yaml").write_text(CONFIG.replace("name: m", f"name: {model}"))
    contents = BundleContents()
    add_model(contents, load_config(tmp_path / "c.yaml"))
    assert sorted(contents.files) == [
        *("model/config.json", "model/model.safetensors", "model/tokenizer.json", "model/vocab.txt"),
    ]


def test_the_files_of_a_pattern_are_packed_by_name(tmp_path: Path):
    for name in ("part-2.csv", "part-1.csv"):
        (tmp_path / name).write_text("t,l\nx,a\n")
    (tmp_path / "c.yaml").write_text(CONFIG.replace("demo:sentences", str(tmp_path / "part-*.csv")))
    contents = BundleContents()
    add_data(contents, load_config(tmp_path / "c.yaml"), tmp_path)
    assert contents.paths == {"data.train": ["data/0000/part-1.csv", "data/0001/part-2.csv"]}
    assert contents.sources == {"data.train": str(tmp_path / "part-*.csv")}


SHARDS = ("model-1.safetensors", "model-2.safetensors")
INDEX = f'{{"weight_map": {{"a": "{SHARDS[0]}", "b": "{SHARDS[1]}"}}}}'
WHOLE = {"config.json": "{}", "tokenizer.json": "{}"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of org/model in an empty cache of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "c.yaml").write_text(CONFIG)
    top = tmp_path / "hub" / "models--org--model"
    (top / "refs").mkdir(parents=True)
    (top / "refs" / "main").write_text("0" * 40)
    (top / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return top / "snapshots" / ("0" * 40)


def packed(folder: Path, name: str, *more: str) -> list[str]:
    contents = BundleContents()
    add_model(contents, load_config(folder / "c.yaml", (f"model.name={name}", *more)))
    return sorted(contents.files)


@pytest.mark.parametrize("name", ["foo bar", "org/x--y", "org/absent"])
def test_a_model_that_is_not_in_the_cache_of_the_hub(tmp_path: Path, cache: Path, name: str):
    with raises_code("model.not_found", "hf download", key="model.name", name=name):
        packed(tmp_path, name)


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ({"tokenizer.json": "{}"}, ["config.json", "model.safetensors"]),
        (WHOLE, ["model.safetensors"]),
        ({**WHOLE, "model.safetensors.index.json": INDEX, SHARDS[0]: ""}, [SHARDS[1]]),
    ],
)
def test_a_model_with_a_part_of_its_files_in_the_cache(
    tmp_path: Path, cache: Path, files: dict[str, str], missing: list[str]
):
    for name, text in files.items():
        (cache / name).write_text(text)
    with raises_code("model.files_missing", "hf download org/model", key="model.name", files=missing):
        packed(tmp_path, "org/model")


def test_a_model_without_a_tokenizer(tmp_path: Path, cache: Path):
    (cache / "config.json").write_text("{}")
    (cache / "model.safetensors").write_text("")
    with raises_code("model.files_missing", "hf download org/model", key="model.name"):
        packed(tmp_path, "org/model")
    with raises_code("model.files_missing", "hf download org/model", key="model.tokenizer"):
        packed(tmp_path, "org/model", "model.tokenizer=org/model")


def test_a_cache_without_the_files_that_no_bundle_has_is_packed(tmp_path: Path, cache: Path):
    for name in (*WHOLE, "model.safetensors.index.json", *SHARDS):
        (cache / name).write_text(INDEX if "index" in name else WHOLE.get(name, ""))
    assert packed(tmp_path, "org/model") == [
        *("model/config.json", *(f"model/{name}" for name in SHARDS)),
        *("model/model.safetensors.index.json", "model/tokenizer.json"),
    ]
