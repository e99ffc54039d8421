"""Weights and optimizer states under DeepSpeed's stages 1 to 3, whole and by name.

The optimizer works on flat tensors, one a parameter group, of which each rank has a part. Stages 1 and 2 cut such a
tensor into equal parts, through the middle of parameters, and keep all weights on each rank besides. Stage 3 cuts every
parameter into equal parts, the last one padded.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paratune.strategies.deepspeed_scale import EngineScale
from paratune.strategies.loss_scale import LossScaler
from paratune.strategies.whole import WholeState

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps for each parameter, besides its count of steps, which all parameters share."""
HALF = (torch.float16, torch.bfloat16)
"""Of weights under DeepSpeed's own modes of 16 bits."""


class ShardedState:
    """See `protocol.State`."""

    def __init__(
        self, model: nn.Module, engine: Any, *, stage: int, rank: int, scaler: LossScaler | EngineScale | None = None
    ) -> None:
        self._is_first = rank == 0
        self._scaler = scaler
        self._parameters = dict(model.named_parameters())  # a tied one appears once
        self._engine = engine
        self._optimizer = engine.basic_optimizer
        zero = engine.optimizer
        self._flat = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
        self._cut: _Cut = _Parameters(rank) if stage == 3 else _Groups(self._optimizer, self._flat)
        # Buffers are whole under every stage.
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

    def load(self, read: Callable[[str], Tensor], keys: Iterable[str]) -> None:
        self._drop_fetched()
        for key in keys:
            kind, _, rest = key.partition("/")
            if kind == "optimizer":
                name, _, state_name = rest.rpartition("/")
                self._load_state(self._parameters[name], state_name, _fitting(key, read(key), self._parameters[name]))
            elif kind == "model" and rest in self._parameters:
                self._cut.set_weight(self._parameters[rest], _fitting(key, read(key), self._parameters[rest]))
            elif kind == "strategy" and self._scaler is not None:
                self._scaler.load(rest, read(key))
            else:
                self._rest.load(read, [key])

    def _drop_fetched(self) -> None:
        """Let go of what stage 3 has fetched ahead: an evaluation ends with weights on their way that no backward pass
        takes."""
        self._engine.empty_partition_cache()

    def _on_first(self, tensor: Tensor) -> Tensor | None:
        return tensor.cpu() if self._is_first else None

    def _has_states(self) -> bool:
        return "exp_avg" in self._optimizer.state.get(self._flat[0], {})

    def _state(self, parameter: nn.Parameter, name: str) -> Tensor:
        if name == "step":
            return torch.tensor(float(self._optimizer.state[self._flat[0]]["step"]))  # for each key its own
        return self._cut.state(parameter, name)

    def _load_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None:
        if not self._has_states():
            self._make_states(value)
        if name != "step":
            self._cut.set_state(parameter, name, value)
            return
        for flat in self._flat:
            state = self._optimizer.state[flat]
            is_tensor = isinstance(state["step"], Tensor)  # DeepSpeed's own AdamW keeps a number
            state["step"] = value.to(flat.device, torch.float32, copy=True) if is_tensor else int(value)

    def _make_states(self, value: Tensor) -> None:
        """Make what the first step would make, so that there is something to load into."""
        counts_in_tensor = isinstance(self._optimizer, torch.optim.AdamW)
        for flat in self._flat:
            state = self._optimizer.state[flat]
            state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device) if counts_in_tensor else 0
            state.update({name: torch.zeros_like(flat.detach()) for name in MOMENTS})


class _Cut(Protocol):
    """How parameters are cut into parts: a parameter's whole weight or state, gathered by all ranks together."""

    def weight(self, parameter: nn.Parameter) -> Tensor: ...

    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None: ...

    def state(self, parameter: nn.Parameter, name: str) -> Tensor: ...

    def set_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None: ...


class _Groups:
    """Stages 1 and 2. DeepSpeed notes at each parameter which piece of it lies where in this rank's part of a group.

    `deepspeed.utils.safe_get_full_optimizer_state` reads the same note; it returns float32 whatever was asked for.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, flat: list[Tensor]) -> None:
        self._optimizer = optimizer
        self._flat = flat

    def weight(self, parameter: nn.Parameter) -> Tensor:
        return _in_full(parameter) if parameter.dtype in HALF else parameter.detach()

    def set_weight(self, parameter: nn.Parameter, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        with torch.no_grad():
            parameter.copy_(value)
        safe_set_full_fp32_param(parameter, value)

    def state(self, parameter: nn.Parameter, name: str) -> Tensor:
        whole = torch.zeros(parameter.numel(), dtype=self._flat[0].dtype, device=self._flat[0].device)
        if (here := self._piece(parameter, name)) is not None:
            within, piece = here
            whole[within] = piece
        dist.all_reduce(whole)
        return whole.view_as(parameter)

    def set_state(self, parameter: nn.Parameter, name: str, value: Tensor) -> None:
        if (here := self._piece(parameter, name)) is not None:
            within, piece = here
            piece.copy_(value.flatten()[within])

    def _piece(self, parameter: nn.Parameter, name: str) -> tuple[slice, Tensor] | None:
        """Return which part of a parameter's state this rank has, and that part."""
        note: Any = parameter._hp_mapping  # type: ignore[attr-defined]
        if note is None:
            return None
        inside, at = note.lp_fragment_address, note.hp_fragment_address
        state = self._optimizer.state[self._flat[note.param_group_index]][name]
        return slice(inside.start, inside.start + inside.numel), state[at.start : at.start + at.numel]


class _Parameters:
    """Stage 3, through the helpers that DeepSpeed has for it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def weight(self, parameter: nn.Parameter) -> Tensor:
        from deepspeed.runtime.zero import GatheredParameters

        if parameter.dtype in HALF:
            return _in_full(parameter)
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
        """Return this rank's part, padded: `safe_set_full_*` fails where the parts are not equal without it."""
        num_here = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        flat = value.flatten()[self._rank * num_here : (self._rank + 1) * num_here]
        return torch.nn.functional.pad(flat, (0, num_here - flat.numel()))


def _in_full(parameter: nn.Parameter) -> Tensor:
    """Return the weight in fp32, of which `parameter` is the copy in 16 bits."""
    from deepspeed.utils import safe_get_full_fp32_param

    whole: Tensor = safe_get_full_fp32_param(parameter)
    return whole


def _fitting(key: str, value: Tensor, parameter: nn.Parameter) -> Tensor:
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))  # under stage 3 a parameter holds nothing meanwhile
    if value.ndim > 0 and tuple(value.shape) != shape:
        raise ValueError(f"{key} has shape {tuple(value.shape)}, the parameter {shape}")
    return value
