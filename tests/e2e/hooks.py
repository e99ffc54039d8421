"""Changes to a process before its command runs, which act at a selected time. The process imports this module."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SignalAt:
    """Sends a signal to the process itself when a function is called for the n-th time."""

    number: signal.Signals
    function: str
    """module:name or module:Class.name."""
    call: int = 1
    after: bool = False
    """Send it after the function has returned."""
    to_all: bool = False
    """Also send it to the child processes."""

    def __call__(self) -> None:
        count = 0

        def send() -> None:
            os.kill(0 if self.to_all else os.getpid(), self.number)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def wrapped(*arguments: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == self.call and not self.after:
                    send()
                result = original(*arguments, **named)
                if count == self.call and self.after:
                    send()
                return result

            return wrapped

        replace(self.function, wrap)


@dataclass(frozen=True)
class TwiceAt(SignalAt):
    """Sends the signal twice."""

    def __call__(self) -> None:
        SignalAt.__call__(self)
        SignalAt.__call__(self)


@dataclass(frozen=True)
class RefuseNetwork:
    """Records every attempt to connect to or resolve another machine, and lets it fail."""

    log: str
    """File with one line per attempt."""

    def __call__(self) -> None:
        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "socket.connect":
                address = arguments[1]
                outside = isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1", "localhost"))
            elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
                outside = str(arguments[0]) not in ("localhost", "127.0.0.1", "::1", "None")
            else:
                return
            if outside:
                with open(self.log, "a") as file:
                    file.write(f"{event} {arguments}\n")
                raise OSError(f"no network here: {event}")

        sys.addaudithook(audit)


@dataclass(frozen=True)
class WithPackages:
    """Puts packages of a folder first on the path, and gives trackers less time at the end; then calls `then`."""

    folder: str
    finish_s: float = 30.0
    then: Callable[[], None] | None = None

    def __call__(self) -> None:
        sys.path.insert(0, self.folder)
        from paratune.trackers import session

        session.FINISH_S = session.STOP_S = self.finish_s
        if self.then is not None:
            self.then()


def replace(target: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function module:name or module:Class.name."""
    import importlib

    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for entry in classes:
        owner = getattr(owner, entry)
    setattr(owner, name, wrap(getattr(owner, name)))
