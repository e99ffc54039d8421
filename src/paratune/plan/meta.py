"""Runs models without data: on plain tensors of the meta device where that is possible, else on PyTorch's fake ones."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from paratune.errors import ParatuneError

T = TypeVar("T")
_TRACES = "is_tracing"
"""What transformers asks before it looks at the values of a mask: true of fake tensors, not of meta ones."""


def on_meta(run: Callable[[], T]) -> T:
    """Return what `run` returns, which makes its tensors inside and does the same each time.

    Plain tensors of the meta device take half the time of fake ones, for the same operations. Fake ones know besides
    which number they were made of, and meet tensors of other devices: they are tried where plain ones do not do.

    Raises:
        Exception: Whatever a model raises that can do with neither.
    """
    with torch.device("meta"):
        try:
            with _told_to_transformers():
                return run()
        except ParatuneError:
            raise
        except Exception:  # whatever code of a model makes of tensors without numbers
            pass
        with FakeTensorMode(allow_non_fake_inputs=True):
            return run()


@contextmanager
def _told_to_transformers() -> Iterator[None]:
    """Let transformers treat meta tensors as fake ones: it does not ask them for values."""
    found = [(name, module) for name, module in list(sys.modules.items()) if name.startswith("transformers.")]
    before = [(module, vars(module)[_TRACES]) for _, module in found if _TRACES in vars(module)]
    for module, plain in before:
        setattr(module, _TRACES, _told(plain))
    try:
        yield
    finally:
        for module, plain in before:
            setattr(module, _TRACES, plain)


def _told(plain: Callable[..., bool]) -> Callable[..., bool]:
    def is_tracing(tensor: Any = None) -> bool:
        return (isinstance(tensor, Tensor) and tensor.is_meta) or plain(tensor)

    return is_tracing
