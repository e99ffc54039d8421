"""What is gained by compiled blocks, and by a whole step as a CUDA graph, over packed training without them.

`train.compile` is measured in whole trainings. The captured step (forward, backward, clipping, AdamW of one packed
shape) is not an option of paratune: this part measures the gain of such an option. On a CPU nothing is compiled, and
the step is called instead of replayed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from paratune.batch import Batch

from .card import captured
from .setting import Check, Figures, Setting, durations_ms, hold, spread
from .speed import Work, ours
from .texts import CASES, Case, draw_lengths, of_setting, packed_batch
from .training import free, make_model, precision_of

NUM_COMPARED = 5


def checks(setting: Setting) -> Iterator[Check]:
    """Yield compiled training, then captured steps without dropout (losses are compared) and with it (only timed)."""
    yield Check(f"{CASES[0].label}, compiled", partial(compiled, setting, CASES[0]), "train.compile", proves=False)
    for case in (CASES[2], CASES[0], CASES[1]):
        yield Check(f"{case.label}, no dropout", partial(replayed, setting, case, 0.0), "Captured steps")
    for case in (CASES[2], CASES[0]):
        yield Check(f"{case.label}, dropout 0.1", partial(replayed, setting, case, 0.1), "Captured steps")
    yield Check(f"{CASES[2].label}, compiled", partial(compiled, setting, CASES[2]), "train.compile", proves=False)


def compiled(setting: Setting, case: Case) -> Figures:
    """Train with and without `train.compile`, and compare their steps."""
    setting.need(60)
    sides = {name: ours(setting, case, Work(), "packed", compiled=name == "compiled") for name in ("eager", "compiled")}
    times = {f"{name}_ms": figures["step_ms"] for name, figures in sides.items()}
    memory = {f"{name}_memory_bytes": figures["memory_bytes"] for name, figures in sides.items()}
    return {**times, "faster": times["eager_ms"]["median"] / times["compiled_ms"]["median"], **memory}


class Static:
    """A step whose inputs, loss and learning rate stay at the same addresses."""

    def __init__(self, setting: Setting, batch: Batch, dropout: float) -> None:
        changes = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        self._precision, self._device = precision_of(setting), setting.device
        self._model = make_model(setting, self._precision, **changes).to(setting.device).train()
        self._batch = batch.to(setting.device)
        self._parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        rate = torch.tensor(1e-4, device=setting.device)
        self._optimizer = AdamW(self._parameters, lr=rate, fused=True, capturable=setting.on_gpu)
        self.loss = torch.zeros((), device=setting.device)

    def load(self, batch: Batch) -> None:
        """Copy another batch of the same shape into the inputs."""
        for name, target in vars(self._batch).items():
            if isinstance(target, Tensor):
                target.copy_(getattr(batch, name), non_blocking=True)

    def __call__(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        with self._precision.autocast(self._device):
            outputs = self._model(self._batch)
        loss = self._model.loss_sum(outputs, self._batch) / self._batch.loss_denominator
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0, foreach=True)
        self._optimizer.step()
        self.loss.copy_(loss.detach())


def replayed(setting: Setting, case: Case, dropout: float) -> Figures:
    """Train the same batches eagerly and by replay, compare the losses, and time both."""
    free()
    setting.need(12)
    case = of_setting(case, setting)
    lengths = draw_lengths(case, case.batch_size)
    batches = [_shuffled(packed_batch(lengths, 1000), seed) for seed in range(NUM_COMPARED)]
    eager, static = (Static(setting, batches[0], dropout) for _ in range(2))
    replay: Callable[[], Any] = captured(static, setting.device) if setting.on_gpu else static
    for _ in range(3 if setting.on_gpu else 0):  # as often as `captured` has called the captured step
        eager()
    losses: dict[str, list[float]] = {"eager": [], "replayed": []}
    for batch in batches:
        for name, act, stepped in (("eager", eager, eager), ("replayed", replay, static)):
            stepped.load(batch)
            act()
            losses[name].append(float(stepped.loss))
    repeats = 2 if setting.tiny else 50
    eager_ms = spread(durations_ms(eager, setting.device, repeats=repeats, warmup=5))
    replay_ms = spread(durations_ms(replay, setting.device, repeats=repeats, warmup=5))
    off = max(abs(a - b) / abs(a) for a, b in zip(*losses.values(), strict=True))
    figures = {
        "eager_ms": eager_ms,
        "replay_ms": replay_ms,
        "faster": eager_ms["median"] / replay_ms["median"],
        "loss_difference": off if dropout == 0 else None,
        "same_bits": losses["eager"] == losses["replayed"] if dropout == 0 else None,
        "num_tokens": len(batches[0].input_ids),
    }
    return hold(dropout > 0 or off <= 5e-3, "losses of replays differ from those of eager steps", figures)


def _shuffled(batch: Batch, seed: int) -> Batch:
    """Return a batch of the same shape with other tokens."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.input_ids), generator=generator)
    return replace(batch, input_ids=batch.input_ids[order])
