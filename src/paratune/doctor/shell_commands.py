"""Splits a shell script into commands and words."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_LINE_CHARACTERS = 4096
"""Longer lines, including continuation lines, are data and are not split into commands."""
_MASKED = re.compile(
    r"\\."
    r"|(?P<comment>(?<!\S)#.*)"
    r"|'[^']*+(?:'|\Z)"
    r"|\"(?:\\.|[^\"\\])*+(?:\"|\Z)"
    r"|\(\(.*?(?:\)\)|\Z)"  # x=$((1 << 3))
    r"|\b\w++\+?=\([^)]*+(?:\)|\Z)"  # COMMAND=(torchrun x), an array
)
"""Text that contains no commands. Each alternative also matches at the end of the line, so that none backtracks."""
_BETWEEN = re.compile(
    r"&&|\|\||(?<![>&])&(?![>\d])|[;|(`]|\)(?=[\s;]|$)"
    r"|(?<!\S)(?:[{}!]|then|do|else|elif|if|while|until)(?!\S)"
)
"""Separators of commands."""
_HERE = re.compile(r"(?<!<)<<(?!<)-?")
_HERE_WORD = re.compile(r"\s*(?:(?P<quote>[\"'])(?P<quoted>.*?)(?P=quote)|\\?(?P<word>[^\s\"'\\;&|<>()]+))")
_WORD = re.compile(r"\S+")
_ASSIGNMENT = re.compile(r"\w+\+?=")


@dataclass(frozen=True)
class _Prefix:
    """A program that runs the command after its options, on the same node."""

    with_word: frozenset[str] = frozenset()
    """Options whose value is the next word."""
    subcommand: str | None = None
    num_operands: int = 0
    """Number of words between options and command."""


def _prefix(with_word: str = "", subcommand: str | None = None, num_operands: int = 0) -> _Prefix:
    return _Prefix(frozenset(with_word.split()), subcommand, num_operands)


_CONTAINER = _prefix(
    "-B --bind -H --home -W --workdir -S --scratch -o --overlay --env --env-file --pwd --cwd --mount --net --network "
    "--fusemount --add-caps --drop-caps --security",
    subcommand="exec",
    num_operands=1,
)
_PREFIXES = {
    "exec": _prefix("-a"),
    "time": _prefix("-f --format -o --output"),
    "nohup": _prefix(),
    "nice": _prefix("-n --adjustment"),
    "numactl": _prefix("-C -N -i -m -p -w --cpunodebind --physcpubind --interleave --membind --preferred"),
    "env": _prefix("-u --unset -C --chdir"),
    "stdbuf": _prefix("-i -o -e --input --output --error"),
    "conda": _prefix("-n --name -p --prefix --cwd", subcommand="run"),
    "apptainer": _CONTAINER,
    "singularity": _CONTAINER,
    "uv": _prefix(
        "-p --python --with --with-editable --with-requirements --extra --group --project --directory --env-file "
        "--package --index --config-file --cache-dir",
        subcommand="run",
    ),
}


def lines(script: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of a script, without comments, and with continuation lines joined."""
    first, parts = 0, list[str]()
    for number, line in enumerate(script.splitlines(), start=1):
        if not parts and line.lstrip().startswith("#"):
            continue
        first = first if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield first, "".join([*parts, line])
        parts = []
    if parts:
        yield first, "".join(parts)


def commands(script: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the words, with quotes, of each command of a script."""
    delimiters = list[str]()  # of open here-documents
    for number, line in lines(script):
        if delimiters:
            delimiters = delimiters[1:] if line.strip() == delimiters[0] else delimiters
            continue
        if len(line) > MAX_LINE_CHARACTERS:
            continue
        bare = _MASKED.sub(_mask, line)
        cuts = [(0, 0), *(match.span() for match in _BETWEEN.finditer(bare)), (len(line), len(line))]
        for (_, begin), (end, _) in itertools.pairwise(cuts):
            yield number, [line[slice(*word.span())] for word in _WORD.finditer(bare, begin, end)]
        words = (_HERE_WORD.match(line, operator.end()) for operator in _HERE.finditer(bare))
        delimiters = [(word["quoted"] or word["word"] or "").strip() for word in words if word]


def _mask(match: re.Match[str]) -> str:
    return (" " if match["comment"] else "_") * len(match[0])


def program_at(words: Sequence[str]) -> int:
    """Return the index of the program of a command, after assignments and programs such as `nohup` and `env`."""
    at = 0
    while at < len(words):
        if _ASSIGNMENT.match(words[at]):
            at += 1
            continue
        prefix = _PREFIXES.get(program_name(words[at]))
        if prefix is None:
            break
        behind = _behind_options(words, at + 1, frozenset() if prefix.subcommand else prefix.with_word)
        if prefix.subcommand is not None:
            if words[behind : behind + 1] != [prefix.subcommand]:  # conda activate
                break
            behind = _behind_options(words, behind + 1, prefix.with_word)
        at = behind + prefix.num_operands
    return min(at, len(words))


def program_name(word: str) -> str:
    """Return the name of a program without its folder and quotes."""
    return word.strip("\"'").rpartition("/")[2]


def _behind_options(words: Sequence[str], at: int, with_word: frozenset[str]) -> int:
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        at += 2 if words[at] in with_word else 1
    return at
