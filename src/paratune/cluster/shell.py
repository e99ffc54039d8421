"""Values in a shell script: quoted, so that nothing of them acts; and what cannot be there at all."""

import re
import shlex
import shutil
import subprocess

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_VARIABLE = re.compile(r"\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)")
_WORD = re.compile(r"[A-Za-z0-9_.,:/=+@%-]+")


def quoted(text: str) -> str:
    """Return text as one word of the shell in which nothing acts but `$NAME` and `${NAME}`.

    >>> quoted("/scratch/$USER/my data")
    '"/scratch/$USER/my data"'
    """
    if _WORD.fullmatch(text):
        return text
    if "$" not in text:
        return shlex.quote(text)
    parts, at = [], 0
    for found in _VARIABLE.finditer(text):
        parts += [_escaped(text[at : found.start()]), found.group()]
        at = found.end()
    return f'"{"".join(parts)}{_escaped(text[at:])}"'


def directive(name: str, value: str | None = None) -> str:
    """Return an #SBATCH line; sbatch reads quotes in it as a shell does, but no variables."""
    if value is None:
        return f"#SBATCH --{name}"
    word = value if _WORD.fullmatch(value) else f'"{value}"'
    return f"#SBATCH --{name}={word}"


def why_no_word(text: str, *, more: str = "") -> str | None:
    """Return why a text cannot stand in a script where plain words are wanted; None when it can.

    Args:
        text: The word.
        more: Characters that it may hold besides letters, digits and those of paths.
    """
    if re.fullmatch(rf"(?:{_WORD.pattern}|[{re.escape(more)}])+" if more else _WORD.pattern, text):
        return None
    also = f" {more.strip()}" if more else ""
    return f"is {_shown(text)}; allowed: letters, digits and _ . , : / = + @ % -{also}"


def why_no_path(text: str | None) -> str | None:
    """Return why a text cannot be quoted for a script; None when it can. `$NAME` and `${NAME}` stand for variables."""
    if text is None:
        return None
    if _CONTROL.search(text):
        return f"is {_shown(text)}; a line break or another control character cannot be in it"
    if "$" in _VARIABLE.sub("", text):
        return f"is {_shown(text)}; after $ comes the name of a variable, nothing else is expanded"
    return None


def why_no_shell(line: str) -> str | None:
    """Return why a text is no line of shell by itself; None when it is, or bash is not here to say."""
    if _CONTROL.search(line.replace("\t", " ")):
        return f"is {_shown(line)}; write each line of shell as an item of its own"
    bash = shutil.which("bash")
    if bash is None:
        return None
    checked = subprocess.run([bash, "-n", "-c", line], capture_output=True, text=True, timeout=10, check=False)
    if checked.returncode == 0:
        return None
    said = checked.stderr.strip().splitlines()
    return f"is {_shown(line)}, which bash does not understand: {said[0].rpartition(': ')[2] if said else '?'}"


def why_no_sbatch_path(text: str) -> str | None:
    """Return why a path cannot stand in an #SBATCH line; None when it can."""
    if _CONTROL.search(text) or re.search(r"[\"'\\]", text):
        return f"{_shown(text)} holds a quote, a backslash or a line break, which sbatch cannot read in a path"
    return None


def _escaped(text: str) -> str:
    return re.sub(r'([\\"`$])', r"\\\1", text)


def _shown(text: str) -> str:
    short = text if len(text) <= 60 else f"{text[:56]} ..."
    return repr(short)
