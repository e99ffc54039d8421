"""Copies of weights in the dtype of autocast, made once per optimizer step instead of cast in each forward pass.

Autocast casts the weights of linear layers in each micro-batch, and their gradients in each backward pass: about 300 of
1,070 kernels of a step of BERT-base. Here one `torch._foreach_copy_` per step makes all copies, and one per block casts
the gradients. Copies and gradients are bit for bit those of autocast: a gradient is rounded to the lower dtype by the
product, cast to float32, then accumulated.

The model keeps its float32 parameters, which optimizers, checkpoints and hooks of DDP use. A trial pass before the
first step finds two further savings. Layers that are called one after another with the same input (query, key and
value; gate and up) become one product, whose results differ only by rounding. The output of a norm or a dropout before
such a layer is cast where it is computed, so that one kernel adds its two gradients, with the same bits.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from paratune.precision import Precision
from paratune.precision.working_linear import LoweredOutput, SharedProduct, WorkingLinear


class _Copy:
    """A tensor in the lower dtype with one weight, or several weights concatenated."""

    def __init__(self, masters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self.masters = tuple(masters)
        self.sizes = [len(master) for master in masters]
        first = masters[0]
        self.tensor = torch.empty((sum(self.sizes), *first.shape[1:]), dtype=dtype, device=first.device)
        self.parts = torch.split(self.tensor, self.sizes)


class _LayerUnit:
    """One layer, or several that are computed in one product, with the copies of their parameters."""

    def __init__(self, layers: Sequence[WorkingLinear], make_copy: Callable[[Sequence[nn.Parameter]], _Copy]) -> None:
        self.layers = tuple(layers)
        self.product = SharedProduct(layers) if len(layers) > 1 else None
        for layer in layers:
            layer.product = self.product
        parameters = [dict(layer.named_parameters()) for layer in layers]
        self.weight = make_copy([named["weight"] for named in parameters])
        self.bias = make_copy([named["bias"] for named in parameters]) if "bias" in parameters[0] else None

    @property
    def copies(self) -> list[_Copy]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def give(self, tensor_of: Callable[[_Copy], Tensor]) -> None:
        """Let the layers use the tensors of their copies."""
        tensors = tensor_of(self.weight), None if self.bias is None else tensor_of(self.bias)
        if self.product is not None:
            self.product.clear()
            self.product.copies = tensors
        else:
            vars(self.layers[0])["copies"] = tensors  # faster than nn.Module's __setattr__

    def take(self) -> None:
        """Let the layers use their parameters again."""
        if self.product is not None:
            self.product.clear()
        else:
            vars(self.layers[0])["copies"] = None


class _Part:
    """Units that share one autograd function."""

    def __init__(self, units: Sequence[_LayerUnit]) -> None:
        self.units = tuple(units)
        self._copies = list(dict.fromkeys(copy for unit in units for copy in unit.copies))
        self._masters = [master for copy in self._copies for master in copy.masters]
        self._tensors = [copy.tensor for copy in self._copies]

    def begin(self) -> None:
        """Give the layers their copies; with gradients enabled, the copies are autograd functions of the parameters."""
        tensors: Sequence[Tensor] = self._tensors
        if torch.is_grad_enabled():
            tensors = _Working.apply(self._copies, *self._masters)  # type: ignore[no-untyped-call]
        tensor_of = dict(zip(self._copies, tensors, strict=True))
        for unit in self.units:
            unit.give(tensor_of.__getitem__)


class _Group:
    """Parts of a module, whose gradients are cast together at the end of the module's backward pass."""

    def __init__(self, owner: nn.Module, parts: list[_Part], is_compiled: bool) -> None:
        self.owner = owner
        self.parts = parts
        self.is_compiled = is_compiled
        self.has_begun = False
        self._with_gradients = False

    @property
    def units(self) -> list[_LayerUnit]:
        return [unit for part in self.parts for unit in part.units]

    def begin(self) -> None:
        """Begin a pass of the owner, which may run several times in a pass of the model, with the same copies.

        If it first ran without gradients (recycling, reentrant activation checkpointing), it begins again with them.
        """
        wants_gradients = torch.is_grad_enabled()
        if not self.has_begun or (wants_gradients and not self._with_gradients):
            self.has_begun, self._with_gradients = True, wants_gradients
            for part in self.parts:
                part.begin()

    def end(self) -> None:
        self.has_begun = False
        for part in self.parts:
            for unit in part.units:
                unit.take()


