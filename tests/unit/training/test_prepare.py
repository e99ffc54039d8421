"""Preparation before the processes connect: the log of the data, and options that exclude each other."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from raised import check_logged, raises_code
from tiny import tiny_masked_lm, tiny_model, tiny_tokenizer

from paratune.config.batch_size import ResolvedBatch
from paratune.config.load import load_config
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import TRAITS
from paratune.console import Display
from paratune.data.columns import Samples
from paratune.models import blocks
from paratune.models.attention import cuda
from paratune.models.task_model import find_blocks
from paratune.precision import POLICIES
from paratune.tasks import make_recipe
from paratune.tasks.protocol import TaskRecipe
from paratune.training import prepare

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
    store = SimpleNamespace(num_tokens=10, num_truncated=0, share_unknown=None)
    labels_N = np.asarray([0, 1] * len(texts) if labels is None else labels)
    return SimpleNamespace(
        name=name,
        samples=samples,
        num_rows=len(texts),
        num_samples=len(texts),
        num_dropped={},
        num_pseudo=0,
        store=store,
        labels=labels_N,
    )


def recipe(labels: Sequence[str]) -> TaskRecipe:
    return make_recipe(ClassificationTask(kind="classification", labels=list(labels)))


def test_texts_in_two_splits_are_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "paratune")
    prepare._log_splits(
        {"train": split("train", ["a", "b"]), "test": split("test", ["b ", "c", "d", "e"])}, recipe("ab"), unlabelled=()
    )
    check_logged(caplog, "data.overlap", "1 of 4 rows of test (25.0%) have a text that is also in train")


def test_splits_without_common_texts_cause_no_warning(caplog: pytest.LogCaptureFixture):
    prepare._log_splits(
        {"train": split("train", ["a", "b"]), "test": split("test", ["c"])}, recipe("ab"), unlabelled=()
    )
    assert "also in" not in caplog.text


def test_a_class_without_a_row_warns(caplog: pytest.LogCaptureFixture):
    splits = {"train": split("train", ["a", "b"], [0, 0]), "test": split("test", ["c", "d", "e"], [2, 0, 1])}
    prepare._log_splits(splits, recipe(["bad", "fair", "good"]), unlabelled=())
    check_logged(caplog, "data.class_absent", "train: no row has the label 'fair', 'good'")
    assert "data.overlap" not in [getattr(record, "code", None) for record in caplog.records]


def test_settings_that_the_strategy_excludes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "c.yaml").write_text(CONFIG)

    class Own:
        traits = replace(TRAITS["single"], excludes={"precision=fp32": "it is slow"})

        def __init__(self, device: object, precision: object, rank: int, world_size: int) -> None:
            pass

    monkeypatch.setattr(prepare, "strategy_class", lambda kind: Own)
    with raises_code("strategy.excluded", "precision: fp32"):
        prepare.prepare(load_config(tmp_path / "c.yaml"), SimpleNamespace(world_size=1), None, None)


def test_micro_batches_without_samples_are_refused():
    with raises_code("batch.empty_micro_batches", "1001"):
        prepare.check_micro_batches(ResolvedBatch(2002, 2, 1001), num_samples=160)
    prepare.check_micro_batches(ResolvedBatch(2000, 2, 1000), num_samples=160)
    prepare.check_micro_batches(ResolvedBatch(2002, 2, 1001), num_samples=1001)


def test_deterministic_sums_are_checked_before_training(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    loaded = load_config(tmp_path / "c.yaml", ["train.deterministic=false", "device=cpu", "strategy={kind: single}"])
    with raises_code("train.order_of_sums_on_cpu", "train.deterministic: false"):
        prepare.prepare(loaded, SimpleNamespace(world_size=1, rank=0, local_rank=0), None, None)


@pytest.mark.parametrize("is_deterministic", [True, False])
@pytest.mark.parametrize("uses_cudnn", [True, False])
def test_switches_of_attention_are_restored_after_a_run(is_deterministic: bool, uses_cudnn: bool):
    fields = dict.fromkeys(prepare.Prepared.__dataclass_fields__)
    train = SimpleNamespace(deterministic=is_deterministic)
    loaded = SimpleNamespace(config=SimpleNamespace(train=train))
    prepared = prepare.Prepared(**{**fields, "loaded": loaded, "precision": POLICIES["tf32"]})
    torch.backends.cuda.enable_cudnn_sdp(uses_cudnn)
    try:
        with suppress(KeyboardInterrupt), prepared.switched():
            assert torch.get_float32_matmul_precision() == "high"
            assert cuda._is_deterministic == is_deterministic
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            raise KeyboardInterrupt
        assert torch.get_float32_matmul_precision() == "highest"
        assert cuda._is_deterministic
        assert torch.backends.cuda.cudnn_sdp_enabled() == uses_cudnn
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_offload_on_a_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "c.yaml").write_text(CONFIG.replace('"own:Strategy"', "zero3, cpu_offload: true"))
    place = SimpleNamespace(world_size=1, local_rank=0)
    with raises_code("strategy.needs_accelerator", "CPU"):
        prepare.prepare(load_config(tmp_path / "c.yaml"), place, None, None)


@pytest.mark.parametrize(
    ("name", "capability", "archs", "found"),
    [
        # Source: PyTorch's RELEASE.md: since 2.11 only the build for CUDA 12.6 has kernels for a V100.
        ("Tesla V100", (7, 0), ["sm_75", "sm_80", "sm_90"], ("sm_70", "whl/cu126")),
        ("Tesla K80", (3, 7), ["sm_75", "sm_80", "sm_90"], ("sm_37", "another GPU")),
        ("NVIDIA L4", (8, 9), ["sm_75", "sm_80", "sm_90"], None),  # kernels for sm_80 run on all of 8.x
        ("AMD Instinct MI250", (9, 0), ["gfx90a"], None),
    ],
)
def test_a_gpu_without_kernels_is_named_with_the_build_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    capability: tuple[int, int],
    archs: list[str],
    found: tuple[str, ...] | None,
):
    values = {"is_available": True, "device_count": 1, "get_device_capability": capability, "get_device_name": name}
    for function, value in (values | {"get_arch_list": archs, "set_device": None}).items():
        monkeypatch.setattr(torch.cuda, function, lambda *_, value=value: value)
    place = SimpleNamespace(world_size=1, rank=0, local_rank=0)
    if found is None:
        assert prepare.choose_device("auto", place) == torch.device("cuda", 0)
        return
    with raises_code("device.no_kernels", name, *found):
        prepare.choose_device("auto", place)


def test_more_stages_than_layers_are_refused_before_the_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny_model(tmp_path / "model", num_layers=3)
    text = CONFIG.replace("{name: model}", f"{{name: {tmp_path / 'model'}}}")
    few = "strategy.too_many_stages"
    for strategy, values in (
        ("{kind: pipeline, stages: 4}", (few, "4 parts", "3 blocks", "strategy.stages")),
        ("{kind: pipeline, stages: 2, schedule: interleaved}", (few, "2 with 2 chunks", "4 parts")),
        ("{kind: pipeline, stages: 2, balance: [1, 3]}", ("strategy.cannot_cut", "strategy.balance", "4 blocks")),
    ):
        (tmp_path / "c.yaml").write_text(text.replace('{kind: "own:Strategy"}', strategy) + "device: cpu\n")
        monkeypatch.setattr(prepare, "_load", lambda *_: pytest.fail("the data was read"))
        with raises_code(*values):
            prepare.prepare(load_config(tmp_path / "c.yaml"), SimpleNamespace(world_size=4, rank=0), None, None)


def test_samples_of_a_task_with_windows_are_called_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.chdir(tmp_path)
    tiny_masked_lm(tmp_path / "model")
    (tmp_path / "a.txt").write_text("good film\nbad book\n")  # two documents in one window
    (tmp_path / "c.yaml").write_text(
        """\
        task: {kind: mlm}
        data: {train: a.txt, columns: {text: text}, cache_dir: cache}
        model: {name: model}
        train: {epochs: 1}
        batch: {global: 8}
        strategy: {kind: ddp}
        device: cpu
        """
    )
    stop, display = SimpleNamespace(came=lambda: False, raise_if_came=lambda doing: None), Display(speaks=False)
    pair = SimpleNamespace(world_size=2, rank=0, local_rank=0)
    with raises_code("data.too_few_rows", "data.train", 2):
        prepare.prepare(load_config(tmp_path / "c.yaml"), pair, stop, display)
    alone = SimpleNamespace(world_size=1, rank=0, local_rank=0)
    prepare.prepare(load_config(tmp_path / "c.yaml", ["strategy.kind=single"]), alone, stop, display)
    check_logged(caplog, "batch.above_rows", "8", "1")


def prepared_for(folder: Path, *, precision: str = "fp32", **train: object) -> SimpleNamespace:
    """What `initial_model` and `make_strategy` need of a `Prepared`."""
    tiny_model(folder / "model")
    settings = "".join(f", {key}: {value}" for key, value in train.items())
    lines = CONFIG.replace("{name: model}", f"{{name: {folder / 'model'}}}").replace(
        "epochs: 1", f"epochs: 1{settings}"
    )
    (folder / "c.yaml").write_text(lines + f"precision: {precision}\n")
    config = load_config(folder / "c.yaml").config
    return SimpleNamespace(
        config=config,
        recipe=make_recipe(config.task),
        tokenizer=tiny_tokenizer(),
        precision=POLICIES[precision],
        place=SimpleNamespace(rank=0, world_size=1),
        device=torch.device("cpu"),
        splits={"train": None},
        traits=TRAITS["single"],
    )


@pytest.mark.parametrize(("every", "expected"), [(None, [False, False]), (1, [True, True]), (2, [True, False])])
def test_activation_checkpointing_applies_to_the_configured_blocks(
    tmp_path: Path, every: int | None, expected: list[bool]
):
    options = {} if every is None else {"activation_checkpointing": every}
    model = prepare.initial_model(prepared_for(tmp_path, **options))
    again = [getattr(getattr(block.forward, "__func__", None), "func", None) for block in find_blocks(model)]
    assert [function is blocks._forward_twice for function in again] == expected


class OwnStrategy:
    def __init__(self, **arguments: object) -> None:
        pass


def test_fp16_is_refused_with_a_class_that_does_not_scale_the_loss(tmp_path: Path):
    prepared = prepared_for(tmp_path, precision="fp16")
    prepared.strategy_type = OwnStrategy
    with raises_code("precision.conflict", "fp16", "strategy.kind: own"):
        prepare.make_strategy(prepared)
    prepared.precision = POLICIES["bf16"]
    prepare.make_strategy(prepared)
