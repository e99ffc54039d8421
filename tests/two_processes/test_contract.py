"""The contract of strategies: every strategy gives the results of one process, in float64 with dropout off.

A new strategy gets a row in STRATEGIES. The tests use only the strategy protocol: they read gradients from the
optimizer's first moments, whose decay rate is 0 here.

Tolerance: float64 has 16 digits. Ranks and micro-batches only change the order of sums of some thousand terms, which
loses three or four digits; ten steps of AdamW, which divides small numbers by small numbers, lose some more.
"""

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from own_strategy import KIND, code, write_module
from ranks import GLOBAL_BATCH_SIZE, VIOLATIONS, Job, Meeting, Outcome, run_meetings, train

from paratune.checkpoint import CheckpointReader
from paratune.config.sections import BaseKind
from paratune.config.traits import strategy_traits
from paratune.strategies import strategy_class

"""The first test waits for all jobs of its part: about a minute on two idle cores, several on busy ones."""
RTOL = 1e-9
WORLD_SIZE = 2


CASES = {
    "classification": Job("classification"),
    # The last step of an epoch has one sample: the second rank has only filler. Also a distillation.
    "a rank without samples": Job(
        "a rank without samples", num_samples=25, accumulation=4, num_evaluated=3, packed=True, distils=True
    ),
    "regression, 4 micro-batches": Job("regression, 4 micro-batches", task="regression", accumulation=4, packed=True),
    "masked LM": Job("masked LM", task="mlm", packed=True),
    "whole words, 4 micro-batches": Job(
        "whole words, 4 micro-batches", task="mlm", accumulation=4, whole_words=True, layer_decay=0.5
    ),
}
"""Each task, optimizer and accumulation, but not all combinations; padded on one process, packed or padded on several.
Lengths are 3 to 20 tokens, so ranks pad differently."""