class _Working(torch.autograd.Function):
    """Returns copies as functions of float32 parameters; backward casts all gradients in one foreach operation."""

    @staticmethod
    def forward(ctx: Any, copies: Sequence[_Copy], *masters: Tensor) -> tuple[Tensor, ...]:
        ctx.copies = copies
        ctx.set_materialize_grads(False)  # so that parameters of unused copies get no gradient instead of zeros
        # Detached: an output gets this function as its grad_fn, and the copies themselves are used in all passes.
        return tuple(copy.tensor.detach() for copy in copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        results: list[Tensor | None] = []
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        for copy, grad in zip(ctx.copies, grads, strict=True):
            if grad is None:
                results += [None] * len(copy.masters)
                continue
            parts = (grad,) if len(copy.masters) == 1 else torch.split(grad, copy.sizes)
            for master, part in zip(copy.masters, parts, strict=True):
                if not master.requires_grad:
                    results.append(None)
                    continue
                target = torch.empty_like(master)
                results.append(target)
                sources.append(part)
                targets.append(target)
        if targets:
            torch._foreach_copy_(targets, sources)
        return None, *results


class WorkingWeights:
    """The copies of a model's linear layers, for strategies in which each rank has all float32 parameters."""

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """Make copies for every linear layer with float32 parameters.

        Args:
            model: The model on its device. The class of its linear layers changes; names of parameters do not.
            blocks: Its repeated layers.
            dtype: float16 or bfloat16.
        """
        self._dtype = dtype
        self._copies: dict[tuple[int, ...], _Copy] = {}
        self._is_active = False
        self._is_settled = False
        self.has_trial = False
        """Whether `run_trial` has found the layers that are computed together."""
        self._is_changed = True
        self._versions = 0
        self._runs: list[list[WorkingLinear]] = []
        self._groups = self._grouped(model, blocks)
        self._hooks = [group.owner.register_forward_pre_hook(partial(self._enter, group)) for group in self._groups]
        self._lowered = LoweredOutput(dtype)
        self._last: tuple[Tensor, int] | None = None
        self._made: tuple[Tensor, nn.Module] | None = None
        self._readers: dict[nn.Module, WorkingLinear] = {}
        """The layer that reads a module's output, by module."""
        self._watching = [
            layer.register_forward_pre_hook(self._see)
            for group in self._groups
            if not group.is_compiled
            for unit in group.units
            for layer in unit.layers
        ]
        self._watching += [module.register_forward_hook(self._note_output) for module in self._leaves(model)]

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.tensor.nbytes for copy in self._copies.values())

    @property
    def tensors(self) -> list[Tensor]:
        """The copies."""
        return [copy.tensor for copy in self._copies.values()]

    @contextmanager
    def use(self) -> Iterator[None]:
        """Let passes in the block use the copies."""
        self.refresh()
        self._is_active = True
        try:
            yield
        finally:
            self._is_active = False
            self._lowered.clear()
            for group in self._groups:
                group.end()
        if not self._is_settled and torch.is_grad_enabled():
            self.settle(lambda layer: layer.weight.grad is not None or not layer.weight.requires_grad)

    def mark_changed(self) -> None:
        """Mark the copies as outdated after the optimizer has changed the parameters."""
        self._is_changed = True

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy all parameters in one foreach operation, if they have changed."""
        # Loading a checkpoint changes parameters without `mark_changed`; autograd's version counters detect it.
        versions = sum(master._version for copy in self._copies.values() for master in copy.masters)
        if self._is_changed or versions != self._versions:
            copies = self._copies.values()
            targets = [part for copy in copies for part in copy.parts]
            torch._foreach_copy_(targets, [master for copy in copies for master in copy.masters])
            self._is_changed, self._versions = False, versions

    def run_trial(self, run: Callable[[], object]) -> None:
        """Find the layers that can be computed together, in a pass without gradients before the first step.

        So all passes of a run, and of a resumed run, use the same operations.

        `run` runs the model, without dropout.
        """
        self.refresh()
        self._runs.clear()
        self._readers.clear()
        self._is_active = True
        try:
            run()
        finally:
            self._is_active = False
            self._last, self._made = None, None
            for group in self._groups:
                group.end()
        for hook in self._watching:
            hook.remove()
        self._watching = []
        for module, layer in self._readers.items():
            self._hooks.append(module.register_forward_hook(self._lower))
            layer.lowered = self._lowered
        partners = _partners(self._runs)
        self._copies.clear()
        for group in self._groups:
            layers = [layer for unit in group.units for layer in unit.layers]
            group.parts = [_Part([self._unit(layers_together)]) for layers_together in _divided(layers, partners)]
        self.has_trial = self._is_changed = True

    def settle(self, is_used: Callable[[WorkingLinear], bool]) -> None:
        """Cast the gradients of a block together.

        Unused layers keep their own autograd function, so that DDP detects that their parameters get no gradient.
        """
        for group in self._groups:
            used = [unit for unit in group.units if all(map(is_used, unit.layers))]
            alone = [[unit] for unit in group.units if unit not in used]
            group.parts = [_Part(units) for units in ([used] if used else []) + alone]
        self._is_settled = True

    def _grouped(self, model: nn.Module, blocks: Sequence[nn.Module]) -> list[_Group]:
        owners: dict[nn.Module, nn.Module] = {}
        for block in blocks:
            for layer in block.modules():
                if _takes_copies(layer):
                    owners.setdefault(layer, block)
        for layer in model.modules():
            if _takes_copies(layer):
                owners.setdefault(layer, layer)
        by_owner: dict[nn.Module, list[nn.Module]] = {}
        for layer in _without_ties(owners):
            layer.__class__ = WorkingLinear
            by_owner.setdefault(owners[layer], []).append(layer)
        return [
            _Group(owner, [_Part([self._unit([layer])]) for layer in layers], _is_compiled(owner))
            for owner, layers in by_owner.items()
        ]

    def _unit(self, layers: Sequence[Any]) -> _LayerUnit:
        return _LayerUnit(layers, self._copy)

    def _copy(self, masters: Sequence[nn.Parameter]) -> _Copy:
        """Return the copy of parameters; layers with the same parameters have the same copy."""
        key = tuple(map(id, masters))
        if key not in self._copies:
            self._copies[key] = _Copy(masters, self._dtype)
        return self._copies[key]

    def _enter(self, group: _Group, *_: Any) -> None:
        if self._is_active:
            group.begin()

    def _see(self, layer: Any, args: tuple[Any, ...]) -> None:
        """Record layers that are called with the same input as the previous layer, or with the last module's output."""
        if not self._is_active or not args:
            return
        if self._made is not None and self._made[0] is args[0]:
            self._readers.setdefault(self._made[1], layer)
        self._made = None
        if self._last is not None and self._last[0] is args[0] and self._last[1] == args[0]._version:
            self._runs[-1].append(layer)
        else:
            self._runs.append([layer])
            self._last = args[0], args[0]._version

    def _leaves(self, model: nn.Module) -> list[nn.Module]:
        """Return modules without submodules outside of compiled blocks, except linear layers."""
        compiled = {module for group in self._groups if group.is_compiled for module in group.owner.modules()}
        return [
            module
            for module in model.modules()
            if module not in compiled and not isinstance(module, WorkingLinear) and not list(module.children())
        ]

    def _note_output(self, module: nn.Module, _args: Any, output: Any) -> None:
        if self._is_active and isinstance(output, Tensor) and output.dtype == torch.float32:
            self._made = output, module

    def _lower(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        """Cast the output for the next layer, if gradients are needed."""
        if not self._is_active or not output.requires_grad or output.dtype != torch.float32:
            return None
        return self._lowered.give(output)


def make_working_weights(model: nn.Module, blocks: Sequence[nn.Module], precision: Precision) -> WorkingWeights | None:
    """Return the copies of a model's weights; None for a policy without autocast, or a model without linear layers."""
    if precision.autocast_dtype is None:
        return None
    weights = WorkingWeights(model, blocks, precision.autocast_dtype)
    return weights if weights.tensors else None


def _takes_copies(layer: nn.Module) -> bool:
    """Return whether a layer can use copies: only PyTorch's linear layers; autocast casts the weights of others."""
    is_plain = type(layer) in (nn.Linear, WorkingLinear) or getattr(layer, "is_plain_under_autocast", False)
    # With weight_norm or spectral_norm the weight is computed and not a parameter.
    return (
        is_plain
        and "weight" in layer._parameters
        and all(parameter.dtype == torch.float32 for parameter in layer.parameters())
    )


def _without_ties(owners: Mapping[nn.Module, nn.Module]) -> list[nn.Module]:
    """Return the layers without those that share their weight with a layer of another owner.

    Autocast adds the gradients of such a weight before it casts them, so it continues to cast these weights.
    """
    users: dict[int, set[nn.Module]] = {}
    for layer, owner in owners.items():
        users.setdefault(id(layer.weight), set()).add(owner)
    return [layer for layer in owners if len(users[id(layer.weight)]) == 1]


def _is_compiled(block: nn.Module) -> bool:
    """Return whether a block is compiled, where hooks of its layers would break graphs; see `models.compile`."""
    forward = getattr(vars(block).get("forward"), "__func__", None)
    inner = forward.args[0] if isinstance(forward, partial) else forward  # activation checkpointing around it
    return hasattr(inner, "_torchdynamo_orig_callable")


def _partners(runs: Sequence[Sequence[WorkingLinear]]) -> dict[WorkingLinear, tuple[WorkingLinear, ...]]:
    """Return for each layer the layers that can share its product, according to its first call."""
    result: dict[WorkingLinear, tuple[WorkingLinear, ...]] = {}
    for run in runs:
        layers = tuple(dict.fromkeys(run))
        alike = {(layer.bias is None, layer.weight.requires_grad) for layer in layers}
        shared = layers if len(alike) == 1 and len({id(layer.weight) for layer in layers}) == len(layers) else ()
        for layer in layers:
            result.setdefault(layer, shared)
    return result


def _divided(
    layers: Collection[WorkingLinear], partners: dict[WorkingLinear, tuple[WorkingLinear, ...]]
) -> list[list[WorkingLinear]]:
    """Return lists of layers that are computed together."""
    result: list[list[WorkingLinear]] = []
    done: set[WorkingLinear] = set()
    for layer in layers:
        if layer in done:
            continue
        shared = partners.get(layer, ())
        fits = all(member in layers and member not in done and partners[member] == shared for member in shared)
        result.append(list(shared) if shared and fits else [layer])
        done.update(result[-1])
    return result
