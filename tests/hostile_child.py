"""A child process that misbehaves for some documents; their declared types select the misbehaviour."""

import json
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

# Its libraries are not needed here, and importing them takes a second.
sys.modules["paratune.corpus.extract.document"] = SimpleNamespace(
    extract=None, read_office=lambda payload, mime: None, RTF="application/rtf"
)

from paratune.corpus.extract import child  # noqa: E402
from paratune.corpus.extract.process import ExtractedText, NoText  # noqa: E402


def extract(payload, declared, settings):
    action, _, flag = declared.partition(" ")
    if flag:
        is_first = not Path(flag).exists()
        with Path(flag).open("a") as file:
            file.write("x")
        if (action == "once" and is_first) or action == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    if action == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if action == "exit":
        sys.exit("the library gave up")
    if action == "garbage":
        os.write(int(sys.argv[2]), b"\xff" * 1000)
        os._exit(0)
    if action == "half":
        os.write(int(sys.argv[2]), (1000).to_bytes(4, "big") + b"{")
        time.sleep(10_000)
    if action == "lie":
        answer = [{"mime": "text/plain", "text": ["no text"]}, False]
        Connection(int(sys.argv[2])).send_bytes(json.dumps(answer).encode())
        time.sleep(10_000)
    if action == "surrogate":
        return ExtractedText("text/plain", "\ud800", "test")
    if action == "say":
        return NoText("unreadable", "\ud800\x1b[31m" + "a" * 1000)
    if action == "sleep":
        time.sleep(10_000)
    if action == "hoard":
        return ExtractedText("text/plain", str(len(bytearray(int(payload)))), "test")
    return ExtractedText("text/plain", payload.decode(), "test")


child.extract = extract
if __name__ == "__main__":
    child.main()
