"""Runs a part of any transformer: the model's own forward pass, from one block to another.

There is no table of architectures. Every stage calls the model's own `forward`. Blocks before the stage return the
received hidden states, modules that only compute the input of the blocks (embeddings) are skipped, and after the
stage's last block the pass is stopped. So the model's own code computes masks, position embeddings and the like on
every stage, from the batch, which every stage has. A trial pass with autograd finds the weights that a stage needs.

Dimensions: `B` rows, `S` padded length, `D` width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paratune.batch import Batch
from paratune.errors import ConfigError

_PROBE_ROWS = 2
_PROBE_LENGTH = 32


@dataclass(frozen=True)
class BlockSpan:
    """Blocks `begin` to `end` - 1; the first span also has the modules before the blocks, the last one those after."""

    begin: int
    end: int


class _StopPass(BaseException):
    """Stops a pass after a stage's last block, with its hidden states; the model's code must not catch it."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class CutModel:
    """A `BatchModel` whose forward pass can be run in parts; a call of the model itself works as before."""

    def __init__(
        self, model: Any, blocks: Sequence[nn.Module], values: Callable[..., AbstractContextManager[Any]] = nullcontext
    ) -> None:
        """Prepare a model; in the context of `values` a block has its values, which only the check of spans needs."""
        self.model = model
        self.num_blocks = len(blocks)
        self.blocks = list(blocks)
        self.values = values
        self._around: Callable[..., AbstractContextManager[Any]] = nullcontext
        self._span: BlockSpan | None = None
        self._received: Tensor | None = None
        self._skipped: dict[int, dict[nn.Module, tuple[int, ...]]] = {}
        """For each block at which a span may begin: modules whose output is not needed, with its shape in a trial."""
        self._num_outputs = 0
        """0 if a block returns only the hidden states, otherwise the length of its tuple, where they are first."""
        in_blocks = {module for block in self.blocks for module in block.modules()}
        self._outside = {
            name: module
            for name, module in model.named_modules()
            if module is not model and any(True for _ in module.parameters()) and in_blocks.isdisjoint(module.modules())
        }
        """Modules with weights that are not in a block and contain no block."""
        for number, block in enumerate(self.blocks):
            block.forward = partial(self._run_block, number, block.forward)
        for module in self._outside.values():
            module.forward = partial(self._run_outside, module, module.forward)

    def run(self, span: BlockSpan, batch: Batch, received: Tensor | None) -> Tensor:
        """Run a part of the model.

        Args:
            span: The part.
            batch: The batch, the same for all stages.
            received: Hidden states of the previous block, (B, S, D); None for the first span.

        Returns:
            Hidden states of the span's last block, (B, S, D), or the model's outputs for the last span.
        """
        self._span, self._received = span, received
        try:
            outputs: Tensor = self.model(batch)
        except _StopPass as stop:
            return stop.hidden
        finally:
            self._span = self._received = None
        return outputs

    def find_weights(self, spans: Sequence[BlockSpan]) -> tuple[list[set[str]], list[set[str]]]:
        """Find the weights that each span needs, and the modules that it can skip.

        Returns:
            For each span the names of the parameters on which its result depends, and of those that it must have.

        Raises:
            ConfigError: The parts, run one after the other, do not return the same as the whole model.
        """
        with _probing(self.model):
            used, needed = self._probe(spans)
            self._check(spans)
        return used, needed

    def costs(self) -> list[int]:
        """Return the floating-point operations of a forward pass over a small batch for each block.

        Modules before the first block count as part of it, modules after the last block as part of that. Products with
        weights count; those inside attention do not, as torch counts them on GPUs only; they are equal in all blocks.
        """
        return self.analyse_blocks()[0]

    def analyse_blocks(self) -> tuple[list[int], list[set[str]], list[set[str]]]:
        """Return `costs`, and the result of `find_weights` for each block as a span, without checking the outputs."""
        spans = [BlockSpan(number, number + 1) for number in range(self.num_blocks)]
        batch, hidden, costs = self._probe_batch(), None, []
        with _probing(self.model):
            used, needed = self._probe(spans)
            for span in spans:
                with FlopCounterMode(display=False) as counter, torch.no_grad():
                    hidden = self.run(span, batch, hidden)
                costs.append(counter.get_total_flops())
        return costs, used, needed

    def possible_cuts(self) -> set[int]:
        """Return the blocks before which the model can be cut: all blocks, except in rare architectures."""
        cuts = set()
        for number in range(1, self.num_blocks):
            try:
                self.find_weights([BlockSpan(0, number), BlockSpan(number, self.num_blocks)])
            except ConfigError:
                continue
            cuts.add(number)
        return cuts

    def _probe(self, spans: Sequence[BlockSpan]) -> tuple[list[set[str]], list[set[str]]]:
        batch = self._probe_batch()
        hidden = self._first_hidden(batch)
        used, needed = [], []
        for span in spans:
            names, ran = self._used(span, batch, hidden)
            unwanted = self._unwanted(names, ran) if span.begin > 0 else set()
            skipped = {name for name in unwanted if _is_per_token(ran[name])}
            self._skipped[span.begin] = {self._outside[name]: ran[name] for name in skipped}
            used.append(names)
            needed.append(names | {key for name in unwanted - skipped for key in self._keys(name)})
        return used, needed

    def _probe_batch(self) -> Batch:
        return probe_batch(next(self.model.parameters()).device)

    def _run_block(self, number: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
        span = self._span
        if span is not None and number < span.begin:
            return (self._received, *[None] * (self._num_outputs - 1)) if self._num_outputs else self._received
        if span is not None and number == span.begin and self._received is not None:
            if args:
                args = (self._received, *args[1:])
            else:
                kwargs["hidden_states"] = self._received
        with self._around(self.blocks[number]):
            output = forward(*args, **kwargs)
        if span is not None and number == span.end - 1 and span.end < self.num_blocks:
            raise _StopPass(_hidden(output))
        return output

    def _run_outside(self, module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
        shape = self._skipped.get(self._span.begin, {}).get(module) if self._span else None
        if shape is None:
            return forward(*args, **kwargs)
        assert self._received is not None
        rows, length, _ = self._received.shape
        return self._received.new_zeros(1 if shape[0] == 1 else rows, length, shape[2])

    def _first_hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states after the first block, and record the form in which blocks return them."""
        outputs: list[Any] = []
        handle = self.blocks[0].register_forward_hook(lambda _module, _args, output: outputs.append(output))
        try:
            with torch.no_grad():
                self.model(batch)
        finally:
            handle.remove()
        self._num_outputs = len(outputs[0]) if isinstance(outputs[0], tuple | list) else 0
        return _hidden(outputs[0])

    def _used(self, span: BlockSpan, batch: Batch, hidden: Tensor) -> tuple[set[str], dict[str, tuple[int, ...]]]:
        """Return the weights on which a span depends, and the outside modules that ran, with the shapes of outputs."""
        ran: dict[str, tuple[int, ...]] = {}

        def note(name: str, _module: nn.Module, _args: Any, output: Any) -> None:
            ran[name] = tuple(output.shape) if isinstance(output, Tensor) else ()

        handles = [module.register_forward_hook(partial(note, name)) for name, module in self._outside.items()]
        received = hidden.clone().requires_grad_(True) if span.begin > 0 else None
        self._skipped.pop(span.begin, None)
        try:
            result = self.run(span, batch, received).sum()
        finally:
            for handle in handles:
                handle.remove()
        names = [name for name, parameter in self.model.named_parameters() if parameter.is_floating_point()]
        parameters = [self.model.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(result, parameters, allow_unused=True)
        return {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}, ran

    def _unwanted(self, used: set[str], ran: dict[str, tuple[int, ...]]) -> set[str]:
        """Return the outermost modules that ran although no result depends on their weights."""
        names = {name for name in ran if not used & self._keys(name)}
        return {name for name in names if not any(name.startswith(f"{other}.") for other in names)}

    def _keys(self, name: str) -> set[str]:
        """Return the names of a module's parameters in the model; a tied parameter has one name."""
        ids = {id(parameter) for parameter in self._outside[name].parameters()}
        return {key for key, parameter in self.model.named_parameters() if id(parameter) in ids}

    def _check(self, spans: Sequence[BlockSpan]) -> None:
        batch, hidden = self._probe_batch(), None
        self._around = self.values
        with torch.no_grad():
            whole: Tensor = self.model(batch)
            for span in spans:
                hidden = self.run(span, batch, hidden)
        self._around = nullcontext
        assert hidden is not None
        if hidden.shape != whole.shape or not torch.allclose(hidden, whole, rtol=1e-4, atol=1e-5):
            named = ", ".join(f"{span.begin}-{span.end - 1}" for span in spans)
            raise ConfigError(
                f"strategy.kind: pipeline cannot cut this model into blocks {named}: together they return other values "
                "than the whole model (a block passes more than hidden states to the next); set strategy.balance to "
                "other numbers of blocks, or strategy.kind: ddp or zero3",
                code="strategy.cannot_cut",
                key="strategy.kind",
            )


def probe_batch(device: torch.device | str = "cpu") -> Batch:
    """Return a small batch of two rows of different lengths, for trial passes."""
    mask = torch.ones((_PROBE_ROWS, _PROBE_LENGTH), dtype=torch.int64)
    mask[-1, _PROBE_LENGTH // 2 :] = 0
    num_padding = _PROBE_LENGTH - _PROBE_LENGTH // 2
    ids = 1 + torch.arange(_PROBE_ROWS * _PROBE_LENGTH).reshape(_PROBE_ROWS, -1) % 7
    batch = Batch(
        input_ids=ids,
        row_weight=torch.ones(_PROBE_ROWS),
        index=torch.arange(_PROBE_ROWS),
        num_samples=_PROBE_ROWS,
        num_tokens=mask.numel() - num_padding,
        num_padded_tokens=ids.numel(),
        loss_denominator=float(_PROBE_ROWS),
        attention_mask=mask,
        max_seqlen=_PROBE_LENGTH,
    )
    return batch.to(device)


def _is_per_token(shape: tuple[int, ...]) -> bool:
    """Return whether an output has one vector for each token, for each row or once for all; zeros can replace it."""
    return len(shape) == 3 and shape[0] in (1, _PROBE_ROWS) and shape[1] == _PROBE_LENGTH


def _hidden(output: Any) -> Tensor:
    """Return the hidden states in the output of a block, alone or first in a tuple."""
    hidden: Tensor = output[0] if isinstance(output, tuple | list) else output
    return hidden


@contextmanager
def _probing(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, and gradients on for all weights, also for frozen ones; restore both at the end."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    for parameter in frozen:
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module, training in was_training.items():
            module.training = training
