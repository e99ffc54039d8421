"""Runs models without data: on plain meta tensors if possible, else on PyTorch's fake tensors."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from paratune.errors import ParatuneError

T = TypeVar("T")
# Fake tensors log the traceback of each failure; `plan` reports the failure in words, and goes on with a formula.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
_IS_TRACING = "is_tracing"
"""Name of a function that transformers calls before it reads the values of a mask; it is true for fake tensors, but not
for meta tensors."""


def on_meta(run: Callable[[], T]) -> T:
    """Return the result of `run`, which must create its tensors itself and may be called twice.

    Plain meta tensors take half the time of fake tensors for the same operations. Fake tensors also keep values from
    which they were created, and work with tensors of other devices: they are tried if plain meta tensors fail.

    Raises:
        Exception: The model can run on neither.
    """
    with torch.device("meta"):
        try:
            with _meta_counts_as_tracing():
                return run()
        except ParatuneError:
            raise
        except Exception:  # the model's code may raise anything for tensors without values
            pass
        with FakeTensorMode(allow_non_fake_inputs=True):
            return run()


@contextmanager
def _meta_counts_as_tracing() -> Iterator[None]:
    """Make transformers treat meta tensors as traced tensors, so that it does not read their values."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if name.startswith("transformers.")]
    originals = [(module, vars(module)[_IS_TRACING]) for _, module in modules if _IS_TRACING in vars(module)]
    for module, original in originals:
        setattr(module, _IS_TRACING, _or_is_meta(original))
    try:
        yield
    finally:
        for module, original in originals:
            setattr(module, _IS_TRACING, original)


def _or_is_meta(original: Callable[..., bool]) -> Callable[..., bool]:
    def is_tracing(tensor: Any = None) -> bool:
        return (isinstance(tensor, Tensor) and tensor.is_meta) or original(tensor)

    return is_tracing
