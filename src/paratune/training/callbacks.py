"""Calls the user's own callbacks during a training, on rank 0.

A callback is an object with any of the methods `on_start`, `on_step`, `on_evaluate` and `on_end`. Each is called with a
`TrainingState`. It sees copies of figures and changes nothing of the training.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from paratune.config.own_code import (
    CALLBACKS_KEY,
    OWN_ERRORS,
    call_own_code,
    described_error,
    same_folder,
    wrong_result,
)
from paratune.config.section import OwnCode
from paratune.errors import coded

log = logging.getLogger(__name__)
HOOKS: Final = ("on_start", "on_step", "on_evaluate", "on_end")


@dataclass(frozen=True)
class TrainingState:
    """What a callback sees of a training; read-only."""

    folder: Path
    """The run folder."""
    num_steps: int
    """Steps of the whole run."""
    step: int
    """Steps so far."""
    epoch: float | None = None
    """Epochs so far; None in `on_start` and `on_end`."""
    loss: float | None = None
    """Training loss of the step; None outside of `on_step`."""
    learning_rate: float | None = None
    """Learning rate of the step, without factors of layers; None outside of `on_step`."""
    grad_norm: float | None = None
    """Norm of the gradient before clipping; None outside of `on_step`."""
    split: str | None = None
    """The evaluated split; None outside of `on_evaluate`."""
    scores: Mapping[str, float | None] | None = None
    """In `on_evaluate` the scores of the split; in `on_end` the final scores of validation, if there are any."""
    is_best: bool | None = None
    """Whether the evaluation is the best so far; None outside of `on_evaluate` and without `evaluate.best`."""


def make_callbacks(named: Sequence[OwnCode]) -> list[tuple[str, Any]]:
    """Return the objects of `run.callbacks` with their names.

    Raises:
        ConfigError: One cannot be imported or made, or has no hook.
    """
    made = []
    for number, code in enumerate(named):
        key = f"{CALLBACKS_KEY}[{number}].function"
        callback = call_own_code(code, key)
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            what = f"an object of type {type(callback).__name__} without hooks"
            raise wrong_result(code.function, key, what, f"an object with one of {', '.join(HOOKS)}")
        made.append((code.function, callback))
    return made


class CallbackSession:
    """Calls callbacks of one session of a run; a callback that raises an error is not called again."""

    def __init__(self, callbacks: Sequence[tuple[str, Any]], *, folder: Path, num_steps: int, step: int) -> None:
        """Call `on_start` of the callbacks, which only rank 0 has; `step` steps were taken before this session."""
        self._callbacks = list(callbacks)
        self._state = TrainingState(folder, num_steps, step)
        self._call("on_start", self._state)

    def log_event(self, event: str, values: Mapping[str, Any]) -> None:
        """Call the hook of an event of the event log, if it has one."""
        if not self._callbacks or event not in ("step", "evaluation"):
            return
        step = int(values["step"])
        self._state = replace(self._state, step=step)
        if event == "step":
            known: dict[str, Any] = {key: values.get(key) for key in ("epoch", "loss", "learning_rate", "grad_norm")}
            self._call("on_step", replace(self._state, **known))
        else:
            scores = MappingProxyType(dict(values["scores"]))
            known = {"epoch": values["epoch"], "split": values["split"], "is_best": values["is_best"]}
            self._call("on_evaluate", replace(self._state, scores=scores, **known))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Call `on_end` of a finished run; `summary` is the content of summary.json, empty on other ranks than 0."""
        scores = (summary.get("scores") or {}).get("validation")
        self._call("on_end", replace(self._state, scores=None if scores is None else MappingProxyType(dict(scores))))

    def _call(self, hook: str, state: TrainingState) -> None:
        for name, callback in [*self._callbacks]:
            function = getattr(callback, hook, None)
            if not callable(function):
                continue
            try:
                with same_folder():
                    function(state)
            except OWN_ERRORS as error:
                self._callbacks.remove((name, callback))
                log.warning(
                    "%s: %s of %s raised %s; the training continues, and this callback is not called again",
                    *(CALLBACKS_KEY, hook, name, described_error(error)),
                    extra=coded("callback.raised", key=CALLBACKS_KEY, value=name, hook=hook),
                )
