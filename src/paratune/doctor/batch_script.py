"""What the batch script of a job says of how its processes are started."""

import re
import shlex
from collections.abc import Iterator

_RANK_OPTION = re.compile(r"--(?:node|machine)[_-]rank[= ]*\"?\$\{?SLURM_(?:NODEID|PROCID)\b")
_PROGRAM = re.compile(r"(?:\S*/)?(?:torchrun|accelerate|python[\d.]*|deepspeed|paratune)")
_SRUN = re.compile(r"(?:^|[\s;&|({`]|\S/)srun(?=\s|$)")


def starts_with_srun(script: str | None) -> bool:
    """Return whether a batch script starts something with srun; False where there is none to read."""
    return any(_SRUN.search(line) for _, line in _commands(script or ""))


def wrong_rank_line(script: str | None) -> tuple[int, str] | None:
    """Return the command that gives each node the rank of the batch step's, with the number of its first line.

    `$SLURM_NODEID` is read before srun runs unless it stands in single quotes or after a backslash.
    """
    for number, line in _commands(script or ""):
        started = _SRUN.search(line)
        if started is None:
            continue
        bare = re.sub(r"'[^']*'", lambda quoted: "_" * len(quoted[0]), line)
        if _RANK_OPTION.search(bare, started.end()):
            return number, " ".join(line[started.start() :].split())
    return None


def read_in_tasks(command: str) -> str:
    """Return a command of srun with all that it starts in a shell of each task, which reads the variables there."""
    words = command.split(" ")
    first = next((n for n, word in enumerate(words) if n and _PROGRAM.fullmatch(word)), None)
    if first is None:  # which of the words are srun's own is not known
        return "srun bash -c '...'"
    return f"{' '.join(words[:first])} bash -c {shlex.quote(' '.join(words[first:]))}"


def _commands(script: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a script without its comments, those that a backslash continues as one, with their numbers."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(script.splitlines(), start=1):
        if not parts and line.lstrip().startswith("#"):
            continue
        begun = begun if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield begun, "".join([*parts, line])
        parts = []
    if parts:
        yield begun, "".join(parts)
