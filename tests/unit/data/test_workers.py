"""Batches from loader workers equal those without workers, and a dead worker is reported."""

import pickle
import signal
from dataclasses import fields
from multiprocessing import forkserver
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from patience import PATIENCE_S
from raised import raises_code
from tiny_data import tiny_collator, tiny_masking

from paratune.base.stop_signals import STOP_SIGNALS
from paratune.batch import Batch
from paratune.data.loader import Collator, PackedCollator, TrainBatches, eval_batches
from paratune.data.token_store import StoreWriter, open_store
from paratune.data.workers import BatchesAhead, Workers, _Parcel


def train_batches(collator: Any, **options: Any) -> TrainBatches:
    return TrainBatches(collator, 3, 8, 4, 2, 0, 1, **options)


MADE = {
    "padded": train_batches(tiny_collator(27)),
    "equal shapes": train_batches(tiny_collator(27), equal_shapes=True),
    "bucketed": train_batches(tiny_collator(27), num_buckets=2),
    "packed, targets": train_batches(PackedCollator(tiny_collator(27, num_classes=0))),
    "masked words, packed": train_batches(PackedCollator(tiny_masking(27, whole_words=True))),
    "a rank without samples": TrainBatches(tiny_collator(9), 3, 8, 2, 2, 1, 2),
    "evaluation": eval_batches(PackedCollator(tiny_masking(27)), batch_size=3),
}
"""Four steps an epoch; the last one has fewer samples."""


def assert_same(batches: list[Batch], expected: list[Batch]) -> None:
    for ours, theirs in zip(batches, expected, strict=True):
        for field in fields(Batch):
            value, other = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(other, torch.Tensor):
                assert (value.dtype, value.shape) == (other.dtype, other.shape), field.name
                assert torch.equal(value, other), field.name
            else:
                assert value == other, field.name


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_parcels_return_the_same_batches(made: Any):
    for step in range(5):
        assert_same(_Parcel.pack(made.step(step)).batches(), made.step(step))


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_any_number_of_workers_makes_the_same_batches_from_any_step(num_workers: int):
    before = torch.random.get_rng_state()
    for name, made in MADE.items():
        last = len(made) if name == "evaluation" else 11
        ahead = BatchesAhead(made.step, range(2, last), Workers(num_workers))
        steps = list(ahead)
        assert len(steps) == last - 2
        for number, step in enumerate(steps, start=2):
            assert_same(step, made.step(number))
    # Dropout draws from these, after the batch is there.
    assert torch.equal(torch.random.get_rng_state(), before)


def test_closing_ends_the_workers_and_drops_their_batches():
    ahead = BatchesAhead(MADE["padded"].step, range(100), Workers(2, prefetch_factor=3))
    next(ahead)
    processes = [psutil.Process(first.pid) for first in ahead._processes]
    assert len(processes) == 2
    ahead.close()
    assert psutil.wait_procs(processes, PATIENCE_S)[1] == []
    assert list(ahead) == []


@pytest.fixture
def new_server() -> None:
    """Stop the fork server of an earlier test, which may have been started with the signals unblocked."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("new_server")
@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_workers_and_their_server_ignore_stop_signals(number: signal.Signals):
    ahead = BatchesAhead(MADE["padded"].step, range(20), Workers(2))
    next(ahead)
    workers = [psutil.Process(first.pid) for first in ahead._processes]
    for process in {workers[0].parent(), *workers}:
        process.send_signal(number)
    assert len(list(ahead)) == 19


def test_a_dead_worker_is_reported():
    ahead = BatchesAhead(MADE["padded"].step, range(10_000), Workers(2))
    next(ahead)
    victim = ahead._processes[1]
    victim.kill()
    with raises_code("data.worker_died", victim.pid, "2 of 2", "SIGKILL"):
        list(ahead)


@pytest.mark.parametrize("error", [EOFError("unexpected EOF"), ConnectionResetError(104, "reset")])
def test_a_dead_server_is_reported(monkeypatch: pytest.MonkeyPatch, error: Exception):
    """The server is killed between the request for a worker and its answer: the end of a pipe is read."""

    def read_signed(_: int) -> int:
        raise error

    monkeypatch.setattr(forkserver, "read_signed", read_signed)
    with raises_code("data.worker_died", "data.num_workers", type(error).__name__, num_workers=2):
        BatchesAhead(MADE["padded"].step, range(3), Workers(2))


def test_errors_in_a_worker_are_raised_here():
    too_small = TrainBatches(tiny_collator(27), 3, 8, 2, 1, 0, 1)
    ahead = BatchesAhead(too_small.step, range(3), Workers(1))
    with pytest.raises(ValueError, match="8 samples do not fit into 1 micro-batches of 2"):
        next(ahead)
    ahead.close()


def test_memory_mapped_arrays_are_sent_as_file_names(tmp_path):
    folder = tmp_path / "store"
    ids = [[number] * 500 for number in range(1, 41)]
    with StoreWriter(folder, "<u2", has_type_ids=False, token_values={"word_start": "<u1"}) as writer:
        writer.add(ids, None, [500] * 40, {"word_start": [[1] * 500] * 40})
        writer.finish(500, {"bounds": np.asfortranarray(np.arange(120, dtype=np.int32).reshape(40, 3))})
    store = open_store(folder)
    sent = pickle.dumps(store)
    assert len(sent) < 2000  # of 40,000 bytes of tokens
    received = pickle.loads(sent)
    assert isinstance(received.tokens, np.memmap)
    for name in ("tokens", "offsets", "full_lengths"):
        np.testing.assert_array_equal(getattr(received, name), getattr(store, name))
    np.testing.assert_array_equal(received.row_values["bounds"], np.arange(120).reshape(40, 3))
    np.testing.assert_array_equal(received.token_values["word_start"], np.ones(20_000))
    part = Collator(store, None, 0)(np.asarray([3]), 1.0)
    assert torch.equal(Collator(received, None, 0)(np.asarray([3]), 1.0).input_ids, part.input_ids)
