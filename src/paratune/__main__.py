"""`python -m paratune`, and so `torchrun -m paratune`."""

import os
import sys
from contextlib import suppress

# Python has put the current folder first, where a stranger may have put modules with the names of packages.
with suppress(OSError):  # the folder was deleted
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 - Path needs more modules
        del sys.path[0]

from paratune.cli import main

if __name__ == "__main__":
    main()
