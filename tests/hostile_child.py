"""The process that reads documents, in which some of them do harm; their URLs say which."""

import os
import signal
import sys
import time
from pathlib import Path

from paratune.corpus.extract import child
from paratune.corpus.extract.found import Extracted


def extract(document, kept):
    what, _, flag = document.url.partition(" ")
    if flag:
        is_first = not Path(flag).exists()
        with Path(flag).open("a") as file:
            file.write("x")
        if (what == "once" and is_first) or what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "exit":
        sys.exit("the library gave up")
    if what == "garbage":
        os.write(3, b"\xff" * 1000)
        os._exit(0)
    if what == "sleep":
        time.sleep(60)
    if what == "hoard":
        return Extracted("text/plain", str(len(bytearray(int(document.payload)))), "test")
    return Extracted("text/plain", document.payload.decode(), "test")


child.extract = extract
if __name__ == "__main__":
    child.main()
