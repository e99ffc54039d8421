"""Weights and optimizer states under DeepSpeed's stages 1 to 3, whole and by name.

The optimizer has one flat tensor for each parameter group, of which each rank has a part. Stages 1 and 2 cut this
tensor into equal parts, also inside parameters, and each rank has all weights as well. Stage 3 cuts every parameter
into equal parts; the last one is padded.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paratune.base.piece import Piece
from paratune.strategies.deepspeed_scale import EngineScale
from paratune.strategies.loss_scale import LossScaler
from paratune.strategies.protocol import Read
from paratune.strategies.whole import WholeState

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's states of each parameter; its step count is the same for all parameters."""
HALF = (torch.float16, torch.bfloat16)
"""The dtypes of weights in DeepSpeed's own 16-bit modes."""


class DeepSpeedState:
    """See `protocol.State`."""

    def __init__(
        self, model: nn.Module, engine: Any, *, stage: int, rank: int, scaler: LossScaler | EngineScale | None = None
    ) -> None:
        self._is_first = rank == 0
        self._scaler = scaler
        self._parameters = dict(model.named_parameters())  # a tied parameter appears once
        self._engine = engine
        self._optimizer = engine.basic_optimizer
        zero = engine.optimizer
        self._flat = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
        self._cut: _Cut = _Parameters(rank) if stage == 3 else _Groups(self._optimizer, self._flat, rank)
        # Buffers are whole in every stage.
        self._rest = WholeState(model, self._optimizer, rank=rank)

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor | None]]:
        self._drop_fetched()
        for name, parameter in self._parameters.items():
            if (key := f"model/{name}").startswith(prefix):
                yield key, self._on_first(self._cut.weight(parameter))
        for name, buffer in self._rest.buffers.items():
            if (key := f"model/{name}").startswith(prefix):
                yield key, self._on_first(buffer)
        for name, parameter in self._parameters.items() if self._has_states() else ():
            for state_name in (*MOMENTS, "step") if parameter.requires_grad else ():
                if (key := f"optimizer/{name}/{state_name}").startswith(prefix):
                    yield key, self._on_first(self._state(parameter, state_name))
        for name, value in self._scaler.state().items() if self._scaler is not None else ():
            if (key := f"strategy/{name}").startswith(prefix):
                yield key, self._on_first(value)

    def pieces(self, prefix: str = "") -> Iterator[tuple[str, Piece, Tensor]]:
        self._drop_fetched()
        for name, parameter in self._parameters.items():
            has_states = parameter.requires_grad and self._has_states()
            for state_name in (None, *(MOMENTS if has_states else ())):
                key = f"model/{name}" if state_name is None else f"optimizer/{name}/{state_name}"
                if key.startswith(prefix) and (held := self._cut.held(parameter, state_name)) is not None:
                    yield key, *held
            if has_states and self._is_first and (key := f"optimizer/{name}/step").startswith(prefix):
                yield key, Piece.whole(()), self._state(parameter, "step").flatten()
        rest = {f"model/{name}": buffer for name, buffer in self._rest.buffers.items()}
        rest |= {f"strategy/{name}": value for name, value in (self._scaler.state().items() if self._scaler else ())}
        for key, value in rest.items() if self._is_first else ():
            if key.startswith(prefix):
                yield key, Piece.whole(value.shape), value.detach().flatten()

    def load(self, read: Read, keys: Iterable[str]) -> None:
        self._drop_fetched()
        for key in keys:
            kind, _, rest = key.partition("/")
            if kind == "optimizer":
                name, _, state_name = rest.rpartition("/")
                self._load_state(
                    self._parameters[name], state_name, _check_shape(key, read(key), self._parameters[name])
                )
            elif kind == "model" and rest in self._parameters:
                self._cut.set_weight(self._parameters[rest], _check_shape(key, read(key), self._parameters[rest]))
            elif kind == "strategy" and self._scaler is not None:
                self._scaler.load(rest, read(key))
            else:
                self._rest.load(read, [key])

    def _drop_fetched(self) -> None:
        """Release the weights that stage 3 has gathered ahead: an evaluation has no backward pass that uses them."""
        self._engine.empty_partition_cache()

    def _on_first(self, tensor: Tensor) -> Tensor | None:
        return tensor.cpu() if self._is_first else None

    def _has_states(self) -> bool:
        return "exp_avg" in self._optimizer.state.get(self._flat[0], {})

    def _state(self, parameter: nn.Parameter, name: str) -> Tensor:
        if name == "step":
            return torch.tensor(float(self._optimizer.state[self._flat[0]]["step"]))  # a new tensor for each key
        return self._cut.state(parameter, name)

    def _load_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None:
        if not self._has_states():
            self._make_states(value)
        if name != "step":
            self._cut.set_state(parameter, name, value)
            return
        for flat in self._flat:
            state = self._optimizer.state[flat]
            is_tensor = isinstance(state["step"], Tensor)  # DeepSpeed's own AdamW has a number
            state["step"] = value.to(flat.device, torch.float32, copy=True) if is_tensor else int(value)

    def _make_states(self, value: Tensor) -> None:
        """Make the states that the first step would make, so that values can be loaded into them."""
        counts_in_tensor = isinstance(self._optimizer, torch.optim.AdamW)
        for flat in self._flat:
            state = self._optimizer.state[flat]
            state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device) if counts_in_tensor else 0
            state.update({name: torch.zeros_like(flat.detach()) for name in MOMENTS})


