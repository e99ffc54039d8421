"""The profile of a model that cannot run on the meta device: its own weights, and activations by a formula.

`s` tokens of a row, `b` rows, `h` width, `i` width between the two layers of an MLP, `a` attention heads, `e` bytes of
a number. Per layer autograd keeps

    s b h ((8 + 2 i / h) e + 2) + a s^2 b (2 e + 1)

bytes: attention's five inputs, the MLP's three of which two are `i` wide, two norms, two masks of dropout of one byte;
scores and probabilities, and their mask. With e = 2 and i = 4 h these are the paper's s b h (34 + 5 a s / h).

Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, section 4.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paratune.config.sections import ModelOptions, Train
from paratune.config.task_sections import Task
from paratune.models.task_model import find_blocks
from paratune.models.trained_weights import select_trained
from paratune.planning.build import build_model
from paratune.planning.division import Division
from paratune.planning.profile import Parameter, Profile, Shape, parameters_of
from paratune.planning.timeline import Mark, Timeline
from paratune.planning.trace import Operation, Phase
from paratune.precision import Precision


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a model and a micro-batch, with the letters of the paper."""

    s: int
    b: int
    h: int
    i: int
    a: int
    e: int

    @property
    def layer(self) -> int:
        """Bytes that a layer keeps."""
        wide = self.s * self.b * ((8 * self.h + 2 * self.i) * self.e + 2 * self.h)
        return wide + self.a * self.s**2 * self.b * (2 * self.e + 1)

    @property
    def hidden(self) -> int:
        return self.s * self.b * self.h * self.e


def approximate(
    hf_config: Any,
    task: Task,
    shape: Shape,
    precision: Precision,
    *,
    why: str,
    activation_checkpointing: int | None = None,
    train: Train | None = None,
    model_options: ModelOptions | None = None,
    with_division: bool = False,
) -> Profile:
    """Return a profile by formula, marked as one. The other arguments are those of `profile`.

    Args:
        hf_config: Its width, heads and MLP are read under the names that most models give them.
        shape: Packed rows count as rows of their mean length.
        why: Why the model cannot be traced.
        activation_checkpointing: One block at a time is recomputed.
        train: Nothing is saved for blocks before the first trained weight.

    Raises:
        Exception: The model cannot even be built on the meta device.
    """
    with torch.device("meta"):
        model = build_model(hf_config, task, precision, None, model_options)
    factors = select_trained(model, train)
    blocks = find_blocks(model)
    trained = {weight for weight in model.parameters() if weight.requires_grad}
    parameters = parameters_of(model, blocks, trained, factors)
    sizes = _sizes(hf_config, shape, precision)
    every = activation_checkpointing
    first = _first_trained_block(parameters, len(blocks))
    saved = [sizes.layer if number >= first else 0 for number in range(len(blocks))]
    if every is not None:
        saved = [sizes.hidden if number % every == 0 else size for number, size in enumerate(saved)]
    again = sizes.layer if every is not None and first < len(blocks) else 0
    size = next(model.parameters()).element_size()
    forward, backward = _operations(parameters, shape, sizes, str(precision.compute_dtype))
    return Profile(
        parameters=parameters,
        num_blocks=len(blocks),
        weight_bytes=size,
        num_buffer_bytes=sum(buffer.untyped_storage().nbytes() for buffer in model.buffers()),
        saved_bytes=sizes.hidden + sum(saved),
        saved_by_block=tuple(saved),
        batch_bytes=3 * 8 * sizes.s * sizes.b,
        forward=forward,
        backward=backward,
        saved_before=sizes.hidden,
        hidden_bytes=sizes.hidden,
        timeline=_timeline(parameters, saved, sizes.hidden, again, size),
        division=_division(parameters, len(blocks)) if with_division else None,
        why_approximate=why,
    )


def _first_trained_block(parameters: Sequence[Parameter], num_blocks: int) -> int:
    """Return the number of the first block that a gradient reaches; `num_blocks` if only the head is trained."""
    first = next((number for number, parameter in enumerate(parameters) if parameter.block is not None), 0)
    if any(parameter.is_trained for parameter in parameters[:first]):
        return 0
    return min(
        (parameter.block for parameter in parameters if parameter.is_trained and parameter.block is not None),
        default=num_blocks,
    )


def _sizes(config: Any, shape: Shape, precision: Precision) -> _Sizes:
    def first_int(*names: str) -> int | None:
        return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)

    h = first_int("hidden_size", "d_model", "dim", "n_embd") or 0
    b = len(shape.lengths)
    return _Sizes(
        s=-(-shape.num_tokens // b),
        b=b,
        h=h,
        i=first_int("intermediate_size", "d_ff", "hidden_dim", "n_inner") or 4 * h,
        a=first_int("num_attention_heads", "num_heads", "n_heads", "n_head") or max(1, h // 64),
        e=precision.compute_dtype.itemsize,
    )


def _timeline(parameters: Sequence[Parameter], saved: list[int], hidden: int, again: int, size: int) -> Timeline:
    """Return a timeline in which each block frees its activations when its gradients are complete."""
    amounts = [hidden, *saved]
    changes = list(range(len(amounts)))
    marks = [mark for n in range(len(saved)) for mark in (Mark(n + 1, "forward", n), Mark(n + 2, "forward_end", n))]
    gradients: dict[int, int] = {}

    def made(block: int | None) -> None:
        for number, parameter in enumerate(parameters):
            if parameter.block == block and parameter.is_trained:
                gradients[len(amounts)] = number
                changes.append(len(amounts))
                amounts.append(size * parameter.numel)
                marks.append(Mark(len(changes), "gradient", number))

    for block in reversed(range(len(saved))):
        marks.append(Mark(len(changes), "backward", block))
        if again:
            changes += [len(amounts), ~len(amounts)]
            amounts.append(again)
        made(block)
        changes.append(~(block + 1))
    marks.append(Mark(len(changes), "inner_end", 0))
    made(None)
    return Timeline(tuple(amounts), (*changes, ~0), tuple(marks), len(saved) + 1, gradients)


def _operations(parameters: Sequence[Parameter], shape: Shape, sizes: _Sizes, dtype: str) -> tuple[Phase, Phase]:
    """Return only matrix products: 2 operations per token and element of each matrix in a block, and attention."""
    kind, tokens = dtype.removeprefix("torch."), shape.num_tokens
    forward: list[Operation] = []
    for parameter in parameters:
        if parameter.block is not None and len(parameter.shape) == 2:
            moved = sizes.e * (parameter.numel + tokens * sum(parameter.shape))
            forward.append(Operation(2 * tokens * parameter.numel, moved, kind, "addmm"))
    attention = Operation(2 * sizes.h * sum(n**2 for n in shape.lengths), 3 * sizes.hidden, kind, "bmm")
    forward += [attention] * (2 * len({parameter.block for parameter in parameters if parameter.block is not None}))
    return Phase(forward), Phase(forward * 2)


def _division(parameters: Sequence[Parameter], num_blocks: int) -> Division:
    """Return a division in which parameters before the blocks belong to the first one, and those after to the last."""
    first = next((number for number, parameter in enumerate(parameters) if parameter.block is not None), 0)
    used: list[set[str]] = [
        {parameter.name for parameter in parameters if parameter.block == block} for block in range(num_blocks)
    ]
    for number, parameter in enumerate(parameters):
        if parameter.block is None:
            used[0 if number < first else -1].add(parameter.name)
    costs = [0] * num_blocks
    for parameter in parameters:
        if parameter.block is not None:
            costs[parameter.block] += parameter.numel
    names = tuple(map(frozenset, used))
    return Division(tuple(costs), names, names)
