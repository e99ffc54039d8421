"""Explains rows one at a time, in a separate thread that pauses while predictions wait or are computed."""

import asyncio
import copy
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from paratune.errors import DataError
from paratune.explain.explain import METHODS, ExplainOptions, explain_rows, require_explainable
from paratune.explain.outputs import prepare
from paratune.explain.page import row_dict
from paratune.explain.rows import require_offsets
from paratune.infer.trained import TrainedModel
from paratune.serving.predictor import Predictor
from paratune.serving.rows import Row
from paratune.serving.settings import ServingLimits

_PAUSE_S = 0.002
_DISCONNECT_S = 0.5
_SHARE = 4
"""A pass of an explanation has at most 1 / `_SHARE` of the tokens of a batch of predictions, so that it ends soon."""


class Explainer:
    """A copy of a model that shares its weights, and the thread that explains rows with it."""

    def __init__(self, trained: TrainedModel, limits: ServingLimits, is_busy: Callable[[], bool]) -> None:
        """Copy the model.

        Args:
            trained: A model that `require_explainable` accepts.
            limits: Time and queue.
            is_busy: Whether predictions wait or are computed; called in the thread.
        """
        require_explainable(trained, "the model")
        require_offsets(trained)
        self._trained = replace(
            trained,
            model=_sharing_copy(trained.model),
            tokenizer=copy.deepcopy(trained.tokenizer),
            recipe=copy.deepcopy(trained.recipe),
        )
        prepare(self._trained)
        self._trained.model.register_forward_pre_hook(lambda *_: self._before_pass())
        self._predictor = Predictor(self._trained)
        self._limits = limits
        self._is_busy = is_busy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paratune-explain")
        self._is_closed = False
        self._job: tuple[float, threading.Event] | None = None
        """Of the current explanation: the time at which it is given up; set when nobody waits for it any more."""
        self.num_waiting = 0
        """Explanations that were accepted and are not done, the current one included."""

    def close(self) -> None:
        """End the current explanation before its next pass, and the thread."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def explain(
        self, row: Row, options: ExplainOptions, is_disconnected: Callable[[], Awaitable[bool]]
    ) -> dict[str, Any]:
        """Return the explanation of a row, as in `report.json` of `paratune explain`, and the texts that were read.

        Args:
            row: A row with the columns of the model.
            options: From `read_options`.
            is_disconnected: Whether the client has closed its connection; the explanation then ends.

        Raises:
            DataError: The row has no text, or no word that the model reads; the queue is full; it takes too long.
        """
        if self.num_waiting >= self._limits.max_explain_queue:
            raise DataError(
                f"{self.num_waiting} explanations wait or are computed, the most that are allowed; try again later",
                code="serve.explain_queue_full",
                num_waiting=self.num_waiting,
                max_explain_queue=self._limits.max_explain_queue,
            )
        self.num_waiting += 1
        is_abandoned = threading.Event()
        submitted = self._thread.submit(self._explain, row, options, is_abandoned)
        future = asyncio.wrap_future(submitted)
        future.add_done_callback(self._count_down)
        try:
            while not (await asyncio.wait({future}, timeout=_DISCONNECT_S))[0]:
                if await is_disconnected():
                    raise DataError("the client closed the connection", code="serve.client_gone")
            return future.result()
        finally:
            is_abandoned.set()
            submitted.cancel()  # if it has not started, its place in the queue is free at once

    def _count_down(self, future: "asyncio.Future[Any]") -> None:
        self.num_waiting -= 1
        if not future.cancelled():
            future.exception()  # of an abandoned explanation, nobody else asks for it

    def _explain(self, row: Row, options: ExplainOptions, is_abandoned: threading.Event) -> dict[str, Any]:
        self._job = (time.monotonic() + self._limits.max_explain_s, is_abandoned)
        tokenized = self._predictor.tokenize([row])[0]
        split = tokenized.request
        most = max(1, self._limits.max_tokens // _SHARE)
        sized = replace(options, batch_size=max(1, most // int(split.store.lengths.max())))
        explanation = explain_rows(self._trained, split, sized)[0]
        return row_dict(explanation) | {"texts": list(explanation.row.texts)}

    def _before_pass(self) -> None:
        """Wait while predictions are computed.

        Raises:
            DataError: The explanation takes too long, or nobody waits for it.
        """
        assert self._job is not None
        deadline, is_abandoned = self._job
        while True:
            if self._is_closed or is_abandoned.is_set():
                raise DataError("the explanation is no longer needed", code="serve.client_gone")
            if time.monotonic() > deadline:
                raise DataError(
                    f"the explanation takes longer than {self._limits.max_explain_s:g} s; send a shorter text, or "
                    "another method",
                    code="serve.explain_timeout",
                    max_explain_s=self._limits.max_explain_s,
                )
            if not self._is_busy():
                return
            time.sleep(_PAUSE_S)


def read_options(query: list[tuple[str, str]], trained: TrainedModel) -> ExplainOptions:
    """Return the options of an explanation: `method`, one of `METHODS`, and `target`, a class.

    Args:
        query: Names and values of the query of the address.
        trained: The model, which has the names of the classes.

    Raises:
        DataError: A name or a value is unknown, or a name is given twice.
    """
    allowed: dict[str, list[str]] = {"method": list(METHODS)}
    if trained.task.kind in ("classification", "multi_label"):
        allowed["target"] = trained.names
    given = dict(query)
    for name, value in query:
        if value not in allowed.get(name, ()) or len(given) < len(query):
            known = "; ".join(f"{key}: {', '.join(values)}" for key, values in allowed.items())
            message = f"{name[:100]}={value[:100]!r} in the address is unknown or given twice; known: {known}"
            raise DataError(message, code="serve.query", name=name[:100], allowed=allowed.get(name))
    return ExplainOptions(methods=(given.get("method", next(iter(METHODS))),), target=given.get("target"))


def _sharing_copy(model: torch.nn.Module) -> Any:
    """Return a copy of a model with separate hooks and settings; weights are shared where they are float32."""
    tensors = [*model.parameters(), *model.buffers()]
    is_shared = all(tensor.dtype == torch.float32 for tensor in tensors if tensor.is_floating_point())
    # deepcopy takes what it finds in this mapping for a finished copy.
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors} if is_shared else {})