class _Cut(Protocol):
    """Access to the weight or state of a parameter that is cut into parts. All methods but `held` are collective."""

    def held(self, parameter: nn.Parameter, name: str | None) -> tuple[Piece, Tensor] | None:
        """Return what this rank saves of a state, or of the weight if `name` is None; None if it saves nothing."""
        ...

    def weight(self, parameter: nn.Parameter) -> Tensor: ...

    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None: ...

    def state(self, parameter: nn.Parameter, name: str) -> Tensor: ...

    def set_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None: ...


class _Groups:
    """Stages 1 and 2. `_hp_mapping` of a parameter has the place of its piece in this rank's part of a group.

    `deepspeed.utils.safe_get_full_optimizer_state` reads it too, but returns float32 only.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, flat: list[Tensor], rank: int) -> None:
        self._optimizer = optimizer
        self._flat = flat
        self._is_first = rank == 0

    def held(self, parameter: nn.Parameter, name: str | None) -> tuple[Piece, Tensor] | None:
        shape = tuple(parameter.shape)
        if not parameter.requires_grad:
            return (Piece.whole(shape), parameter.detach().flatten()) if self._is_first else None
        if (placed := self._piece(parameter, name)) is None:
            return None
        elements, values = placed
        if name is None and parameter.dtype not in HALF:
            values = parameter.detach().flatten()[elements]
        return Piece(shape, elements.start, elements.stop), values.detach()

    def weight(self, parameter: nn.Parameter) -> Tensor:
        whole = _fp32_weight(parameter)
        return parameter.detach() if whole is None else whole

    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        with torch.no_grad():
            parameter.copy_(value)
        safe_set_full_fp32_param(parameter, value)

    def state(self, parameter: nn.Parameter, name: str) -> Tensor:
        whole = torch.zeros(parameter.numel(), dtype=self._flat[0].dtype, device=self._flat[0].device)
        if (placed := self._piece(parameter, name)) is not None:
            elements, piece = placed
            whole[elements] = piece
        dist.all_reduce(whole)
        return whole.view_as(parameter)

    def set_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None:
        if (placed := self._piece(parameter, name)) is not None:
            elements, piece = placed
            piece.copy_(value.flatten()[elements])

    def _piece(self, parameter: nn.Parameter, name: str | None) -> tuple[slice, Tensor] | None:
        """Return which elements of a parameter's state this rank has, and their values; None if it has none.

        Without a name they are those of the weight that the optimizer updates.
        """
        mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return None
        in_parameter, in_flat = mapping.lp_fragment_address, mapping.hp_fragment_address
        flat = self._flat[mapping.param_group_index]
        state = flat if name is None else self._optimizer.state[flat][name]
        elements = slice(in_parameter.start, in_parameter.start + in_parameter.numel)
        return elements, state[in_flat.start : in_flat.start + in_flat.numel]


class _Parameters:
    """Stage 3, with DeepSpeed's own functions for it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def held(self, parameter: Any, name: str | None) -> tuple[Piece, Tensor] | None:
        from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

        num_here, numel = parameter.ds_tensor.numel(), parameter.ds_numel
        begin, end = (min(place * num_here, numel) for place in (self._rank, self._rank + 1))
        if name is not None:
            values = safe_get_local_optimizer_state(parameter, name)
        elif parameter.requires_grad and parameter.dtype in HALF:
            values = safe_get_local_fp32_param(parameter)
        else:
            values = parameter.ds_tensor
        values = values.detach().flatten()[: end - begin]  # without the padding
        return (Piece(tuple(parameter.ds_shape), begin, end), values) if end > begin else None

    def weight(self, parameter: nn.Parameter) -> Tensor:
        from deepspeed.runtime.zero import GatheredParameters

        if (whole := _fp32_weight(parameter)) is not None:
            return whole
        with GatheredParameters([parameter]):
            return parameter.detach().clone()

    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None:
        from deepspeed.runtime.zero import GatheredParameters
        from deepspeed.utils import safe_set_local_fp32_param

        with GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            parameter.copy_(value)
        safe_set_local_fp32_param(parameter, self._local(parameter, value))

    def state(self, parameter: nn.Parameter, name: str) -> Tensor:
        from deepspeed.utils import safe_get_full_optimizer_state

        whole: Tensor = safe_get_full_optimizer_state(parameter, name)
        return whole

    def set_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None:
        from deepspeed.utils import safe_set_local_optimizer_state

        safe_set_local_optimizer_state(parameter, self._local(parameter, value), name)

    def _local(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """Return this rank's part, padded: `safe_set_full_*` fails if the parts have unequal sizes."""
        num_here = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        flat = value.flatten()[self._rank * num_here : (self._rank + 1) * num_here]
        return torch.nn.functional.pad(flat, (0, num_here - flat.numel()))


def _fp32_weight(parameter: nn.Parameter) -> Tensor | None:
    """Return the fp32 weight of which `parameter` is the 16-bit copy; None of a frozen one, and without a copy."""
    from deepspeed.utils import safe_get_full_fp32_param

    whole: Tensor | None = safe_get_full_fp32_param(parameter) if parameter.dtype in HALF else None
    return whole


def _check_shape(key: str, value: Tensor, parameter: nn.Parameter) -> Tensor:
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))  # in stage 3 the parameter itself is empty
    if value.ndim > 0 and tuple(value.shape) != shape:
        raise ValueError(f"{key} has shape {tuple(value.shape)}, the parameter {shape}")
    return value
