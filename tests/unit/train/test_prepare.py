"""What is known before processes meet: what the log says of the data, and what options exclude."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from paratune.data.columns import Samples
from paratune.train import prepare


def split(name: str, texts: list[str]) -> SimpleNamespace:
    """What the log needs of a split."""
    samples = Samples(texts, None, None, None, np.arange(len(texts)), None, {})
    store = SimpleNamespace(num_tokens=10, num_truncated=0)
    return SimpleNamespace(name=name, samples=samples, num_rows=len(texts), num_dropped={}, store=store)


def test_texts_that_two_splits_share_are_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "paratune")
    prepare._say_what_was_read({"train": split("train", ["a", "b"]), "test": split("test", ["b ", "c", "d", "e"])})
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "1 of 4 rows of test (25.0%) have a text that is also in train" in warning


def test_splits_that_share_nothing_are_not_warned_of(caplog: pytest.LogCaptureFixture):
    prepare._say_what_was_read({"train": split("train", ["a", "b"]), "test": split("test", ["c"])})
    assert "also in" not in caplog.text
