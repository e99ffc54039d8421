"""What is known before processes meet: what the log says of the data, and what options exclude."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paratune.config.load import load_config
from paratune.config.traits import TRAITS, traits_of
from paratune.data.columns import Samples
from paratune.errors import ConfigError
from paratune.train import prepare

CONFIG = """\
task: {kind: regression}
data: {train: a.csv, columns: {text: text, label: label}}
model: {name: model}
train: {epochs: 1}
batch: {global: 8}
strategy: {kind: "own:Strategy"}
"""


def split(name: str, texts: list[str], labels: list[int] | None = None) -> SimpleNamespace:
    """What the log needs of a split."""
    samples = Samples(texts, None, None, None, np.arange(len(texts)), None, {})
    store = SimpleNamespace(num_tokens=10, num_truncated=0)
    return SimpleNamespace(name=name, samples=samples, num_rows=len(texts), num_dropped={}, store=store, labels=labels)


def test_texts_that_two_splits_share_are_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "paratune")
    prepare._say_what_was_read({"train": split("train", ["a", "b"]), "test": split("test", ["b ", "c", "d", "e"])}, [])
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "1 of 4 rows of test (25.0%) have a text that is also in train" in warning


def test_splits_that_share_nothing_are_not_warned_of(caplog: pytest.LogCaptureFixture):
    prepare._say_what_was_read({"train": split("train", ["a", "b"]), "test": split("test", ["c"])}, [])
    assert "also in" not in caplog.text


def test_a_class_without_a_row_is_logged_as_data_says_it(caplog: pytest.LogCaptureFixture):
    names = ["bad", "fair", "good"]
    splits = {"train": split("train", ["a", "b"], [0, 0]), "test": split("test", ["c", "d", "e"], [2, 0, 1])}
    prepare._say_what_was_read(splits, names)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["train: no row has the label 'fair', 'good'"]


def test_what_an_own_strategy_excludes_is_refused(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    loaded = load_config(tmp_path / "c.yaml")
    fine = replace(TRAITS["single"], excludes={"precision=bf16": "no"})
    prepare.check_excludes(fine, loaded)
    excludes = {"precision=fp32": "it is slow", "train.max_grad_norm=1.0": "norms are not known"}
    with pytest.raises(ConfigError) as caught:
        prepare.check_excludes(replace(fine, excludes=excludes), loaded)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("c.yaml: 2 problems")
    assert lines[1] == "  precision: fp32 cannot be combined with strategy.kind: own:Strategy: it is slow"
    assert lines[2].startswith("  train.max_grad_norm: 1.0 cannot be combined")


def test_preparing_asks_what_the_strategy_excludes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "c.yaml").write_text(CONFIG)

    class Own:
        traits = replace(TRAITS["single"], excludes={"precision=fp32": "it is slow"})

        def __init__(self, device: object, precision: object, rank: int, world_size: int) -> None:
            pass

    monkeypatch.setattr(prepare, "strategy_class", lambda kind: Own)
    with pytest.raises(ConfigError, match="precision: fp32 cannot be combined"):
        prepare.prepare(load_config(tmp_path / "c.yaml"), SimpleNamespace(world_size=1), None, None)


@pytest.mark.parametrize("kind", ["zero2", "zero3", "hsdp"])
def test_offload_is_refused_where_there_is_nothing_to_offload_from(kind: str):
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    options = {"cpu_offload": True}
    traits = traits_of(kind, options)
    assert traits is not None
    with pytest.raises(
        ConfigError, match=r"strategy\.cpu_offload: true moves states from the memory of an accelerator"
    ):
        prepare.check_offload(traits, options, cpu)
    prepare.check_offload(traits, options, gpu)
    prepare.check_offload(TRAITS[kind], {"cpu_offload": False}, cpu)


def test_preparing_refuses_to_offload_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "c.yaml").write_text(CONFIG.replace('"own:Strategy"', "zero3, cpu_offload: true"))
    place = SimpleNamespace(world_size=1, local_rank=0)
    with pytest.raises(ConfigError, match="and this run computes on the CPU; leave it out"):
        prepare.prepare(load_config(tmp_path / "c.yaml"), place, None, None)