@dataclass(frozen=True)
class Row:
    """A strategy with its options."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    world_size: int = 2
    cases: tuple[str, ...] = tuple(CASES)

    @property
    def name(self) -> str:
        options = [f"{key}={value}" for key, value in self.options.items()]
        return "-".join([self.kind, *options, *([f"x{self.world_size}"] if self.world_size != WORLD_SIZE else [])])

    @property
    def is_slow(self) -> bool:
        """Whether its tests are slow ones: four processes share two cores, and others are close to a fast row."""
        return self.world_size > WORLD_SIZE or self.kind in ("deepspeed", "zero2") or "bucket_cap_mb" in self.options


_DROPOUT = Job("dropout", dropout=0.1, accumulation=2, until=2)
_OVERFLOW = Job("an overflow", scales_loss=True, overflow_at=1, accumulation=4, until=4)
_ADAPTER = Job("adapter", lora=True, accumulation=2, until=4)
HAS_PEFT = importlib.util.find_spec("peft") is not None
BASES: tuple[BaseKind, ...] = ("nf4", "int8") if HAS_PEFT and importlib.util.find_spec("bitsandbytes") else ()
SAVERS = {
    "dropout": _DROPOUT,
    "computed again": replace(_DROPOUT, activation_checkpointing=1),
    # The second of four steps; the fourth has too few samples.
    "an overflow": _OVERFLOW,
    "after an overflow": replace(_OVERFLOW, overflow_at=None, until=5, load_from="an overflow"),
    "an infinite loss": Job("an infinite loss", infinite_at=2, accumulation=4, until=4),
    "head alone": Job("head alone", scales_loss=True, freeze=True, until=2),
    **({"adapter": _ADAPTER} if HAS_PEFT else {}),
    **{name: replace(_ADAPTER, quantize_base=name) for name in BASES},
}
"""Cases of memory savers and low precisions; each once per strategy."""

FEW = ("regression, 4 micro-batches", "masked LM")
"""For a strategy that already has a row with more cases."""
MOST = ("a rank without samples", *FEW)
"""Each task, optimizer and accumulation once, for four processes, which share two cores."""

DEEPSPEED = [
    Row("deepspeed", {"stage": 0}, cases=FEW[:1]),
    Row("deepspeed", {"stage": 1}, cases=FEW),
    Row("deepspeed", {"stage": 2, "bucket_cap_mb": 0.05}),
    # By default all weights of the small models would stay gathered.
    Row("deepspeed", {"stage": 3, "param_persistence_threshold": 0}),
    Row("deepspeed", {"stage": 3}, cases=FEW[1:]),
]
ABSENT = () if importlib.util.find_spec("deepspeed") else ("deepspeed",)
"""Kinds whose package is not installed."""

EACH = {"reduce_each_micro_step": True}
STRATEGIES = [
    Row("ddp"),
    Row("ddp", {"bucket_cap_mb": 0.01, "find_unused_parameters": True}, cases=FEW),
    Row("zero1"),
    Row("zero2"),
    Row("zero3"),
    Row("hsdp", {"shard_size": 2}, world_size=4, cases=MOST),
    Row("zero2", EACH, cases=MOST),
    Row("zero3", EACH, cases=FEW),
    Row("hsdp", {"shard_size": 2, **EACH}, world_size=4, cases=FEW[:1]),
    Row("pipeline", {"stages": 2}),
    Row("pipeline", {"stages": 2, "schedule": "interleaved"}, cases=FEW),
    Row(KIND, {"pieces": 3}, cases=FEW),  # from docs/explanation/strategies.md
    Row("ddp", world_size=4, cases=FEW),
    Row("zero3", world_size=4, cases=FEW),
    Row("pipeline", {"stages": 2, "schedule": "gpipe", "balance": [3, 1]}, world_size=4, cases=FEW),
    Row("pipeline", {"stages": 4}, world_size=4, cases=FEW),
    *DEEPSPEED,
]
WHOLE = [row for row in STRATEGIES if len(row.cases) > len(FEW)]
"""The rows that are also trained with memory savers, and saved and loaded: each way to hold states once."""

CHAIN = [
    (Row("ddp"), 3),
    (Row("zero3", world_size=4), 5),
    (Row("pipeline", {"stages": 2}), 8),
    (Row("single", world_size=1), 10),
]
"""One training that changes its strategy: each strategy with the step at which the next one continues."""
CHAINED = ("masked LM",)


def _job(row: Row, case: str) -> Job:
    return replace(CASES[case], name=f"{row.name}, {case}", strategy=row.kind, options=row.options)


def _all_jobs(world_size: int, *, is_slow: bool) -> list[Job]:
    rows = [row for row in STRATEGIES if row.world_size == world_size and row.kind not in ABSENT]
    rows = [row for row in rows if row.is_slow == is_slow]
    jobs = [_job(row, case) for row in rows for case in row.cases]
    jobs += [_saver_job(row, saver) for row in rows for saver in SAVERS if _can(row, saver)]
    movers = [row for row in rows if row in WHOLE]
    jobs += [replace(_job(row, "classification"), name=f"{row.name}, saves", until=5) for row in movers]
    jobs += [replace(_job(row, "classification"), name=f"{row.name}, continues", load_from="alone") for row in movers]
    source = f"{_source(is_slow)}, saves"
    jobs += [
        replace(_job(row, "classification"), name=f"{row.name}, moved", load_from=source, until=5) for row in movers
    ]
    if world_size == WORLD_SIZE and not is_slow:
        jobs += [replace(_job(rows[0], "masked LM"), name=violation, violation=violation) for violation in VIOLATIONS]
    return jobs


def _source(is_slow: bool) -> str:
    """Return the row of a part whose shards, of two ranks, all its rows load."""
    return next(row.name for row in WHOLE if row.kind == ("zero2" if is_slow else "zero3"))


def _can(row: Row, saver: str) -> bool:
    if row not in WHOLE:  # the strategy of docs/explanation/strategies.md is not a module yet at this point
        return False
    job = SAVERS[saver]
    settings = {
        "precision=fp16": job.scales_loss,
        "train.freeze_encoder=true": job.freeze,
        "model.quantize_base!=null": job.quantize_base is not None,
    }
    excluded = strategy_class(row.kind).traits.excludes
    return not any(on and setting in excluded for setting, on in settings.items())


def _saver_job(row: Row, saver: str) -> Job:
    job = SAVERS[saver]
    source = job.load_from and f"{row.name}, {job.load_from}"
    return replace(job, name=f"{row.name}, {saver}", strategy=row.kind, options=row.options, load_from=source)


def _chain_jobs(case: str) -> list[Job]:
    sources = [None, *(f"{case}, link {number}" for number in range(len(CHAIN)))]
    return [
        replace(_job(row, case), name=f"{case}, link {number}", until=until, load_from=sources[number])
        for number, (row, until) in enumerate(CHAIN)
    ]


def _meetings(*, is_slow: bool) -> list[Meeting]:
    """Return the jobs of a part by world size; the jobs of the chain are slow, and in consecutive meetings."""
    if not is_slow:
        return [Meeting(WORLD_SIZE, _all_jobs(WORLD_SIZE, is_slow=False))]
    sizes = sorted({row.world_size for row in STRATEGIES})
    meetings = [Meeting(size, _all_jobs(size, is_slow=True)) for size in sizes]
    at = 0
    for (row, _), *jobs in zip(CHAIN, *map(_chain_jobs, CHAINED), strict=True):
        later = range(at, len(meetings))
        at = next((number for number in later if meetings[number].world_size == row.world_size), len(meetings))
        if at == len(meetings):
            meetings.append(Meeting(row.world_size, []))
        meetings[at].jobs.extend(jobs)
    return meetings


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all jobs of the part of this test once: the single process here, all ranks in the same few processes."""
    is_slow = request.node.get_closest_marker("slow") is not None
    root = tmp_path_factory.getbasetemp()
    root = root.parent if os.environ.get("PYTEST_XDIST_WORKER") else root
    finished = root / ("slow_contract" if is_slow else "contract")
    with FileLock(f"{finished}.lock"):
        if not finished.exists():
            unfinished = Path(f"{finished}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _run_all(unfinished, is_slow=is_slow)
            unfinished.rename(finished)
    return finished


def _run_all(unfinished: Path, *, is_slow: bool) -> None:
    alone = {
        "alone": replace(CASES["classification"], save_at=5),
        "without the step": replace(SAVERS["an overflow"], scales_loss=False, overflow_at=None, leave_out=1),
        "two steps": replace(SAVERS["an infinite loss"], infinite_at=None, until=2),
        "head alone": replace(SAVERS["head alone"], scales_loss=False),
        **{name: SAVERS[name] for name in ("adapter", *BASES) if name in SAVERS},
    }
    for name, case in {**CASES, **alone}.items():
        (unfinished / name).mkdir(parents=True)
        train(case, 0, 1, unfinished / name)
    sys.path.append(str(write_module(unfinished / "own")))  # spawned processes inherit the path
    try:
        run_meetings(unfinished, _meetings(is_slow=is_slow))
    finally:
        sys.path.pop()


def losses(folder: Path, name: str, rank: int = 0) -> list[float]:
    return Outcome(folder / name).rank(rank)["losses"]


def _param(row: Row, *case: str) -> Any:
    marks = [pytest.mark.skipif(row.kind in ABSENT, reason=f"the extra {row.kind} is not installed")]
    marks += [pytest.mark.slow] if row.is_slow else []
    return pytest.param(row, *case, marks=marks, id="-".join([row.name, *case]))


def _each(pairs: list[tuple[Row, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("row", "case"), [_param(row, case) for row, case in pairs])


every_case = _each([(row, case) for row in STRATEGIES for case in row.cases])


@every_case
def test_losses_and_norms_are_those_of_one_process(folder: Path, row: Row, case: str):
    alone, together = Outcome(folder / case).rank(), Outcome(folder / f"{row.name}, {case}").rank()
    assert len(alone["losses"]) == CASES[case].num_steps
    assert len(set(alone["losses"])) == CASES[case].num_steps
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=RTOL)
    np.testing.assert_allclose(together["norms"], alone["norms"], rtol=RTOL)
    # Another rank reports the same.
    assert Outcome(folder / f"{row.name}, {case}").rank(1)["losses"] == together["losses"]


@every_case
def test_the_first_gradients_are_those_of_one_process(folder: Path, row: Row, case: str):
    alone = Outcome(folder / case).tensors("first")
    together = Outcome(folder / f"{row.name}, {case}").tensors("first")
    gradients = [key for key in alone if key.endswith("/exp_avg")]
    assert len(gradients) > 30
    for key in gradients:
        torch.testing.assert_close(together[key], alone[key], rtol=RTOL, atol=1e-13, msg=key)
    assert sum(float(alone[key].abs().sum()) > 1e-3 for key in gradients) > 20


@every_case
def test_the_trained_weights_are_those_of_one_process(folder: Path, row: Row, case: str):
    alone = Outcome(folder / case).tensors("last")
    together = Outcome(folder / f"{row.name}, {case}").tensors("last")
    assert sorted(together) == sorted(alone)
    for key, value in alone.items():
        if key.startswith("model/"):
            torch.testing.assert_close(together[key], value, rtol=1e-6, atol=1e-8, msg=key)


def _rows_with(saver: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [_param(row) for row in STRATEGIES if _can(row, saver)])


def _assert_same_weights(together: dict[str, torch.Tensor], alone: dict[str, torch.Tensor]) -> None:
    for key in (key for key in alone if key.startswith("model/")):
        torch.testing.assert_close(together[key], alone[key], rtol=1e-6, atol=1e-8, msg=key)


@_rows_with("computed again")
def test_activation_checkpointing_changes_nothing_with_dropout_on(folder: Path, row: Row):
    kept, again = (Outcome(folder / f"{row.name}, {saver}") for saver in ("dropout", "computed again"))
    assert len(set(kept.rank()["losses"])) == 2
    np.testing.assert_allclose(again.rank()["losses"], kept.rank()["losses"], rtol=1e-14)
    np.testing.assert_allclose(again.rank()["norms"], kept.rank()["norms"], rtol=1e-14)
    first, second = kept.tensors("first"), again.tensors("first")
    assert sorted(second) == sorted(first)
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, rtol=1e-12, atol=1e-15, msg=key)
    # Dropout was active: without it the first loss differs.
    assert abs(kept.rank()["losses"][0] - losses(folder, "classification")[0]) > 1e-6


@_rows_with("an overflow")
def test_all_ranks_skip_a_step_when_one_overflows_and_the_scale_changes_nothing_else(folder: Path, row: Row):
    alone, together = Outcome(folder / "without the step"), Outcome(folder / f"{row.name}, an overflow")
    taken = [0, 2, 3]
    for rank in range(row.world_size):
        outcome = together.rank(rank)
        assert outcome["norms"][1] == float("inf")
        assert 1e295 < outcome["losses"][1] < 1e301, "a number, unlike the norm"
        np.testing.assert_allclose([outcome["losses"][step] for step in taken], alone.rank()["losses"], rtol=RTOL)
        np.testing.assert_allclose([outcome["norms"][step] for step in taken], alone.rank()["norms"], rtol=RTOL)
    last = together.tensors("last")
    # From 2**16 at the first step, halved by the second; the third and the fourth did not overflow.
    assert last["strategy/loss_scale"] == 32768
    assert last["strategy/loss_scale_good_steps"] == 2
    _assert_same_weights(last, alone.tensors("last"))
    # A run that resumes from there keeps the scale, and its fifth step is the third one without overflow.
    after = Outcome(folder / f"{row.name}, after an overflow").tensors("last")
    assert after["strategy/loss_scale"] == 32768
    assert after["strategy/loss_scale_good_steps"] == 3


@_rows_with("an infinite loss")
def test_no_rank_updates_after_a_loss_that_is_infinite_on_one(folder: Path, row: Row):
    together = Outcome(folder / f"{row.name}, an infinite loss")
    for rank in range(row.world_size):
        outcome = together.rank(rank)
        assert np.isfinite([*outcome["losses"], *outcome["norms"]]).reshape(2, 4)[:, :2].all()
        assert not np.isfinite([outcome["losses"][2], outcome["norms"][2]]).any()
        assert np.isfinite(outcome["losses"][3]), "the next step, with weights that have not changed"
    _assert_same_weights(together.tensors("last"), Outcome(folder / "two steps").tensors("last"))


@_rows_with("head alone")
def test_the_head_can_be_trained_alone(folder: Path, row: Row):
    alone, together = Outcome(folder / "head alone"), Outcome(folder / f"{row.name}, head alone")
    np.testing.assert_allclose(together.rank()["losses"], alone.rank()["losses"], rtol=RTOL)
    np.testing.assert_allclose(together.rank()["norms"], alone.rank()["norms"], rtol=RTOL)
    last = together.tensors("last")
    _assert_same_weights(last, alone.tensors("last"))
    trained = {key.rpartition("/")[0].removeprefix("optimizer/") for key in last if key.startswith("optimizer/")}
    assert trained == {"hf.classifier.weight", "hf.classifier.bias"}, "no states of frozen weights"


@_rows_with("adapter")
def test_an_adapter_is_trained_as_by_one_process(folder: Path, row: Row):
    alone, together = Outcome(folder / "adapter"), Outcome(folder / f"{row.name}, adapter")
    np.testing.assert_allclose(together.rank()["losses"], alone.rank()["losses"], rtol=RTOL)
    last = together.tensors("last")
    _assert_same_weights(last, alone.tensors("last"))
    trained = {key.rpartition("/")[0].removeprefix("optimizer/") for key in last if key.startswith("optimizer/")}
    assert {name for name in trained if ".lora_" not in name} == {"hf.classifier.weight", "hf.classifier.bias"}
    assert len(trained) == 2 + 4 * 2 * 2  # the head; two matrices for query and value of four blocks


@pytest.mark.parametrize("base", BASES)
@_rows_with(BASES[0] if BASES else "dropout")
def test_a_quantized_base_is_trained_as_by_one_process(folder: Path, row: Row, base: str):
    alone, together = Outcome(folder / base), Outcome(folder / f"{row.name}, {base}")
    np.testing.assert_allclose(together.rank()["losses"], alone.rank()["losses"], rtol=RTOL)
    last = together.tensors("last")
    _assert_same_weights(last, alone.tensors("last"))
    plain = Outcome(folder / "adapter").rank()["losses"]
    assert not np.allclose(alone.rank()["losses"], plain, rtol=RTOL), "its weights are rounded"
    codes = {key: tensor for key, tensor in last.items() if tensor.dtype in (torch.uint8, torch.int8)}
    assert len(codes) == 2 * 6 * 4  # codes and scales of six layers in four blocks
    first = together.tensors("first")
    assert all(torch.equal(tensor, first[key]) for key, tensor in codes.items())


@every_case
def test_every_sample_is_trained_once_per_epoch_and_ranks_share_each_step(folder: Path, row: Row, case: str):
    alone = Outcome(folder / case).rank()["indices"]
    outcomes = [Outcome(folder / f"{row.name}, {case}").rank(rank) for rank in range(row.world_size)]
    # The ranks of a pipeline see the same samples.
    parts = {outcome["data_rank"]: outcome["indices"] for outcome in outcomes}
    for step, together in enumerate(zip(*parts.values(), strict=True)):
        assert sorted(chain(*together)) == sorted(alone[step])
    per_epoch = -(-CASES[case].num_samples // GLOBAL_BATCH_SIZE)
    assert sorted(chain(*alone[:per_epoch])) == list(range(CASES[case].num_samples))


@every_case
def test_an_evaluation_counts_every_sample_once_and_gives_the_scores_of_one_process(folder: Path, row: Row, case: str):
    alone = Outcome(folder / case).rank()["evaluation"]
    assert len(alone["outputs"]) == CASES[case].num_evaluated
    for rank in range(row.world_size):
        together = Outcome(folder / f"{row.name}, {case}").rank(rank)["evaluation"]
        np.testing.assert_allclose(together["outputs"], alone["outputs"], rtol=1e-6, atol=1e-8)
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-7)


@pytest.mark.parametrize("row", [_param(row) for row in WHOLE])
def test_checkpoints_load_from_one_process_into_several_and_back(folder: Path, row: Row, tmp_path: Path):
    whole = losses(folder, "classification")
    np.testing.assert_allclose(losses(folder, f"{row.name}, continues"), whole[5:], rtol=RTOL)
    saved = folder / f"{row.name}, saves"
    shutil.copytree(saved, tmp_path / "saved")
    back = tmp_path / "back"
    back.mkdir()
    train(replace(CASES["classification"], load_from="saved"), 0, 1, back)
    np.testing.assert_allclose(losses(tmp_path, "back"), whole[5:], rtol=RTOL)


def _writes_shards(row: Row) -> bool:
    traits = strategy_traits(row.kind, row.options)
    return traits is not None and traits.writes_shards


@pytest.mark.parametrize("row", [_param(row) for row in WHOLE if _writes_shards(row)])
def test_shards_have_the_bits_of_a_checkpoint_of_one_writer(folder: Path, row: Row):
    whole, sharded = (CheckpointReader(folder / f"{row.name}, saves" / name) for name in ("checkpoint", "sharded"))
    names = whole.keys()
    assert sorted(sharded.keys()) == sorted(names)
    assert sum(key.startswith("optimizer/") for key in names) > 60
    for key in names:
        value, joined = whole.read(key), sharded.read(key)
        assert joined.dtype == value.dtype
        assert torch.equal(joined, value), key
    ranks = {path.name.split(".")[1] for path in sharded.folder.glob("tensors.*")}
    assert len(ranks) > 1, "several ranks have written"


@pytest.mark.parametrize("row", [_param(row) for row in WHOLE])
def test_shards_load_into_any_strategy_and_number_of_processes_bit_for_bit(folder: Path, row: Row):
    whole = CheckpointReader(folder / f"{_source(row.is_slow)}, saves" / "checkpoint")
    loaded = Outcome(folder / f"{row.name}, moved").tensors("last")
    assert sorted(loaded) == sorted(whole.keys())
    for key, value in loaded.items():
        assert torch.equal(value, whole.read(key)), key


@pytest.mark.slow
@pytest.mark.parametrize("case", CHAINED)
def test_a_training_can_change_its_strategy_and_world_size(folder: Path, case: str):
    links = [f"{case}, link {number}" for number in range(len(CHAIN))]
    moved = list(chain(*(losses(folder, link) for link in links)))
    np.testing.assert_allclose(moved, losses(folder, case), rtol=RTOL)
    alone, last = Outcome(folder / case).tensors("last"), Outcome(folder / links[-1]).tensors("last")
    assert sorted(last) == sorted(alone)
    assert {key.rpartition("/")[2] for key in last if key.startswith("optimizer/")} >= {"exp_avg", "exp_avg_sq", "step"}
    for key, value in alone.items():
        torch.testing.assert_close(last[key], value, rtol=1e-6, atol=1e-8, msg=key)


def _is_caught_at(folder: Path, violation: str, step: int) -> None:
    """Assert that a run with an error fails the contract, for the first time at `step`."""
    whole, spoilt = losses(folder, "masked LM"), losses(folder, violation)
    np.testing.assert_allclose(spoilt[:step], whole[:step], rtol=RTOL)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(spoilt[step : step + 1], whole[step : step + 1], rtol=RTOL)


def test_a_loss_that_is_averaged_rank_by_rank_is_caught(folder: Path):
    # The ranks have different numbers of labelled tokens in nearly every step.
    _is_caught_at(folder, "mean of means", step=0)


def test_another_order_of_the_data_is_caught(folder: Path):
    _is_caught_at(folder, "order", step=0)


def test_a_doubled_global_batch_is_caught(folder: Path):
    _is_caught_at(folder, "doubled batch", step=0)


def test_a_lost_tie_is_caught(folder: Path):
    # Both copies are equal at first, and the learning rate of the first step is 0, so two losses are equal. The
    # first gradient differs.
    _is_caught_at(folder, "lost tie", step=2)
    alone, spoilt = Outcome(folder / "masked LM").tensors("first"), Outcome(folder / "lost tie").tensors("first")
    (key,) = (key for key in alone if key.endswith("word_embeddings.weight/exp_avg"))
    other = key.replace("bert.embeddings.word_embeddings", "cls.predictions.decoder")
    assert float((spoilt[key] - alone[key]).abs().max()) > 1e-3
    torch.testing.assert_close(spoilt[key] + spoilt[other], alone[key], rtol=RTOL, atol=1e-13)


def test_values_are_combined_over_ranks(folder: Path):
    for rank in range(WORLD_SIZE):
        outcome = Outcome(folder / "reduce").rank(rank)
        assert outcome["sum"] == [3.0, 10.0]
        assert outcome["max"] == [2.0, 10.0]
        assert outcome["min"] == [1.0, 0.0]
        assert outcome["concat"] == [1.0, 0.0, 2.0, 10.0]
        assert outcome["left alone"] == [1.0 + rank, 10.0 * rank]
        assert outcome["rows"] == [[0, 1], [2, 3], [4, 5], [100, 101]]
        assert outcome["one is empty"] == [[100, 101]]
        assert (outcome["no rank stops"], outcome["one stops"]) == (False, True)
        assert outcome["one stops, called twice"] == [False, True, False]


def test_the_strategy_of_the_documentation_is_short():
    assert len(code().splitlines()) < 80
