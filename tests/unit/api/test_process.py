"""One call at a time uses the state of the process, which is as before afterwards."""

import io
import logging
import os
import random
import signal
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import logging as hf_logging

from paratune.api.process import process_as_before
from paratune.console import set_up_logging


def state() -> dict[str, Any]:
    logger = logging.getLogger("paratune")
    return {
        "streams": (sys.stdout, sys.stderr),
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "warnings": warnings.filters[:],
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "log": (logger.handlers[:], logger.level, logger.propagate),
        "transformers": (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()),
    }


def change_all() -> None:
    set_up_logging(speaks=True)
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    random.seed(987_654)
    np.random.seed(987_654)
    torch.manual_seed(987_654)
    warnings.filterwarnings("ignore", "of this test only")
    os.environ["PARATUNE_TEST_NEW"] = "1"
    os.environ["HOME"] = "/nowhere"
    del os.environ["PATH"]
    signal.signal(signal.SIGTERM, lambda *_: None)
    hf_logging.set_verbosity_debug()
    hf_logging.disable_progress_bar()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_state_is_restored(error: type[BaseException] | None):
    before = state()

    def call() -> None:
        with process_as_before():
            change_all()
            assert all(state()[name] != value for name, value in before.items())
            if error is not None:
                raise error

    if error is None:
        call()
    else:
        with pytest.raises(error):
            call()
    assert state() == before


def test_a_second_thread_waits_and_the_same_thread_does_not():
    order, inside, leave = [], threading.Event(), threading.Event()

    def first() -> None:
        with process_as_before(), process_as_before():
            inside.set()
            leave.wait(10)
            order.append("first")

    def second() -> None:
        with process_as_before():
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert order == ["first", "second"]


def test_an_interrupt_ends_the_waiting():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # test processes of xdist ignore the signal
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with process_as_before():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt), process_as_before():
            pytest.fail("two calls at a time")
    finally:
        signal.signal(signal.SIGINT, before)
        leave.set()
    thread.join(10)
    with process_as_before():  # it can be called afterwards
        pass


def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks():
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with process_as_before():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about threads beside a fork
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        with process_as_before():
            os._exit(0)
    leave.set()
    thread.join(10)
    assert os.waitpid(child, 0)[1] == 0
