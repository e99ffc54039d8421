"""A headless Chromium controlled through its debugging pipe (Chrome DevTools Protocol); only the standard library.

The pipe carries JSON with a zero byte after each message, on the descriptors 3 (to the browser) and 4 (from it). No
port is opened; host names other than this machine are not resolved; the profile is a separate folder.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
_LIMIT_S = 300.0
_COMMAND = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--mute-audio", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


class Browser:
    """One page of a browser."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a command; events that arrive before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        os.write(
            self._to, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        while (response := self._next()).get("id") != self._number:
            self.events.append(response)
        if "error" in response:
            raise RuntimeError(f"{method}: {response['error']}")
        return response["result"]

    def open(self, page: Path) -> None:
        """Go to a file and wait until it is loaded."""
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def js(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        response = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in response:
            raise RuntimeError(response["exceptionDetails"])
        return response["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key: Enter, Tab, ArrowRight."""
        codes = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                **(more if kind == "keyDown" else {}),
            )  # fmt: skip

    def look(self, *, dark: bool = False, width: int = 1100, height: int = 900) -> None:
        """Set the colour scheme and the size of the window."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write an image of the page."""
        response = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(response["data"]))

    def pdf(self) -> bytes:
        """Return the printed page."""
        response = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(response["data"])

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, and requests for anything but files."""
        complaints = []
        for event in self.events:
            params = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    complaints.append(f"exception: {params['exceptionDetails']}")
                case "Runtime.consoleAPICalled":
                    complaints.append(f"console: {params['type']} {params['args']}")
                case "Log.entryAdded":
                    complaints.append(f"log: {params['entry'].get('text')} {params['entry'].get('url')}")
                case "Network.requestWillBeSent":
                    complaints.append(f"request: {params['request']['url']}")
        return complaints

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._back, 1 << 16) if ready else b""
            if not part:
                raise TimeoutError(f"chromium sent nothing for {_LIMIT_S:.0f} s, or exited")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Yield a browser whose profile is in `folder`; it is ended afterwards in every case."""
    read_there, to = os.pipe()
    back, write_there = os.pipe()
    profile = folder / "profile"
    # sh gives the pipe the descriptor numbers that the browser expects.
    shell = f'exec "$0" "$@" 3<&{read_there} 4>&{write_there}'
    with (folder / "chromium.txt").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, str(CHROMIUM), *_COMMAND, f"--user-data-dir={profile}"],
            pass_fds=(read_there, write_there), stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
    os.close(read_there)
    os.close(write_there)
    try:
        yield Browser(to, back)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(to)
        os.close(back)
        shutil.rmtree(profile, ignore_errors=True)
