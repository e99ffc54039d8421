"""The Hugging Face hub: may it be asked, and does it answer? Its own client tries for most of a minute, in many lines.

Floor 1: no torch.
"""

import functools
import queue
import threading

TIMEOUT_S = 5.0
"""How long the hub has to answer."""


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set: then nothing is ever asked."""
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


@functools.cache
def why_not() -> str | None:
    """Return why nothing can be fetched, in words; None when the hub answers. It is asked once in a process.

    Any answer will do, through the proxies that the environment names. The cache of earlier downloads is not looked at.
    """
    if is_offline():
        return "HF_HUB_OFFLINE is set"
    from huggingface_hub import constants

    answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    # In a thread of its own: no timeout of a client is heeded while a name server does not answer.
    threading.Thread(target=_ask, args=(constants.ENDPOINT, answers), daemon=True).start()
    try:
        problem = answers.get(timeout=TIMEOUT_S)
    except queue.Empty:
        problem = f"no answer within {TIMEOUT_S:g} s"
    return f"{constants.ENDPOINT} cannot be reached ({problem})" if problem else None


def _ask(endpoint: str, answers: "queue.SimpleQueue[str]") -> None:
    """Put an empty text for an answer, or what went wrong."""
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=TIMEOUT_S)
    except Exception as error:  # of whichever client this version uses
        answers.put(next(iter(str(error).strip().splitlines()), "") or type(error).__name__)
    else:
        answers.put("")
