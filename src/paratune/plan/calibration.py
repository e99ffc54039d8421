"""What was measured on a machine: one JSON file each in the user's cache folder, read whenever one plans for it.

No torch at import.
"""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune import records
from paratune.errors import ConfigError
from paratune.plan.constants import Constants

SCHEMA_VERSION = 1


def calibration_file(machine_name: str) -> Path:
    """Return where the figures of a machine are kept, existing or not.

    In `$PARATUNE_CACHE`, else ~/.cache/paratune, where tokens are. The name is the device's and the host's: two
    machines of a kind do not share figures through a home folder on the network.
    """
    cache = Path(os.environ.get("PARATUNE_CACHE") or "~/.cache/paratune").expanduser()
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{socket.gethostname()} {machine_name}").strip("-").lower()
    return cache / "machines" / f"{name}.json"


def stored_constants(machine_name: str) -> dict[int, Constants]:
    """Return what was measured on this machine, by the threads of a process; nothing where nobody has.

    Raises:
        ConfigError: The file is there, and damaged.
    """
    path = calibration_file(machine_name)
    if not path.exists():
        return {}
    try:
        written = records.read_json(path)
        if written["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its version is {written['schema_version']}, not {SCHEMA_VERSION}")
        return {int(threads): Constants.from_json(each) for threads, each in written["by_threads"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} does not hold the figures of a machine: {error}; remove it, or measure again: "
            "paratune plan --calibrate"
        ) from error


def store(machine_name: str, by_threads: Mapping[int, Constants], **about: Any) -> Path:
    """Keep what was measured; `about` says how. Return the file.

    Raises:
        CheckpointError: It cannot be written.
    """
    path = calibration_file(machine_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {str(threads): constants.as_json() for threads, constants in sorted(by_threads.items())}
    records.write_json(path, {"schema_version": SCHEMA_VERSION, "machine": machine_name, **about, "by_threads": values})
    return path
