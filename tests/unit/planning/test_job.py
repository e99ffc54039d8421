"""The micro-batches of a job, and packed rows in a small copy of a model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raised import raises_code
from tiny import tiny_config
from transformers import AutoConfig

from paratune.api.plan_inputs import make_job as make_planned
from paratune.config.load import load_config
from paratune.config.task_sections import ClassificationTask, MaskedLMTask, QuestionAnsweringTask
from paratune.config.traits import strategy_traits
from paratune.models.packed import BatchLayout, choose_batch_layout
from paratune.models.task_model import PackedEntry
from paratune.planning.job import PlannedJob, assumed_lengths, find_packing, lengths_of_rows
from paratune.planning.states import PredictionSetup
from paratune.precision import POLICIES

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart" / "ddp.yaml"
CLASSES = ClassificationTask(kind="classification", labels=["no", "yes"])
SWAG = CONFIG.parents[1] / "finetune" / "swag.yaml"
ROWS = [10] * 60 + [20] * 30 + [100] * 10


def make_job(
    *, entry: PackedEntry | None = None, overrides: tuple[str, ...] = (), max_length: int | None = None
) -> PlannedJob:
    lengths = lengths_of_rows(np.array(ROWS)) if max_length is None else assumed_lengths(max_length)
    config = load_config(CONFIG, overrides).config
    num_samples = len(ROWS) if max_length is None else None
    return PlannedJob(config, tiny_config(), lengths, num_samples, entry, None if entry else "it was not asked")


def make_setup(job: PlannedJob, *, ranks: int = 1, size: int = 8, accum: int = 1, **changed: Any) -> PredictionSetup:
    traits = strategy_traits("ddp", {})
    assert traits is not None
    setup = PredictionSetup(job.config.strategy, traits, POLICIES["fp32"], ranks, ranks, size, accum)
    return replace(setup, **changed)


def layout_of(job: PlannedJob, setup: PredictionSetup, *, is_cuda: bool) -> BatchLayout:
    wanted, why = job.config.batch.layout, job.why_padded
    return choose_batch_layout(wanted, setup.traits, entry=job.entry, why_padded=why, on_cpu=not is_cuda)


def test_steps_are_counted_as_the_training_does() -> None:
    job = make_job(overrides=("train.epochs=2.5",))
    assert job.num_steps(32) == 10  # 100 rows: three whole batches and one of four in each epoch
    capped = make_job(overrides=("train.epochs=null", "train.max_steps=7"))
    assert capped.num_steps(32) == 7


def test_steps_of_an_epoch_are_unknown_without_data() -> None:
    job = make_job(max_length=64, overrides=("train.epochs=2",))
    assert job.num_steps(32) is None


def test_packed_rows_are_counted_by_their_tokens() -> None:
    job = make_job(entry=PackedEntry())
    setup = make_setup(job)
    layout = layout_of(job, setup, is_cuda=False)
    assert layout.kind == "packed"
    assert job.mean_length(setup, layout) == 22.0  # (60 * 10 + 30 * 20 + 10 * 100) / 100
    # The longest 16 of 100 rows have (10 * 100 + 6 * 20) / 16 = 70 tokens on average.
    assert job.shape(make_setup(job, size=16), layout, largest=True).num_tokens == 16 * 70
    assert job.shape(setup, layout, largest=False).lengths == (22,) * 8
    # On a GPU 176 tokens are few numbers' own, and 1,120 are rounded up to 1,152 = 9 x 128.
    on_gpu = layout_of(job, setup, is_cuda=True)
    assert job.shape(setup, on_gpu, largest=False).lengths == (22,) * 8
    assert job.shape(make_setup(job, size=16), on_gpu, largest=True).num_tokens == 16 * 72


def test_padded_rows_are_as_long_as_the_longest() -> None:
    job = make_job(overrides=("batch.layout=padded",))
    setup = make_setup(job, size=4)
    layout = layout_of(job, setup, is_cuda=True)
    assert layout.kind == "padded"
    assert max(job.shape(setup, layout, largest=True).lengths) == 100
    draws = np.random.default_rng(0).permuted(np.tile(ROWS, (4000, 1)), axis=1)[:, :4].max(axis=1)
    assert job.mean_length(setup, layout) == pytest.approx(draws.mean(), rel=0.03)


def test_on_a_cpu_a_sorted_micro_batch_is_computed_in_four_parts() -> None:
    job = make_job()
    setup = make_setup(job, size=8, accum=2)
    on_cpu, on_gpu = (layout_of(job, setup, is_cuda=is_cuda) for is_cuda in (False, True))
    assert on_cpu.kind == on_gpu.kind == "bucketed"
    passes = job.passes(setup, on_cpu)
    assert (passes.micro_batch_size, passes.grad_accum_steps) == (2, 8)
    assert job.passes(setup, on_gpu) == setup
    assert len(job.shape(setup, on_cpu, largest=True).lengths) == 2
    assert job.mean_length(setup, on_cpu) < job.mean_length(setup, on_gpu)


KINDS = {
    "bert": PackedEntry(0, "first", shortens=True),
    "roberta": PackedEntry(2, "first", shortens=True),
    "distilbert": PackedEntry(0, "first"),
    "albert": PackedEntry(0, "first"),
    "modernbert": PackedEntry(0, "first"),
    "deberta-v2": None,
    "gpt2": None,
}
"""Of a classification, what trying whole models gives (docs/explanation/batches.md)."""


@pytest.mark.parametrize("kind", KINDS)
def test_packing_is_tried_on_a_small_copy(kind: str) -> None:
    sizes = {"pad_token_id": 1, "max_position_embeddings": 514} if kind == "roberta" else {}
    hf_config = AutoConfig.for_model(kind, **sizes)
    before = hf_config.to_dict()
    entry, why = find_packing(hf_config, CLASSES)
    assert entry == KINDS[kind]
    assert (why is None) == (entry is not None)
    assert hf_config.to_dict() == before


@pytest.mark.parametrize(
    "task", [MaskedLMTask(kind="mlm"), QuestionAnsweringTask(kind="qa")], ids=lambda task: task.kind
)
def test_tokens_of_other_tasks_pack_too(task: Any) -> None:
    assert find_packing(AutoConfig.for_model("bert"), task) == (PackedEntry(0, "first"), None)


def test_rows_of_a_micro_batch_are_the_sequences_of_its_samples() -> None:
    job = replace(make_job(entry=PackedEntry()), sequences=lengths_of_rows(np.array([2] * 50 + [4] * 50)))
    setup = make_setup(job)
    layout = layout_of(job, setup, is_cuda=False)
    # 8 samples have 8 * 3 sequences on average, and at most 8 * 4.
    assert len(job.shape(setup, layout, largest=False).lengths) == 24
    assert len(job.shape(setup, layout, largest=True).lengths) == 32


def test_the_longest_windows_of_separate_documents_have_the_tokens_of_windows() -> None:
    job = make_job(entry=PackedEntry())
    pieces, counts = [20] * 6 + [120] + [60] * 2, [6, 1, 2]
    job = replace(job, lengths=lengths_of_rows(np.array(pieces)), sequences=lengths_of_rows(np.array(counts)))
    setup = make_setup(job, size=2)
    layout = layout_of(job, setup, is_cuda=False)
    # The two windows with most pieces have 8. The longest 8 pieces have 120 + 2 * 60 + 5 * 20 tokens, windows 2 * 120.
    assert job.shape(setup, layout, largest=True).lengths == (43,) * 8
    job = replace(job, samples=lengths_of_rows(np.array([120] * 3)))
    assert job.shape(setup, layout, largest=True).lengths == (30,) * 8
    # Padded, each of them is as long as the longest piece.
    padded = replace(layout, kind="padded")
    assert job.shape(setup, padded, largest=True).num_tokens == 8 * 120


@pytest.mark.parametrize(
    ("file", "overrides", "expected"),
    [
        (SWAG, [], 4),
        (SWAG, ["data.columns.choices=options"], None),
        (CONFIG, ["task.windows.max_windows=3"], None),
        (CONFIG, [], 1),
    ],
)
def test_without_data_only_columns_tell_the_number_of_sequences(
    file: Path, overrides: list[str], expected: int | None
) -> None:
    loaded = load_config(file, ["model.name=demo:minilm", *overrides])
    if expected is None:
        with raises_code("plan.not_traced", option="--max-length"):
            make_planned(loaded, max_length=16)
    else:
        assert make_planned(loaded, max_length=16).sequences.longest == expected
