"""Hooks where the Trainer has no callback: around the batches of a data loader, and around the backward pass."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from paratune.engine.phases import PhaseClock


def time_loader(loader: DataLoader[Any], clock: PhaseClock, on_batch: Callable[[Any], None]) -> Callable[[], None]:
    """Time each `next` of the loader as `get_batch`, and call `on_batch` with each batch; return how this ends.

    The loader gets a subclass of its class: `iter(loader)` ignores an `__iter__` of the instance.
    """
    base = type(loader)

    def iterate(self: Any) -> Iterator[Any]:
        with clock("get_batch"):
            batches = iter(base.__iter__(self))
        while True:
            with clock("get_batch"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            on_batch(batch)
            yield batch

    timed = type(base.__name__, (base,), {"__iter__": iterate, "__module__": base.__module__})
    # The loaders of accelerate hide `__class__` behind a property without a setter.
    set_class = object.__dict__["__class__"].__set__
    set_class(loader, timed)
    return lambda: set_class(loader, base)


class BackwardListener(Protocol):
    """Is notified of each call of `Tensor.backward`."""

    def before_backward(self, loss: Tensor) -> None: ...

    def after_backward(self) -> None: ...


def watch_backward(listener: BackwardListener) -> Callable[[], None]:
    """Notify `listener` of each call of `Tensor.backward` in this process; return the function that ends this.

    It also ends when `listener` is deleted, because a training that fails does not end it.
    """
    reference = weakref.ref(listener)
    original: Callable[..., None] = torch.Tensor.backward

    def end() -> None:
        if torch.Tensor.backward is backward:
            torch.Tensor.backward = original  # type: ignore[method-assign]

    def backward(self: Tensor, *args: Any, **kwargs: Any) -> None:
        current = reference()
        if current is None:
            end()
            original(self, *args, **kwargs)
            return
        current.before_backward(self)
        try:
            original(self, *args, **kwargs)
        finally:
            current.after_backward()

    torch.Tensor.backward = backward  # type: ignore[method-assign]
    return end
