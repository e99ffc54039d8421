"""What the batch script of a job says of how its processes are started."""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_RANK_OPTION = re.compile(r"--(?:node|machine)[_-]rank[= ]*\"?\$\{?SLURM_(?:NODEID|PROCID)\b")
_PROGRAM = re.compile(r"(?:\S*/)?(?:torchrun|accelerate|python[\d.]*|deepspeed|paratune)")
_SRUN = re.compile(r"(?:^|[\s;&|({`]|\S/)srun(?=\s|$)")


_NAMES_SRUN = re.compile(r"(?:^|[\s;&|({`\"'=]|\S/)srun(?=[\s\"']|$)")
"""Also in what a variable is given: LAUNCHER="srun --ntasks-per-node=4"."""
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_BETWEEN = re.compile(r"&&|\|\||(?<![>&])&(?![>\d])|[;|(`]|\)(?=[\s;]|$)|(?<!\S)(?:[{}!]|then|do|else|if)(?!\S)")
"""What stands between two commands."""
_HERE = re.compile(r"<<-?\s*[\"'\\]?(\w+)")
_CALL = re.compile(
    r"^\s*(?:(?:exec|time|nohup|\w+=\S*)\s+)*(?:(?:(?:\S*/)?(?:ba|da|k|z)?sh|source|\.)\s+(?:-(?!\S*c)\S*\s+)*(?P<read>[^\s<>-]\S*)"
    r"|(?P<run>[^\s<>=]*(?:/[^\s<>]+|\.sh))(?=\s|$))"
)
"""A command that runs another script: bash FILE, source FILE, ./FILE."""
_TRAINING = re.compile(
    r"(?:^|\s)(?:\S*/)?(?:paratune\s+train|torchrun|accelerate\s+launch|deepspeed|python[\d.]*\s+-m\s+"
    r"(?:paratune\s+train|torch\.distributed\.run|accelerate\S*\s+launch))(?=\s|$)"
)
_MAY_START_ELSEWHERE = re.compile(
    r"[$\"']|(?:^|\s)(?:\S*/)?(?:srun|mpirun|mpiexec|prun|ssh|pdsh|clush|parallel|echo|printf)\s"
)
"""Before the program: what decides on which nodes it runs, or that it is not run at all."""
MAX_SCRIPT_BYTES = 2**18
MAX_DEPTH = 3
"""Scripts that call scripts that call scripts."""


@dataclass(frozen=True)
class Seen:
    """What a batch script, and those that it calls, show of how training is started."""

    names_srun: bool = False
    plain: tuple[str, int, str] | None = None
    """The first command that starts training on the node of the batch step: of which script, its line, its words."""
    unread: tuple[str, ...] = ()
    """Scripts that it calls and that could not be read."""


def look_into(script: str, called: Mapping[str, str]) -> Seen:
    """Return what a batch script shows.

    Args:
        script: Its text.
        called: Texts of the scripts that it calls, by the names that it has for them, as `read_called` gives them.
    """
    texts = {"batch script": script, **called}
    names = [name for text in texts.values() for name in calls(text)]
    return Seen(
        names_srun=any(_NAMES_SRUN.search(line) for text in texts.values() for _, line in _commands(text)),
        plain=next(
            ((name, number, part) for name, text in texts.items() for number, part in _parts(text) if _is_plain(part)),
            None,
        ),
        unread=tuple(dict.fromkeys(name for name in names if name not in called)),
    )


def calls(script: str) -> list[str]:
    """Return the scripts that a script runs in a shell, by the words that name them."""
    found = [match["read"] or match["run"] for _, part in _parts(script) if (match := _CALL.match(part))]
    return list(dict.fromkeys(word.strip("\"'") for word in found if not _PROGRAM.fullmatch(word)))


def read_called(script: str, environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the texts of scripts that a script calls, and that those call, by the words that name them.

    Args:
        script: The text of the first.
        environ: Whose variables stand in names.
        folder: The working directory, to which names are relative.
    """
    found: dict[str, str] = {}
    names = calls(script)
    for _ in range(MAX_DEPTH):
        new = {name: text for name in names if name not in found and (text := _text(name, environ, folder)) is not None}
        found |= new
        names = [name for text in new.values() for name in calls(text)]
    return found


def _text(name: str, environ: Mapping[str, str], folder: Path) -> str | None:
    """Return the text of a script; None where it cannot be read, or is none."""
    path = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: environ.get(match[1] or match[2], match[0]), name)
    path = re.sub(r"^~(?=/)", lambda match: environ.get("HOME", match[0]), path)
    try:
        if not (folder / path).is_file():  # to open a pipe would wait for its other end
            return None
        with (folder / path).open("rb") as file:
            content = file.read(MAX_SCRIPT_BYTES + 1)
        return content.decode() if len(content) <= MAX_SCRIPT_BYTES and b"\0" not in content else None
    except (OSError, ValueError):
        return None


def _is_plain(part: str) -> bool:
    found = _TRAINING.search(part)
    return found is not None and not _MAY_START_ELSEWHERE.search(part[: found.start() + 1])


def _parts(script: str) -> Iterator[tuple[int, str]]:
    """Yield the commands of the lines of a script, with the numbers of the lines."""
    here = None  # what follows << is text, up to the line that ends it
    for number, line in _commands(script):
        if here is not None:
            here = None if line.strip() == here else here
            continue
        bare = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), line)
        ends = [(0, 0), *(match.span() for match in _BETWEEN.finditer(bare)), (len(line), len(line))]
        for (_, begin), (end, _) in itertools.pairwise(ends):
            yield number, " ".join(line[begin:end].split())
        started = _HERE.search(line)
        here = started[1] if started and "<<<" not in line else None


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
