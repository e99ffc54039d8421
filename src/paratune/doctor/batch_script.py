"""Finds the commands in a batch script that start the processes of a run."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath

from paratune.doctor.shell_commands import commands, lines, program_at, program_name

_RANK_OPTION = re.compile(r"--(?:node|machine)[_-]rank[= ]*\"?\$\{?SLURM_(?:NODEID|PROCID)\b")
_PROGRAM = re.compile(r"(?:\S*/)?(?:torchrun|accelerate|python[\d.]*|deepspeed|paratune)")


def _srun(before: str = "", behind: str = "") -> re.Pattern[str]:
    return re.compile(rf"(?:^|[\s;&|({{`{before}]|\S/)srun(?=[\s{behind}]|$)")


_SRUN = _srun()
_NAMES_SRUN = _srun(before="\"'=", behind="\"'")
"""Also in the value of a variable: LAUNCHER="srun --ntasks-per-node=4"."""
_SHELL = re.compile(r"(?:a|ba|c|da|fi|k|tc|z)?sh")
_SHELL_SUFFIXES = frozenset({".sh", ".bash", ".slurm", ".sbatch"})
_MODULES = {
    "paratune": ["paratune"],
    "torch.distributed.run": ["torchrun"],
    "torch.distributed.launch": ["torchrun"],
    "accelerate": ["accelerate"],
    "accelerate.commands.accelerate_cli": ["accelerate"],
    "accelerate.commands.launch": ["accelerate", "launch"],
    "deepspeed.launcher.runner": ["deepspeed"],
}
"""Module of `python -m` -> the program with the same effect."""
_HOSTS = re.compile(r"-H|--?\w*hostfile")
"""Options of deepspeed and accelerate that start processes on other nodes."""
MAX_SCRIPT_BYTES = 2**18
MAX_DEPTH = 3
"""Maximum depth of scripts that call scripts."""


@dataclass(frozen=True)
class ScriptFacts:
    """The start of training in a batch script and the scripts that it calls."""

    names_srun: bool = False
    plain: tuple[str, int, str] | None = None
    """The first command that starts training on the node of the batch step: script, line number and words.

    Without the assignments before the program, which may be secrets (WANDB_API_KEY=...).
    """
    unread: tuple[str, ...] = ()
    """Called scripts that could not be read."""


def find_start(script: str, called: Mapping[str, str]) -> ScriptFacts:
    """Return the start of training in a batch script, and in the scripts that it calls (from `read_called`)."""
    texts = {"batch script": script, **called}
    plain = (
        (name, number, " ".join(words[program_at(words) :]))
        for name, text in texts.items()
        for number, words in commands(text)
        if _starts_training(words[program_at(words) :])
    )
    names = (
        name
        for text in texts.values()
        for name, by_shell in _calls(text).items()
        if by_shell or PurePath(name).suffix in _SHELL_SUFFIXES
    )
    return ScriptFacts(
        names_srun=any(_NAMES_SRUN.search(line) for text in texts.values() for _, line in lines(text)),
        plain=next(plain, None),
        unread=tuple(dict.fromkeys(name for name in names if name not in called)),
    )


def _starts_training(words: Sequence[str]) -> bool:
    """Return whether a command starts training on its own node; its first word is the program."""
    words = _without_python(words)
    if not words or "--help" in words or "--version" in words:
        return False
    program, subcommand = program_name(words[0]), "".join(words[1:2])
    if program == "deepspeed" or (program, subcommand) == ("accelerate", "launch"):
        return not any(_HOSTS.match(word) for word in words[1:])
    return program == "torchrun" or (program, subcommand) == ("paratune", "train")


def _without_python(words: Sequence[str]) -> list[str]:
    """Return a command with `python -m MODULE` replaced by its program; an empty list for other modules."""
    if not words or not re.fullmatch(r"python[\d.]*", program_name(words[0])):
        return list(words)
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-W", "-X") else 1
    module = words[at + 1] if words[at : at + 1] == ["-m"] and at + 1 < len(words) else ""
    return [*_MODULES[module], *words[at + 2 :]] if module in _MODULES else []


def _calls(*scripts: str) -> dict[str, bool]:
    """Return name -> whether a shell reads it, for the scripts that scripts call."""
    calls: dict[str, bool] = {}
    for _, words in chain.from_iterable(map(commands, scripts)):
        name, by_shell = _called(words[program_at(words) :])
        if name:
            calls[name] = calls.get(name, False) or by_shell
    return calls


def _called(words: Sequence[str]) -> tuple[str, bool]:
    """Return the script that a command runs, and whether a shell reads it: bash FILE, source FILE; not ./FILE."""
    if not words:
        return "", False
    program = _file(words[0])
    if _SHELL.fullmatch(program_name(program)):
        return _read_by_shell(words[1:]), True
    if program in ("source", "."):
        name = _file(words[1]) if len(words) > 1 else ""
        return ("" if program_name(name) == "activate" else name), True
    is_file = "/" in program or PurePath(program).suffix in _SHELL_SUFFIXES
    return (program if is_file and "=" not in program and not _PROGRAM.fullmatch(program) else ""), False


def _read_by_shell(words: Sequence[str]) -> str:
    """Return the file after the options of a shell; "" if it reads a string or its input."""
    at = 0
    while at < len(words) and words[at][0] in "-+":
        option = words[at]
        is_short = not option.startswith("--")
        if is_short and re.search("[cs]", option):
            return ""
        takes_word = (is_short and re.search("[oO]", option)) or option in ("--rcfile", "--init-file")
        at += 2 if takes_word else 1
    return _file(words[at]) if at < len(words) else ""


def _file(word: str) -> str:
    """Return a word without quotes, and without a redirection at its end."""
    return re.sub("[\"']|[<>].*", "", word)


def read_called(script: str, environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return name -> text of the scripts that a script calls, directly or indirectly.

    `environ` has the variables for names; relative names are in `folder`.
    """
    scripts: dict[str, str] = {}
    names = _calls(script)
    for _ in range(MAX_DEPTH):
        texts = {name: _text(name, environ, folder) for name in names if name not in scripts}
        new = {
            name: text
            for name, text in texts.items()
            if text is not None and (names[name] or _is_for_shell(text, PurePath(name).suffix))
        }
        scripts |= new
        names = _calls(*new.values())
    return scripts


