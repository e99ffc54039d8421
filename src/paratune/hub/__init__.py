"""The Hugging Face hub: whether it can be reached, within seconds.

Imports no torch.
"""

import functools
import queue
import threading

TIMEOUT_S = 5.0
"""Longest time for an answer of the hub."""


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set; then paratune never contacts the hub."""
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


@functools.cache
def unreachable_reason() -> str | None:
    """Return why the hub cannot be reached, as text; None when it answers. It is asked once in a process.

    Any answer counts, through the proxies of the environment. The cache of earlier downloads is not checked.
    """
    if is_offline():
        return "HF_HUB_OFFLINE is set"
    from huggingface_hub import constants

    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    # In a thread, because the timeout of a client has no effect while a name server does not answer.
    threading.Thread(target=_ask, args=(constants.ENDPOINT, answers), daemon=True).start()
    try:
        problem = answers.get(timeout=TIMEOUT_S)
    except queue.Empty:
        problem = f"no answer within {TIMEOUT_S:g} s"
    return f"{constants.ENDPOINT} cannot be reached ({problem})" if problem else None


def _ask(endpoint: str, answers: "queue.SimpleQueue[str]") -> None:
    """Put an empty text when the hub answers, or the error."""
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=TIMEOUT_S)
    except Exception as error:  # depends on the HTTP client of the installed version
        answers.put(next(iter(str(error).strip().splitlines()), "") or type(error).__name__)
    else:
        answers.put("")
