"""New weights that are drawn when a strategy takes them, block by block, with the bits of a model that is made whole.

transformers makes a model in two passes, which both draw from the random generator of the process: constructors, whose
values are all replaced, and `_init_weights` of each module, children first. Here modules lose their memory after each
pass. Of a block only the state of the generator before its second pass is kept, with which it is drawn again.

Source: transformers 5.23, modeling_utils.py, `_from_config`, `initialize_weights`, `_initialize_weights`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.weak import WeakTensorKeyDictionary

from paratune.models.task_model import find_blocks
from paratune.precision import changed


def make_by_blocks(make: Callable[[], Any]) -> Any:
    """Return the model of `make`, whose blocks have no memory: `precision.values_of` draws them.

    A model whose code writes to blocks from outside, or keeps values of constructors, has all its weights.
    """
    from transformers import PreTrainedModel

    start, initialize = torch.get_rng_state(), PreTrainedModel._initialize_weights
    last: dict[Tensor, Tensor] = {}  # the rest of the block that was drawn last
    block_of: dict[nn.Module, _Block | None] = {}
    dropped: set[Tensor] = set()

    def drop(_parent: nn.Module, _name: str, module: nn.Module | None) -> None:
        """Free a module that was constructed; PyTorch calls this when it becomes a part of another."""
        for part in module.modules() if module is not None else ():
            if not getattr(part, "_is_hf_initialized", False):
                _blank(part.parameters(recurse=False))
                dropped.update(part.parameters(recurse=False))

    def by_blocks(model: Any, module: Any, *arguments: Any) -> None:
        """Run the second pass of a module, after those of its children."""
        if getattr(module, "_is_hf_initialized", False):
            return
        if model not in block_of:  # the first module of this model, which may be the encoder of another one
            blocks = [_Block(block, last) for block in find_blocks(model)]
            block_of.update({part: block for block in blocks for part in block.module.modules()} | {model: None})
            inside = {weight for block in blocks for weight in block.module.parameters()}
            _blank(dropped.intersection(model.parameters()) - inside, has_memory=True)
            dropped.difference_update(model.parameters())
        call, block = partial(initialize, model, module, *arguments), block_of.get(module)
        call() if block is None else block.initialise(module, call)

    handle = register_module_module_registration_hook(drop)
    try:
        with patch.object(PreTrainedModel, "_initialize_weights", by_blocks):
            model = make()
        if all(_is_unwritten(weight) == hasattr(weight, "draw") for weight in model.parameters()):
            return model
    except RuntimeError:  # most operations cannot write to a weight without memory
        pass
    finally:
        handle.remove()
    torch.set_rng_state(start)
    return make()


class _Block:
    def __init__(self, module: nn.Module, last: dict[Tensor, Tensor]) -> None:
        self.module = module
        self._last = last
        self._calls: list[tuple[Any, Callable[[], None]]] = []
        self._state: Tensor
        self._forms = WeakTensorKeyDictionary()  # a strategy that has sharded weights frees them

    def initialise(self, module: nn.Module, call: Callable[[], None]) -> None:
        weights = [*self.module.parameters()]
        if not self._calls:
            self._state = torch.get_rng_state()
            self._forms.update({weight: torch.empty_like(weight, device="meta") for weight in weights})
            _blank(weights, has_memory=True)
        self._calls.append((module, call))
        call()
        if module is self.module:  # the last one
            if any(map(_is_unwritten, weights)):
                raise RuntimeError("a weight of the block is not initialised")
            _blank(weights)
            for weight in weights:
                weight.draw = partial(self._draw, weight)  # type: ignore[attr-defined]

    def _draw(self, weight: Tensor) -> Tensor:
        if weight not in self._last:
            self._last.clear()
            self._last.update({own: torch.empty_like(self._forms[own], device="cpu") for own in self._forms})
            with torch.random.fork_rng([]), torch.no_grad(), changed([*self._last], self._last.__getitem__):
                torch.set_rng_state(self._state)
                for module, call in self._calls:
                    module._is_hf_initialized = False
                    call()
        return self._last.pop(weight)


def _is_unwritten(weight: Tensor) -> bool:
    data = weight.data if weight.is_contiguous() else weight.data[(0,) * weight.ndim]  # one number stands for all
    return bool(data.sum().isnan())


def _blank(weights: Iterable[Tensor], *, has_memory: bool = False) -> None:
    for weight in weights:
        blank = torch.full((), torch.nan, dtype=weight.dtype).expand(weight.shape)
        weight.data = blank.contiguous() if has_memory else blank