def _is_for_shell(text: str, suffix: str) -> bool:
    """Return whether a file is a shell script, by its first line or its suffix."""
    first = text.partition("\n")[0]
    if not first.startswith("#!"):
        return not suffix or suffix in _SHELL_SUFFIXES
    return any(_SHELL.fullmatch(program_name(word)) for word in first[2:].split())


def _text(name: str, environ: Mapping[str, str], folder: Path) -> str | None:
    """Return the text of a script; None if it cannot be read or is binary."""
    path = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: environ.get(match[1] or match[2], match[0]), name)
    path = re.sub(r"^~(?=/)", lambda match: environ.get("HOME", match[0]), path)
    try:
        if not (folder / path).is_file():  # opening a pipe would block
            return None
        with (folder / path).open("rb") as file:
            content = file.read(MAX_SCRIPT_BYTES + 1)
        return content.decode() if len(content) <= MAX_SCRIPT_BYTES and b"\0" not in content else None
    except (OSError, ValueError):
        return None


def wrong_rank_line(script: str | None) -> tuple[int, str] | None:
    """Return line number and text of a command that gives every node the rank of the batch step.

    The shell expands `$SLURM_NODEID` before srun starts, except in single quotes or after a backslash.
    """
    for number, line in lines(script or ""):
        srun = _SRUN.search(line)
        if srun is None:
            continue
        bare = re.sub(r"'[^']*'", lambda quoted: "_" * len(quoted[0]), line)
        if _RANK_OPTION.search(bare, srun.end()):
            return number, " ".join(line[srun.start() :].split())
    return None


def read_in_tasks(command: str) -> str:
    """Return a command of srun that runs its program in a shell, which expands the variables in each task."""
    words = command.split(" ")
    first = next((n for n, word in enumerate(words) if n and _PROGRAM.fullmatch(word)), None)
    if first is None:  # the options of srun are unknown
        return "srun bash -c '...'"
    return f"{' '.join(words[:first])} bash -c {shlex.quote(' '.join(words[first:]))}"
